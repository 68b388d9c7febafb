// The page: where one is (the fragment), the frame around every page, the keys, and the way in.

import { html, render, useCallback, useEffect, useMemo, useRef, useState } from "./vendor/preact-htm.js";
import { enter, follow, get, useEvents } from "./connection.js";
import { joinFacts, nameAmong } from "./format.js";
import { RunsPage } from "./runs.js";
import { hasEnded } from "./status.js";

const PAGES = [
  ["runs", "Runs"],
  ["waits", "Inbox"],
  ["budget", "Budget"],
  ["mandates", "Mandates"],
  ["tools", "Tools"],
  ["agents", "Agents"],
];
const KEYS = [
  ["j k", "down, up"],
  ["Enter", "open or close"],
  ["w", "what waits for you"],
  ["a", "to the button that approves; Enter presses it"],
  ["u", "up: all runs"],
  ["/", "search"],
  ["?", "these keys"],
];
const LISTED = ".runs a, .step .row, .then button, .then a, .rows > li > a, .rows > li > button, a.card"; // for j and k
const NEXT_THEME = { auto: "light", light: "dark", dark: "auto" };
const NOTICE_MS = 6000;

// What the list of runs doesn't need is loaded when it is first shown.
const FILES = {
  acts: () => import("./acts.js"),
  budget: () => import("./budget.js"),
  inbox: () => import("./inbox.js"),
  mandates: () => import("./mandates.js"),
  run: () => import("./run.js"),
  tools: () => import("./tools.js"),
};

/** A component `name` of one of these files. */
function Loaded({ file, name, children, ...props }) {
  const [found, setFound] = useState(null);
  useEffect(() => {
    FILES[file]().then(setFound);
  }, [file]);
  return found ? html`<${found[name]} ...${props}>${children}<//>` : html`<p class="quiet" aria-busy="true">…</p>`;
}

/** Where one is: `#/runs/RUN/round-3/call-2` and `#/runs?show=waiting`. */
function readAddress() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const [page, id, ...rest] = path.split("/").map(decodeURIComponent);
  return { page: page || "runs", id, step: rest.join("/") || null, query: new URLSearchParams(query) };
}

/** All runs that are known, the newest first; undefined before the first frame. Open ones that are `gone` leave, since
 * nothing more would be told of them. */
function useRuns() {
  const [rows, setRows] = useState();
  const [waits, setWaits] = useState(0);
  const merge = (changed, gone = []) =>
    setRows((known = []) => {
      const byId = new Map([...known, ...changed].map((row) => [row.run_id, row]));
      for (const id of gone) if (byId.has(id) && !hasEnded(byId.get(id))) byId.delete(id);
      return [...byId.values()].sort((a, b) => b.started_at - a.started_at);
    });
  const isUp = useEvents((kind, data) => {
    if (kind !== "runs") return;
    merge(data.rows, data.gone);
    setWaits(data.waits);
  });
  const older = async () => {
    const answer = await get("api/runs", { before: rows.at(-1).run_id });
    merge(answer.rows);
    return answer.more;
  };
  return { rows, waits, isUp, older };
}

/** The project that every page shows, or "" for all; kept for the next visit. */
function useScope() {
  const [scope, setScope] = useState(localStorage.getItem("scope") || "");
  useEffect(() => localStorage.setItem("scope", scope), [scope]);
  return [scope, setScope];
}

function useTheme() {
  const [theme, setTheme] = useState(localStorage.getItem("theme") || "auto");
  useEffect(() => {
    document.documentElement.dataset.theme = theme;
    localStorage.setItem("theme", theme);
  }, [theme]);
  return [theme, () => setTheme(NEXT_THEME[theme])];
}

/** Single keys, where nothing is typed into and no dialog is open. */
function useKeys(actions) {
  const current = useRef(actions);
  current.current = actions;
  useEffect(() => {
    const onKey = (event) => {
      const isTyping = event.target.closest?.("input, textarea, select, dialog");
      if (isTyping || event.metaKey || event.ctrlKey || event.altKey) return;
      const action = current.current[event.key];
      if (!action) return;
      event.preventDefault();
      action();
    };
    addEventListener("keydown", onKey);
    return () => removeEventListener("keydown", onKey);
  }, []);
}

function moveFocus(by) {
  const rows = [...document.querySelectorAll(LISTED)];
  const at = rows.indexOf(document.activeElement);
  const next = at < 0 ? (by > 0 ? 0 : rows.length - 1) : at + by;
  rows[Math.max(0, Math.min(rows.length - 1, next))]?.focus();
}

function Scope({ projects, scope, onScope }) {
  const names = scope && !projects.includes(scope) ? [scope, ...projects] : projects;
  if (names.length < 2) return null;
  return html`<select class="scope" aria-label="Project" value=${scope} onChange=${(event) => onScope(event.target.value)}>
    <option value="">every project</option>
    ${names.map((path) => html`<option value=${path} title=${path}>${nameAmong(path, names)}</option>`)}</select>`;
}

function Navigation({ page, waits, isUp, theme, onTheme, onHelp, children }) {
  return html`<nav aria-label="Pages">
    <a class="brand" href="#/runs"><img src="static/mark.svg" alt="" width="22" height="22" /><span>Kairos</span></a>
    ${children}
    <div class="pages">${PAGES.map(([name, label]) => html`<a href="#/${name}"
      aria-current=${page === name ? "page" : null}>${label}${name === "waits" && waits > 0 && html`<b class="badge">
      ${waits}<span> for you</span></b>`}</a>`)}</div>
    <div class="foot">
      <span class="line ${isUp ? "up" : ""}" role="status">${isUp ? "connected" : "reconnecting …"}</span>
      <button class="link" onClick=${onTheme} title="Light or dark colours">theme: ${theme}</button>
      <button class="link" onClick=${onHelp} title="The keys of this page">help</button>
    </div></nav>`;
}

