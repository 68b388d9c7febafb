// The same view inside a host's conversation (MCP Apps, 2026-01-26): it talks JSON-RPC with the host by postMessage.
// It shows. A person decides on the page or by a command, which it names; here only where the settings trust the host with
// that (`approvals = "host"`), by a call that the host may ask them to confirm.

import { html, render } from "./vendor/preact-htm.js";
import { hasEnded, isDecidedByPerson } from "./status.js";
import { addSteps, emptyTimeline } from "./steps.js";
import { RunView } from "./view.js";
import { DecisionForm } from "./waiting.js";

const PROTOCOL = "2026-01-26";
const INLINE_GROUPS = 3; // the newest ones; full screen shows all
const WAIT_S = 20;
const MAX_FAILURES = 6;
const PAGE_CHARS = 20_000;

const requests = new Map(); // by id, of those that the host has not answered
let newestRequest = 0;
let host = {}; // what it can
let context = {}; // how it looks
let shown = { id: null, run: null, timeline: emptyTimeline(), seq: null, at: null };
let isFollowing = false;
let isTornDown = false;

const send = (message) => window.parent.postMessage({ jsonrpc: "2.0", ...message }, "*");
const notify = (method, params = {}) => send({ method, params });
const ask = (method, params = {}) =>
  new Promise((resolve, reject) => {
    requests.set(++newestRequest, { resolve, reject });
    send({ id: newestRequest, method, params });
  });
const callTool = async (name, values) => {
  const result = await ask("tools/call", { name, arguments: values });
  const content = result.structuredContent;
  if (result.isError || !content) throw Object.assign(new Error(content?.message || "The call failed."), content);
  return content;
};

addEventListener("message", ({ source, data }) => {
  if (source !== window.parent || data?.jsonrpc !== "2.0") return;
  const { id, method, params, result, error } = data;
  if (method === undefined) {
    const request = requests.get(id);
    requests.delete(id);
    if (error) request?.reject(new Error(error.message));
    else request?.resolve(result);
    return;
  }
  switch (method) {
    case "ui/notifications/tool-input": return void findByInput(params.arguments || {});
    case "ui/notifications/tool-result": return void showRun(idIn(params.structuredContent));
    case "ui/notifications/host-context-changed": context = { ...context, ...params }; applyContext(); return draw();
    case "ui/resource-teardown": isTornDown = true; return send({ id, result: {} });
    case "ping": return send({ id, result: {} });
    default: if (id !== undefined) send({ id, error: { code: -32601, message: "Unknown method" } });
  }
});

const idIn = (content) => content?.run_id || content?.runs?.[0]?.run_id;

/** The host's colours and fonts, as variables that the style sheet falls back from. */
function applyContext() {
  const root = document.documentElement;
  if (context.theme) root.dataset.theme = context.theme;
  for (const [name, value] of Object.entries(context.styles?.variables || {})) {
    if (/^--[a-z0-9-]+$/.test(name) && value) root.style.setProperty(name, value);
  }
}

/** Find the run of a call that has no result yet: by its id, or the newest open one of that goal or mandate. */
async function findByInput({ run_id: id, goal, mandate_id: mandate }) {
  if (id || shown.id) return void showRun(typeof id === "string" ? id : null);
  for (let tries = 0; tries < 5 && !shown.id; tries++) {
    await new Promise((resolve) => setTimeout(resolve, 400 * (tries + 1)));
    const { runs = [] } = await callTool("run_status", {}).catch(() => ({}));
    const isMeant = (run) => (goal ? goal.startsWith(run.goal.replace(/…$/, "")) : run.mandate === mandate);
    showRun(runs.find((run) => !hasEnded(run) && isMeant(run))?.run_id);
  }
}

function showRun(id) {
  if (!id || id === shown.id) return;
  shown = { id, run: null, timeline: emptyTimeline(), seq: null, at: null };
  follow();
}

