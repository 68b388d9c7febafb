// The list of runs with its filters and its search, the inbox of what waits, and the form that starts something.

import { html, useEffect, useMemo, useState } from "./vendor/preact-htm.js";
import { get, useFetched } from "./connection.js";
import { formatAgo, formatCount, formatMoney, plural, revealHidden } from "./format.js";
import { Decision, Failure, Field, useAct } from "./acts.js";
import { DefinitionCard } from "./tools.js";
import { hasEnded, isDecidedByPerson, StatusPill, WaitingCard } from "./view.js";

const PAGE_SIZE = 60;
const SEARCH_MS = 200; // after the last key

const KINDS = [
  ["all", () => true],
  ["waiting", (row) => row.status === "input_required"],
  ["working", (row) => row.status === "working"],
  ["paused", (row) => row.status === "paused"],
  ["ended", hasEnded],
];
const FILTERS = [["workspace", "project"], ["mandate", "mandate"], ["model", "model"]];
const folderName = (path) => path?.split("/").at(-1);
const modelName = (row) => row.model?.split(":").at(-1) || row.route;

/** The address of the list with these filters; empty ones are left out. */
const listAddress = (filters) => {
  const query = new URLSearchParams(Object.entries(filters).filter(([, value]) => value && value !== "all"));
  return `#/runs${query.size ? `?${query}` : ""}`;
};

function RunRow({ row }) {
  const used = row.rounds ? plural(row.rounds, "round") : plural(row.model_calls, "call");
  return html`<li><a href="#/runs/${row.run_id}">
    <${StatusPill} run=${row} />
    <span class="goal">${revealHidden(row.goal || row.run_id)}${row.excerpt && row.found === "summary" && html`<small>${revealHidden(row.excerpt)}</small>`}</span>
    <span class="by">${row.mandate && html`<em>${row.mandate}</em> `}${row.workspace && html`<span>${folderName(row.workspace)}</span> `}${modelName(row)}</span>
    <span class="n">${used}</span><span class="n">${formatCount(row.tokens)}</span><span class="n">${formatMoney(row.usd)}</span>
    <span class="when">${formatAgo(row.started_at)}</span>
  </a></li>`;
}

const RunList = ({ rows }) => html`<ul class="runs">${rows.map((row) => html`<${RunRow} key=${row.run_id} row=${row} />`)}</ul>`;

/** A search over all runs, beginning when the typing rests. */
function useSearch(text) {
  const [found, setFound] = useState(null);
  useEffect(() => {
    setFound(null);
    if (text.trim().length < 2) return undefined;
    let isCurrent = true;
    const timer = setTimeout(async () => {
      const answer = await get("api/search", { q: text.trim() }).catch((failure) => ({ rows: [], searched: 0, failure }));
      if (isCurrent) setFound(answer);
    }, SEARCH_MS);
    return () => {
      isCurrent = false;
      clearTimeout(timer);
    };
  }, [text]);
  return found;
}

export function CallOut({ rows }) {
  const waiting = rows.filter((row) => row.waiting.some(isDecidedByPerson));
  if (!waiting.length) return null;
  return html`<a class="call-out" href="#/waits"><b>◆ ${waiting.length === 1 ? "One run waits" : `${waiting.length} runs wait`} for your decision</b>
    <span>${revealHidden(waiting.at(-1).goal)}</span></a>`;
}

const EmptyList = () => html`<div class="empty"><h2>No runs yet</h2>
  <p>An agent starts one with the tool <code>planner_run</code>. To see one now, in a terminal:</p><pre>kairos-mcp demo --slow</pre>
  <p>or <a class="text" href="#/start">start one here</a>.</p></div>`;

export function RunsPage({ rows, query, onOlder }) {
  const filters = Object.fromEntries(query);
  const [text, setText] = useState("");
  const found = useSearch(text);
  const [hasMore, setHasMore] = useState(true);
  const show = filters.show || "all";
  const filtered = useMemo(() => (rows || []).filter((row) => FILTERS.every(([name]) => !filters[name] || row[name] === filters[name])), [rows, query]);
  if (!rows) return html`<h1>Runs</h1><p class="quiet" aria-busy="true">…</p>`;
  const shown = found ? found.rows : filtered.filter(KINDS.find(([name]) => name === show)?.[1] || (() => true));
  const older = async () => setHasMore((await onOlder()) && true);
  return html`<header class="split"><h1>Runs</h1><div class="tools">
      <input type="search" id="search" placeholder="Search goals and results" aria-label="Search goals and results" value=${text} onInput=${(event) => setText(event.target.value)} />
      <a class="button" href="#/start">Start …</a></div></header>
    <${CallOut} rows=${rows} />
    ${rows.length === 0 ? html`<${EmptyList} />` : html`
      <div class="filters">
        <div class="tabs" role="group" aria-label="Which runs">${KINDS.map(([name, fits]) => html`<a role="button" aria-pressed=${String(show === name)} href=${listAddress({ ...filters, show: name })}>${name} <small>${filtered.filter(fits).length}</small></a>`)}</div>
        ${FILTERS.map(([name, label]) => {
          const values = [...new Set(rows.map((row) => row[name]).filter(Boolean))].sort();
          return values.length > 1 && html`<select aria-label="Only of this ${label}" value=${filters[name] || ""} onChange=${(event) => (location.hash = listAddress({ ...filters, [name]: event.target.value }))}>
            <option value="">every ${label}</option>${values.map((value) => html`<option value=${value}>${name === "workspace" ? folderName(value) : value}</option>`)}</select>`;
        })}
      </div>
      ${found && html`<p class="quiet" role="status">${plural(found.rows.length, "run")} of the newest ${found.searched} ${found.rows.length === 1 ? "has" : "have"} “${text.trim()}” in goal or result.</p>`}
      ${shown.length ? html`<${RunList} rows=${shown} />` : !found && html`<p class="empty small">${show === "waiting" ? "Nothing waits." : "None here."}</p>`}
      ${!found && hasMore && rows.length >= PAGE_SIZE && html`<button class="earlier" onClick=${older}>Show older runs</button>`}`}`;
}