const HelpDialog = ({ onClose }) => html`<${Loaded} file="acts" name="Dialog" title="Keys" onClose=${onClose}>
  <dl class="keys">${KEYS.map(([key, words]) => html`<dt>${key}</dt><dd>${words}</dd>`)}</dl>
  <div class="buttons"><button onClick=${onClose}>Back</button></div><//>`;

function App({ me }) {
  const [address, setAddress] = useState(readAddress);
  const [notice, setNotice] = useState("");
  const [isHelpOpen, setIsHelpOpen] = useState(false);
  const [theme, onTheme] = useTheme();
  const { rows, waits, isUp, older } = useRuns();
  const [scope, onScope] = useScope();
  const projects = useMemo(() =>
    [...new Set([...me.workspaces, ...(rows || []).map((row) => row.workspace).filter(Boolean)])].sort(), [rows]);
  const { page, id, step, query } = address;
  const run = page === "runs" ? id : null;

  useEffect(() => {
    const onMove = () => setAddress(readAddress());
    addEventListener("hashchange", onMove);
    return () => removeEventListener("hashchange", onMove);
  }, []);
  useEffect(() => {
    if (!run) follow(null); // the page of a run does so itself, once it listens
    scrollTo(0, 0);
  }, [page, id]);
  useEffect(() => {
    const place = run ? rows?.find((row) => row.run_id === run)?.goal : PAGES.find(([name]) => name === page)?.[1];
    document.title = (waits ? `(${waits}) ` : "") + joinFacts(place, "Kairos");
  }, [waits, page, run, rows]);
  useEffect(() => {
    if (!notice) return undefined;
    const timer = setTimeout(() => setNotice(""), NOTICE_MS);
    return () => clearTimeout(timer);
  }, [notice]);

  useKeys({
    j: () => moveFocus(1),
    k: () => moveFocus(-1),
    u: () => (location.hash = "#/runs"),
    w: () => {
      const waiting = (rows || []).filter((row) => row.waits_for_person);
      location.hash = waiting.length === 1 ? `#/runs/${waiting[0].run_id}` : "#/waits";
    },
    a: () => document.querySelector(".typed, [data-approve]")?.focus(),
    "/": () => document.getElementById("search")?.focus(),
    "?": () => setIsHelpOpen(true),
  });

  const onDone = useCallback(async (answer) => setNotice(answer.said || "Done."), []);
  const content = useMemo(() => {
    const show = (file, name, props) => html`<${Loaded} key=${`${name} ${id}`} file=${file} name=${name}
      onDone=${onDone} scope=${scope} ...${props} />`;
    switch (page) {
      case "runs": return run ? show("run", "RunPage", { id, step }) : html`<${RunsPage} rows=${rows} scope=${scope} query=${query}
        onOlder=${older} />`;
      case "waits": return show("inbox", "InboxPage");
      case "start": return show("inbox", "StartPage", { me });
      case "budget": return show("budget", "BudgetPage");
      case "mandates": return id ? show("mandates", "MandatePage", { id, query }) : show("mandates", "MandatesPage");
      case "tools": return html`<${Loaded} file="tools" name="ToolsPage" tool=${id} onDone=${onDone} />`;
      case "agents": return show("tools", "AgentsPage");
      default: return html`<div class="empty"><h1>No such page</h1><p><a class="text" href="#/runs">All runs</a></p>
        </div>`;
    }
  }, [address, scope, page === "runs" && !run && rows]);

  return html`
    <a class="skip" href="#main"
      onClick=${(event) => { event.preventDefault(); document.getElementById("main").focus(); }}>To the content</a>
    <${Navigation} page=${page === "start" ? "runs" : page} waits=${waits} isUp=${isUp} theme=${theme}
      onTheme=${onTheme} onHelp=${() => setIsHelpOpen(true)}>
      <${Scope} projects=${projects} scope=${scope} onScope=${onScope} /><//>
    <main id="main" tabindex="-1">${content}</main>
    <div class="notice" role="status" aria-live="polite">${notice}</div>
    ${isHelpOpen && html`<${HelpDialog} onClose=${() => setIsHelpOpen(false)} />`}`;
}

const Locked = ({ failure }) => html`<main class="locked"><img src="static/mark.svg" alt="" width="40" height="40" />
  <h1>This page is locked</h1><p>
    ${failure.status === 401 ? "A link opens it once, within two minutes." : failure.message}
    In a terminal, this makes a new one:</p><pre>kairos-mcp ui</pre></main>`;

/** Take the one-time code out of the address, so that it stays in no history, and go where it leads. */
function takeCode() {
  const given = new URLSearchParams(location.hash.replace(/^#/, ""));
  const code = given.get("enter");
  if (code) history.replaceState(null, "", `#${given.get("to") || "/runs"}`);
  return code;
}

async function begin() {
  document.documentElement.dataset.theme = localStorage.getItem("theme") || "auto";
  const root = document.getElementById("app");
  try {
    render(html`<${App} me=${await enter(takeCode())} />`, root);
  } catch (failure) {
    render(html`<${Locked} failure=${failure} />`, root);
    if (failure.status === 0) setTimeout(begin, 2000); // the server may come back
  }
}

begin();
addEventListener("hashchange", () => {
  if (document.querySelector(".locked") && location.hash.startsWith("#enter=")) begin();
});