/** Read the run until it has ended: each call waits until there is news. */
async function follow() {
  if (isFollowing) return;
  isFollowing = true;
  let failures = 0;
  while (!isTornDown && failures < MAX_FAILURES && !(shown.run && hasEnded(shown.run))) {
    const { id } = shown;
    try {
      await readNews(id);
      failures = 0;
    } catch {
      failures += 1;
      await new Promise((resolve) => setTimeout(resolve, 500 * 2 ** failures));
    }
    draw();
  }
  isFollowing = false;
  draw();
  const { id, run } = shown;
  if (run && hasEnded(run) && host.updateModelContext) {
    const words = run.summary ?? run.record;
    const text = `Run ${id} is ${run.status}.${words ? ` ${words}` : ""}`;
    ask("ui/update-model-context", { content: [{ type: "text", text }] }).catch(() => {});
  }
}

async function readNews(id) {
  const since = shown.seq === null ? {} : { since: shown.seq, wait_s: WAIT_S };
  let cursor = null;
  do {
    const query = { run_id: id, view: "steps", max_chars: PAGE_CHARS, ...since, ...(cursor && { cursor }) };
    const page = await callTool("run_trace", query);
    if (id !== shown.id) return; // another run was shown meanwhile
    shown.run = page.run;
    shown.timeline = addSteps(shown.timeline, page.steps);
    cursor = page.next_cursor;
    if (!cursor) shown.seq = page.seq;
  } while (cursor);
}

/** How an item is decided: here, where the next call of whoever calls may decide it; else elsewhere. */
function decisionOf(item) {
  const { run } = shown;
  if (!isDecidedByPerson(item)) return null;
  if (run.next?.arguments.answers?.[item.key]) {
    return html`<${DecisionForm} key=${item.digest} run=${run} item=${item} decide=${decide} />`;
  }
  if (!run.page || !host.openLinks) return html`<p class="elsewhere">A person decides, in a terminal: <code>
    ${item.command || "kairos-mcp inbox"}</code></p>`;
  return html`<p class="elsewhere"><button class="button"
    onClick=${() => ask("ui/open-link", { url: run.page }).catch(() => {})}>Look and decide on the page ↗</button>
    <span class="quiet">Nobody decides in this conversation.</span></p>`;
}

async function decide(act, { run, key, digest, settlement, feedback, note }) {
  const answer = act === "settle"
    ? { settlement, digest, ...(note && { note }) }
    : { decision: act, digest, ...(feedback && { feedback }) };
  await callTool("run_continue", { run_id: run, answers: { [key]: answer }, wait_s: 0 });
}

async function enlarge() {
  context.displayMode = (await ask("ui/request-display-mode", { mode: "fullscreen" })).mode;
  draw();
}

function draw() {
  const root = document.getElementById("app");
  if (!shown.run) return render(html`<p class="quiet">${shown.id ? "…" : "No run yet."}</p>`, root);
  const isFull = context.displayMode === "fullscreen";
  const canEnlarge = !isFull && context.availableDisplayModes?.includes("fullscreen");
  return render(html`<${RunView} run=${shown.run} timeline=${shown.timeline}
    newest=${isFull ? undefined : INLINE_GROUPS} at=${shown.at}
    onOpen=${(path) => { shown.at = path; draw(); }} decision=${decisionOf} isLive=${isFollowing}
    controls=${canEnlarge && html`<div class="controls"><button class="small" onClick=${enlarge}>Larger</button>
      </div>`} />`, root);
}

async function connect() {
  draw();
  const answer = await ask("ui/initialize", {
    protocolVersion: PROTOCOL,
    appInfo: { name: "kairos-run", version: "1" },
    appCapabilities: { availableDisplayModes: ["inline", "fullscreen"] },
  });
  host = answer.hostCapabilities || {};
  context = { ...answer.hostContext, ...context };
  applyContext();
  notify("ui/notifications/initialized");
  const root = document.getElementById("app");
  let height = 0;
  new ResizeObserver(() => {
    const now = Math.ceil(root.getBoundingClientRect().height);
    if (now === height) return;
    height = now;
    notify("ui/notifications/size-changed", { width: document.documentElement.clientWidth, height });
  }).observe(root);
}

connect();
