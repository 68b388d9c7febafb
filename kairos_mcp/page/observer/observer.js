// The page for operators: the runs of all principals, what waits, who has spent what, and who lives. It asks again every
// few seconds while it can be seen. Nothing is decided here: whose a run is decides, or whoever has a terminal.

import { html, render, useCallback, useEffect, useState } from "./static/vendor/preact-htm.js";
import { formatAgo, formatCount, formatDuration, formatMoney, plural, revealHidden } from "./static/format.js";
import { hasEnded, STATUS } from "./static/status.js";
import { addSteps, emptyTimeline } from "./static/steps.js";
import { HeldUp, RunView } from "./static/view.js";
import { WaitingCard } from "./static/waiting.js";

const TOKEN = "kairos-observer"; // in the storage of this tab alone
const STARTED = "kairos-sign-in"; // what a sign-in under way has to be answered with
const AGAIN_MS = 3000;
const PAGES = { runs: "Runs", waits: "Waiting", budget: "Budget", servers: "Servers" };
const STATES = ["working", "input_required", "queued", "paused", "completed", "stopped", "failed", "cancelled"];

async function ask(path, query = {}, options = {}) {
  const given = Object.entries(query).filter(([, value]) => value != null && value !== "");
  const token = sessionStorage.getItem(TOKEN);
  const headers = { ...options.headers, ...(token && { authorization: `Bearer ${token}` }) };
  const response = await fetch(`api/${path}?${new URLSearchParams(given)}`, { credentials: "omit", ...options, headers });
  const body = await response.json().catch(() => ({}));
  if (response.ok) return body;
  throw Object.assign(new Error(body.error?.message || `The server answered ${response.status}.`), {
    status: response.status, hint: body.error?.hint || "" });
}

/** What `path` answers, asked again and again while the page can be seen; {value, failure}. */
function useAsked(path, query, merge = (_, value) => value) {
  const [state, setState] = useState({ value: null, failure: null });
  const key = JSON.stringify([path, query]);
  useEffect(() => {
    let isCurrent = true;
    let timer = 0;
    let known = null;
    const look = async () => {
      try {
        const answer = document.hidden ? null : await ask(path, known?.seq == null ? query : { ...query, seq: known.seq });
        if (!isCurrent) return;
        if (answer) setState({ value: (known = merge(known, answer)), failure: null });
      } catch (failure) {
        if (!isCurrent) return;
        if (failure.status === 401 || failure.status === 403) return leave(failure);
        setState((before) => ({ ...before, failure }));
      }
      timer = setTimeout(look, AGAIN_MS);
    };
    setState({ value: null, failure: null });
    look();
    return () => {
      isCurrent = false;
      clearTimeout(timer);
    };
  }, [key]);
  return state;
}

const Failure = ({ failure }) => failure && html`<p class="failure" role="alert">${failure.message} ${failure.hint}</p>`;

/** A table: the heads, and the cells of each row; those that begin with "#" are numbers. */
const Table = ({ heads, rows }) => html`<div class="card scroll" tabindex="0" role="group" aria-label="Table">
  <table class="plain"><thead><tr>${heads.map((head) => html`<th class=${head[0] === "#" ? "n" : ""}>
    ${head.replace("#", "")}</th>`)}</tr></thead>
  <tbody>${rows.map((row) => html`<tr>${row.map((cell, at) => html`<td class=${heads[at][0] === "#" ? "n" : ""}>
    ${cell ?? "–"}</td>`)}</tr>`)}</tbody></table></div>`;

const wordOf = (row) => `${STATUS[row.status]?.join(" ") || row.status}${row.stop_words ? `, ${row.stop_words}` : ""}`;
const linkTo = (row) => html`<a class="text" href="#/runs/${row.run_id}">${revealHidden(row.goal || row.run_id)}</a>`;

function RunsPage() {
  const [filters, setFilters] = useState({ principal: "", status: "", model: "" });
  const { value, failure } = useAsked("runs", filters);
  const bind = (name) => ({
    value: filters[name], "aria-label": name, onChange: (event) => setFilters({ ...filters, [name]: event.target.value.trim() }),
  });
  return html`<h1>Runs</h1><div class="filters">
      <input placeholder="principal" ...${bind("principal")} /><input placeholder="model" ...${bind("model")} />
      <select ...${bind("status")}><option value="">every status</option>${STATES.map((state) => html`<option>
        ${state}</option>`)}</select></div>
    <${Failure} failure=${failure} />
    ${value && (value.rows.length
      ? html`<${Table} heads=${["principal", "status", "goal", "model", "#tokens", "#cost", "started"]}
        rows=${value.rows.map((row) => [row.principal, wordOf(row), linkTo(row), row.model || row.route,
          formatCount(row.tokens), formatMoney(row.usd), formatAgo(row.started_at)])} />`
      : html`<p class="empty small">No such runs.</p>`)}`;
}

