// The list of runs, with its filters and its search.

import { html, useEffect, useMemo, useState } from "./vendor/preact-htm.js";
import { get } from "./connection.js";
import { folderName, formatAgo, formatCount, formatMoney, isInScope, plural, revealHidden } from "./format.js";
import { hasEnded, StatusPill } from "./status.js";

const PAGE_SIZE = 60;
const SEARCH_MS = 200; // after the last key

const KINDS = [
  ["all", () => true],
  ["for you", (row) => row.waits_for_person],
  ["working", (row) => ["working", "input_required"].includes(row.status) && !row.waits_for_person],
  ["paused", (row) => row.status === "paused"],
  ["ended", hasEnded],
];
const FILTERS = ["mandate", "model"];
const modelName = (row) => row.model?.split(":").at(-1) || row.route;

/** The address of the list with these filters; empty ones are left out. */
const listAddress = (filters) => {
  const query = new URLSearchParams(Object.entries(filters).filter(([, value]) => value && value !== "all"));
  return `#/runs${query.size ? `?${query}` : ""}`;
};

function RunRow({ row }) {
  return html`<li><a href="#/runs/${row.run_id}">
    <${StatusPill} run=${row} />
    <span class="goal">${revealHidden(row.goal || row.run_id)}${row.excerpt && row.found === "summary" && html`<small>
      ${revealHidden(row.excerpt)}</small>`}</span>
    <span class="by">${row.mandate && html`<em>${row.mandate}</em> `}${row.workspace && html`<span>
      ${folderName(row.workspace)}</span> `}${modelName(row)}</span>
    <span class="n">${row.work}</span><span class="n">${formatCount(row.tokens)}</span><span class="n">
      ${formatMoney(row.usd)}</span>
    <span class="when">${formatAgo(row.started_at)}</span>
  </a></li>`;
}

const RunList = ({ rows }) => html`<p class="heads run" aria-hidden="true"><span>status</span><span>goal</span><span>
    project, model</span><span>work</span><span>tokens</span><span>cost</span><span>started</span></p>
  <ul class="runs">${rows.map((row) => html`<${RunRow} key=${row.run_id}
  row=${row} />`)}</ul>`;

/** A search over all runs, beginning when the typing rests. */
function useSearch(text) {
  const [found, setFound] = useState(null);
  useEffect(() => {
    setFound(null);
    if (text.trim().length < 2) return undefined;
    let isCurrent = true;
    const timer = setTimeout(async () => {
      const answer = await get("api/search", { q: text.trim() }).catch(() => ({ rows: [], searched: 0 }));
      if (isCurrent) setFound(answer);
    }, SEARCH_MS);
    return () => {
      isCurrent = false;
      clearTimeout(timer);
    };
  }, [text]);
  return found;
}

function CallOut({ rows }) {
  const waiting = rows.filter((row) => row.waits_for_person);
  if (!waiting.length) return null;
  return html`<a class="call-out" href="#/waits">
    <b>◆ ${waiting.length === 1 ? "One run waits" : `${waiting.length} runs wait`} for you</b>
    <span>${revealHidden(waiting.at(-1).goal)}</span></a>`;
}

const EmptyList = () => html`<div class="empty"><h2>No runs yet</h2>
  <p>An agent starts one with the tool <code>planner_run</code>. To see one now, in a terminal:</p>
    <pre>kairos-mcp demo --slow</pre>
  <p>or <a class="text" href="#/start">start one here</a>.</p></div>`;

export function RunsPage({ rows: all, scope, query, onOlder }) {
  const rows = useMemo(() => all && all.filter((row) => isInScope(scope, row.workspace)), [all, scope]);
  const filters = Object.fromEntries(query);
  const [text, setText] = useState("");
  const found = useSearch(text);
  const [hasMore, setHasMore] = useState(true);
  const show = filters.show || "all";
  const filtered = useMemo(() => {
    const fits = (row) => FILTERS.every((name) => !filters[name] || row[name] === filters[name]);
    return (rows || []).filter(fits);
  }, [rows, query]);
  if (!rows) return html`<h1>Runs</h1><p class="quiet" aria-busy="true">…</p>`;
  const shown = found ? found.rows.filter((row) => isInScope(scope, row.workspace)) : filtered.filter(KINDS.find(([name]) => name === show)?.[1] || (() => true));
  const older = async () => setHasMore((await onOlder()) && true);
  return html`<header class="split"><h1>Runs</h1><div class="tools">
      <input type="search" id="search" placeholder="Search goals and results" aria-label="Search goals and results"
        value=${text} onInput=${(event) => setText(event.target.value)} />
      <a class="button" href="#/start">Start …</a></div></header>
    <${CallOut} rows=${rows} />
    ${rows.length === 0 ? (all.length ? html`<p class="empty small">No runs of this project.</p>` : html`<${EmptyList} />`)
    : html`
      <div class="filters">
        <div class="tabs" role="group" aria-label="Which runs">${KINDS.map(([name, fits]) => html`<a role="button"
          aria-pressed=${String(show === name)} href=${listAddress({ ...filters, show: name })}>${name} <small>
          ${filtered.filter(fits).length}</small></a>`)}</div>
        ${FILTERS.map((name) => {
          const values = [...new Set(rows.map((row) => row[name]).filter(Boolean))].sort();
          return values.length > 1 && html`<select aria-label="Only of this ${name}" value=${filters[name] || ""}
            onChange=${(event) => (location.hash = listAddress({ ...filters, [name]: event.target.value }))}>
            <option value="">every ${name}</option>${values.map((value) => html`<option value=${value}>
              ${value}</option>`)}</select>`;
        })}
      </div>
      ${found && html`<p class="quiet" role="status">
        Found “${text.trim()}” in ${plural(shown.length, "run")} of the newest ${found.searched}.</p>`}
      ${shown.length ? html`<${RunList} rows=${shown} />` : !found && html`<p class="empty small">
        ${show === "for you" ? "Nothing waits for you." : "None here."}</p>`}
      ${!found && hasMore && all.length >= PAGE_SIZE && html`<button class="earlier"
        onClick=${older}>Show older runs</button>`}`}`;
}