/** The inbox: one item after another, the oldest first. The one on the screen stays until it is decided. */
export function InboxPage({ onDone }) {
  const { value, failure, reload } = useFetched("api/waits");
  const [current, setCurrent] = useState(null);
  const items = useMemo(() => [
    ...(value?.runs || []).flatMap(({ run, items: own }) => own.map((item) => ({ id: `${run.run_id}/${item.key}/${item.digest || ""}`, run, item }))),
    ...(value?.definitions || []).map((definition) => ({ id: `${definition.address}/${definition.hash}`, definition })),
  ], [value]);
  const shown = items.find(({ id }) => id === current) || items[0];
  useEffect(() => setCurrent(shown?.id ?? null), [shown?.id]);
  if (!value) return html`<h1>Inbox</h1><${Failure} failure=${failure} />`;
  if (!shown) return html`<h1>Inbox</h1><div class="empty"><h2>Nothing waits for you</h2><p>What an agent may not do alone is shown here, and in a terminal by <code>kairos-mcp inbox</code>.</p></div>`;
  const done = async (answer) => {
    await onDone(answer);
    await reload();
  };
  const rest = items.filter(({ id }) => id !== shown.id);
  return html`<header class="split"><h1>Inbox</h1><span class="quiet">${plural(items.length, "item")}</span></header>
    ${shown.run && html`<p class="of-run"><a class="text" href="#/runs/${shown.run.run_id}">${revealHidden(shown.run.goal)}</a>
      <span class="quiet">${[shown.run.mandate, folderName(shown.run.workspace), shown.run.model || shown.run.route, formatMoney(shown.run.usd), formatAgo(shown.run.started_at)].filter(Boolean).join(" · ")}</span></p>
      <${WaitingCard} key=${shown.id} item=${shown.item}><${Decision} run=${shown.run} item=${shown.item} onDone=${done} /><//>`}
    ${shown.definition && html`<${DefinitionCard} key=${shown.id} definition=${shown.definition} onDone=${done} />`}
    ${rest.length > 0 && html`<h2 class="after">Then</h2><ul class="then">${rest.map(({ id, run, item, definition }) => html`<li key=${id}><button onClick=${() => setCurrent(id)}>
      <code>${item ? item.name || item.kind : definition.address}</code><span>${run ? revealHidden(run.goal) : "a tool’s definition"}</span></button></li>`)}</ul>`}`;
}

/** A form that starts a planner run or a team. */
export function StartPage({ me, onDone }) {
  const [kind, setKind] = useState("start");
  const [fields, setFields] = useState({});
  const { perform, isBusy, failure } = useAct(async (answer) => {
    await onDone(answer);
    location.hash = `#/runs/${answer.run_id}`;
  });
  const bind = (name) => ({ value: fields[name] ?? "", onInput: (event) => setFields({ ...fields, [name]: event.target.value }) });
  const send = (event) => {
    event.preventDefault();
    const { usd, rounds, tools, agent, ...rest } = fields;
    const limits = { ...(usd && { usd: Number(usd) }), ...(rounds && { rounds: Number(rounds) }) };
    const own = kind === "start" ? { agent, tools: tools?.split(/[\s,]+/).filter(Boolean) } : {};
    const given = { workspace: me.workspaces[0], ...rest, ...own, ...(Object.keys(limits).length && { limits }) };
    perform(kind, Object.fromEntries(Object.entries(given).filter(([, value]) => value?.length !== 0 && value != null)));
  };
  return html`<h1>Start</h1>
    ${!me.route && html`<section class="still"><h2>No model is configured</h2><p>A run that is started here needs a provider: set <code>KAIROS_MODEL</code> and its key where this server starts. Runs of an agent go on without.</p></section>`}
    <form class="card" onSubmit=${send}>
      <div class="tabs" role="group" aria-label="What to start">${[["start", "one agent"], ["start_team", "a team"]].map(([name, label]) => html`<button type="button" aria-pressed=${String(kind === name)} onClick=${() => setKind(name)}>${label}</button>`)}
        <a role="button" href="#/mandates">a mandate</a></div>
      <${Field} label="Goal"><textarea rows="4" required ...${bind("goal")}></textarea><//>
      <div class="fields">
        ${kind === "start" && html`<${Field} label="Agent"><select ...${bind("agent")}><option value="">none: the plain loop</option>${(me.agents || []).map((name) => html`<option>${name}</option>`)}</select><//>
          <${Field} label="Tools" hint="empty: all that only read"><input ...${bind("tools")} placeholder="read_file, search_*" /><//>`}
        ${me.workspaces.length > 1 && html`<${Field} label="Project"><select ...${bind("workspace")} value=${fields.workspace ?? me.workspaces[0]}>${me.workspaces.map((path) => html`<option value=${path}>${folderName(path)}</option>`)}</select><//>`}
        <${Field} label="At most dollars"><input type="number" min="0" step="any" ...${bind("usd")} placeholder=${me.limits?.usd ?? "no limit"} /><//>
        <${Field} label="At most rounds"><input type="number" min="1" step="1" ...${bind("rounds")} placeholder=${me.limits?.rounds ?? "no limit"} /><//>
      </div>
      <${Failure} failure=${failure} />
      <div class="buttons"><button class="yes" disabled=${isBusy || !me.route}>Start</button><span class="quiet">${me.model || me.route || ""}</span></div>
    </form>`;
}