const mergeRun = (known, answer) =>
  ({ ...answer, timeline: addSteps(known?.timeline || emptyTimeline(), answer.steps) });

/** Who decides about what a run waits for. */
const Decides = ({ principal }) => html`<p class="quiet">Nothing is decided here. ${principal} decides, or in a terminal:${" "}
  <code>kairos-mcp inbox --principal ${principal}</code></p>`;

function RunPage({ id }) {
  const { value, failure } = useAsked("run", { run: id }, mergeRun);
  const [at, setAt] = useState(null);
  const readAll = useCallback(async ({ path }) => (await ask("text", { run: id, ref: path })).text, [id]);
  if (!value) return html`<h1>Run</h1><${Failure} failure=${failure} />`;
  const { run, timeline } = value;
  return html`<p class="quiet">${run.principal}’s</p>
    <${RunView} run=${{ ...run, waiting: [] }} timeline=${timeline} at=${at} onOpen=${setAt} readAll=${readAll}
      isLive=${!failure && !hasEnded(run)} controls=${null} cause=${null} />
    ${run.waiting.map((item) => html`<${WaitingCard} key=${item.key} item=${item}><${Decides} principal=${run.principal} /><//>`)}`;
}

function WaitsPage() {
  const { value, failure } = useAsked("waits", {});
  if (!value) return html`<h1>Waiting</h1><${Failure} failure=${failure} />`;
  return html`<h1>Waiting</h1>${!value.runs.length && html`<p class="empty">Nothing waits for a person.</p>`}
    ${value.runs.map(({ run, items, held_up_by: reasons, next }) => html`<section key=${run.run_id}>
      <p class="of-run">${linkTo(run)} <span class="quiet">${run.principal} · ${formatAgo(run.started_at)}</span></p>
      ${items.map((item) => html`<${WaitingCard} key=${item.key} item=${item}><${Decides} principal=${run.principal} /><//>`)}
      ${!items.length && html`<${HeldUp} reasons=${reasons} next=${next} />`}</section>`)}`;
}

function BudgetPage() {
  const { value, failure } = useAsked("budget", {});
  if (!value) return html`<h1>Budget</h1><${Failure} failure=${failure} />`;
  const left = ({ usd, total_tokens: tokens, model_calls: calls }) =>
    [usd != null && formatMoney(usd), tokens != null && `${formatCount(tokens)} tokens`, calls != null && plural(calls, "call")]
      .filter(Boolean).join(", ") || "no limit";
  return html`<h1>Budget</h1><p class="quiet">The last seven days, by principal.</p><${Failure} failure=${failure} />
    <${Table} heads=${["day", "principal", "#calls", "#tokens", "#cost", "left"]}
      rows=${value.days.map((day) => [day.day, day.principal, formatCount(day.spent.model_calls),
        formatCount(day.spent.total_tokens), formatMoney(day.spent.usd), left(day.remaining || {})])} />`;
}

function ServersPage() {
  const { value, failure } = useAsked("servers", {});
  if (!value) return html`<h1>Servers</h1><${Failure} failure=${failure} />`;
  const kinds = { work: "worker", command: "command" };
  const ages = Object.entries(value.oldest_wait_s || {}).map(([kind, s]) => [kind, formatDuration(s * 1000)]);
  const counts = (found) => Object.entries(found || {}).filter(([, count]) => count).map(([name, count]) => [name, count]);
  return html`<h1>Servers</h1><${Failure} failure=${failure} />
    <${Table} heads=${["#number", "kind", "#process", "version", "place", "#runs"]}
      rows=${(value.servers || []).map((each) => [each.number, kinds[each.via] || "server", each.pid, each.version, each.place, each.runs])} />
    <h2>Open runs</h2><${Table} heads=${["state", "#runs"]} rows=${[...counts(value.open_runs), ...counts(value.paused)]} />
    <h2>Driving</h2><${Table} heads=${["what", "#number"]} rows=${Object.entries(value.driving || {})} />
    <h2>Oldest waits</h2><${Table} heads=${["for", "#since"]} rows=${ages} />`;
}

const SHOWN = { runs: RunsPage, waits: WaitsPage, budget: BudgetPage, servers: ServersPage };

function App() {
  const [address, setAddress] = useState(location.hash);
  useEffect(() => {
    const onMove = () => setAddress(location.hash);
    addEventListener("hashchange", onMove);
    return () => removeEventListener("hashchange", onMove);
  }, []);
  const [, page = "runs", id] = address.split("/");
  const Page = SHOWN[page] || RunsPage;
  return html`<nav aria-label="Pages"><a class="brand" href="#/runs"><img src="static/mark.svg" alt="" width="22"
      height="22" /><span>Kairos</span></a>
    <div class="pages">${Object.entries(PAGES).map(([name, label]) => html`<a href="#/${name}"
      aria-current=${page === name ? "page" : null}>${label}</a>`)}</div>
    <div class="foot"><button class="link" onClick=${() => leave()}>sign out</button></div></nav>
    <main id="main" tabindex="-1">${page === "runs" && id ? html`<${RunPage} key=${id} id=${id} />` : html`<${Page} />`}</main>`;
}

// -- the way in -------------------------------------------------------------------------------------------------

const root = () => document.getElementById("app");

function leave(failure = null) {
  sessionStorage.removeItem(TOKEN);
  begin(failure);
}

const pageAddress = () => `${location.origin}${location.pathname}`;
const randomText = () => toText(crypto.getRandomValues(new Uint8Array(32)));
const toText = (bytes) => btoa(String.fromCharCode(...bytes)).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");

/** Go to the authorization server; it leads back here with a code (RFC 7636). */
async function goToSignIn({ authorize, client_id: client, resource }) {
  const [state, verifier] = [randomText(), randomText()];
  sessionStorage.setItem(STARTED, JSON.stringify({ state, verifier }));
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(verifier)));
  const query = { response_type: "code", client_id: client, redirect_uri: pageAddress(), scope: "observe", resource, state,
    code_challenge: toText(digest), code_challenge_method: "S256" };
  location.assign(`${authorize}${authorize.includes("?") ? "&" : "?"}${new URLSearchParams(query)}`);
}

/** Take the code out of the address, and exchange it, if this tab has asked for it. Raises what `ask` raises. */
async function comeBack() {
  const given = new URLSearchParams(location.search);
  if (!given.has("state")) return;
  const started = JSON.parse(sessionStorage.getItem(STARTED) || "{}");
  sessionStorage.removeItem(STARTED);
  history.replaceState(null, "", `${location.pathname}${location.hash}`);
  if (!started.state || given.get("state") !== started.state) return;
  if (!given.get("code")) throw new Error(`The authorization server answered: ${given.get("error") || "no code"}.`);
  const body = { code: given.get("code"), code_verifier: started.verifier, redirect_uri: pageAddress() };
  const options = { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) };
  sessionStorage.setItem(TOKEN, (await ask("sign_in", {}, options)).token);
}

function SignIn({ oauth, failure }) {
  const [token, setToken] = useState("");
  const enter = (event) => {
    event.preventDefault();
    sessionStorage.setItem(TOKEN, token.trim());
    begin();
  };
  return html`<main class="locked"><img src="static/mark.svg" alt="" width="40" height="40" /><h1>For operators</h1>
    <${Failure} failure=${failure} />
    ${oauth && html`<p><button class="yes" id="sign-in" onClick=${() => goToSignIn(oauth)}>Sign in</button></p>`}
    <form onSubmit=${enter}><label class="field"><span>A token with the scope <code>observe</code></span>
      <input type="password" id="token" autocomplete="off" value=${token} onInput=${(event) => setToken(event.target.value)} />
      </label><button class=${oauth ? "" : "yes"} disabled=${!token.trim()}>Enter</button></form>
    <p class="quiet">In a terminal: <code>kairos-mcp token add NAME --scope observe</code></p></main>`;
}

async function begin(failure = null) {
  try {
    await comeBack();
    if (sessionStorage.getItem(TOKEN)) {
      await ask("me");
      return render(html`<${App} />`, root());
    }
  } catch (found) {
    sessionStorage.removeItem(TOKEN);
    failure = found;
  }
  const { oauth } = await ask("sign_in").catch(() => ({ oauth: null }));
  return render(html`<${SignIn} oauth=${oauth} failure=${failure} />`, root());
}

begin();
