// The inbox of what waits for a person, and the form that starts something.

import { html, useEffect, useMemo, useState } from "./vendor/preact-htm.js";
import { Decision, Field, useAct } from "./acts.js";
import { useFetched } from "./connection.js";
import { folderName, formatAgo, formatMoney, isInScope, joinFacts, nameAmong, plural, revealHidden } from "./format.js";
import { DefinitionCard } from "./tools.js";
import { HeldUp } from "./view.js";
import { Failure, useArmed, WaitingCard } from "./waiting.js";

const factsOf = (run) =>
  joinFacts(run.mandate, folderName(run.workspace), run.model || run.route, formatMoney(run.usd), formatAgo(run.started_at));

/** A run that stands still until a person resumes it, or ends it. */
function PausedCard({ run, pause, onDone }) {
  const { perform, isBusy, failure } = useAct(onDone);
  const isReady = useArmed(run.run_id) && !isBusy;
  return html`<section class="waiting" aria-label="Waits"><${HeldUp} ...${pause} />
    <div class="buttons"><button data-approve disabled=${!isReady}
      onClick=${() => perform("resume", { run: run.run_id })}>Resume</button>
      <a class="text" href="#/runs/${run.run_id}">look at the run</a></div>
    <${Failure} failure=${failure} /></section>`;
}

/** What the badge counts: runs, however many items each has, and definitions. */
const countsOf = ({ runs, definitions }) =>
  [[runs, "run"], [definitions, "definition"]].map(([list, noun]) => list.length && plural(list.length, noun));

/** The inbox: one item after another, the oldest first. The one on the screen stays until it is decided. */
export function InboxPage({ scope, onDone }) {
  const { value, failure, reload } = useFetched("api/waits");
  const [current, setCurrent] = useState(null);
  const items = useMemo(() => [
    ...(value?.runs || []).filter(({ run }) => isInScope(scope, run.workspace)).flatMap(({ run, items: own, held_up_by: reasons, next }) => [
      ...own.map((item) => ({ id: [run.run_id, item.key, item.digest].join("/"), run, item })),
      ...(run.status === "paused" && !own.length ? [{ id: `${run.run_id}/paused`, run, pause: { reasons, next } }] : []),
    ]),
    ...(value?.definitions || []).map((definition) => ({ id: `${definition.address}/${definition.hash}`, definition })),
  ], [value, scope]);
  const elsewhere = (value?.runs || []).filter(({ run }) => !isInScope(scope, run.workspace)).length;
  const shown = items.find(({ id }) => id === current) || items[0];
  useEffect(() => setCurrent(shown?.id ?? null), [shown?.id]);
  if (!value) return html`<h1>Inbox</h1><${Failure} failure=${failure} />`;
  if (!shown) return html`<h1>Inbox</h1><div class="empty"><h2>Nothing waits for you</h2>
    ${elsewhere > 0 && html`<p>${plural(elsewhere, "run")} of other projects: choose “every project”.</p>`}
    <p>What an agent may not do alone is shown here, and in a terminal by <code>kairos-mcp inbox</code>.</p></div>`;
  const done = async (answer) => {
    await onDone(answer);
    await reload();
  };
  const rest = items.filter(({ id }) => id !== shown.id);
  return html`<header class="split"><h1>Inbox</h1><span class="quiet">
      ${joinFacts(...countsOf(value), elsewhere > 0 && `${elsewhere} of other projects`)}</span></header>
    ${shown.run && html`<p class="of-run"><a class="text" href="#/runs/${shown.run.run_id}">
      ${revealHidden(shown.run.goal)}</a>
      <span class="quiet">
        ${factsOf(shown.run)}</span></p>
      ${shown.item ? html`<${WaitingCard} key=${shown.id} item=${shown.item}><${Decision} run=${shown.run}
        item=${shown.item} onDone=${done} /><//>` : html`<${PausedCard} key=${shown.id} run=${shown.run}
        pause=${shown.pause} onDone=${done} />`}`}
    ${shown.definition && html`<${DefinitionCard} key=${shown.id} definition=${shown.definition} onDone=${done} />`}
    ${rest.length > 0 && html`<h2 class="after">Then</h2><ul class="then">
      ${rest.map(({ id, run, item, definition }) => html`<li key=${id}><button onClick=${() => setCurrent(id)}>
      <code>${definition ? definition.address : item ? item.name || item.kind : "paused"}</code><span>
        ${run ? revealHidden(run.goal) : "a tool’s definition"}</span></button></li>`)}</ul>`}`;
}

/** A form that starts a planner run or a team, in the project that is looked at. */
export function StartPage({ me, scope, onDone }) {
  const here = me.workspaces.includes(scope) ? scope : me.workspaces[0];
  const [kind, setKind] = useState("start");
  const [fields, setFields] = useState({});
  const { perform, isBusy, failure } = useAct(async (answer) => {
    await onDone(answer);
    location.hash = `#/runs/${answer.run_id}`;
  });
  const bind = (name) => ({
    value: fields[name] ?? "",
    onInput: (event) => setFields({ ...fields, [name]: event.target.value }),
  });
  const send = (event) => {
    event.preventDefault();
    const { usd, rounds, tools, agent, ...rest } = fields;
    const limits = { ...(usd && { usd: Number(usd) }), ...(rounds && { rounds: Number(rounds) }) };
    const own = kind === "start" ? { agent, tools: tools?.split(/[\s,]+/).filter(Boolean) } : {};
    const given = { workspace: here, ...rest, ...own, ...(Object.keys(limits).length && { limits }) };
    const isSet = ([, value]) => value != null && value.length !== 0;
    perform(kind, Object.fromEntries(Object.entries(given).filter(isSet)));
  };
  return html`<h1>Start</h1>
    ${!me.route && html`<section class="still"><h2>No model is configured</h2>
      <p>A run that is started here needs a provider: set <code>KAIROS_MODEL</code> and its key
        where this server starts. Runs that agents have started go on without.</p></section>`}
    <form class="card" onSubmit=${send}>
      <div class="tabs" role="group" aria-label="What to start">
        ${[["start", "one agent"], ["start_team", "a team"]].map(([name, label]) => html`<button type="button"
        aria-pressed=${String(kind === name)} onClick=${() => setKind(name)}>${label}</button>`)}
        <a role="button" href="#/mandates">a mandate</a></div>
      <${Field} label="Goal"><textarea rows="4" required ...${bind("goal")}></textarea><//>
      <div class="fields">
        ${kind === "start" && html`<${Field} label="Agent"><select ...${bind("agent")}><option
          value="">none: the plain loop</option>${(me.agents || []).map((name) => html`<option>${name}</option>`)}
          </select><//>
          <${Field} label="Tools" hint="empty: all that only read"><input ...${bind("tools")}
            placeholder="read_file, search_*" /><//>`}
        ${me.workspaces.length > 1 && html`<${Field} label="Project"><select ...${bind("workspace")}
          value=${fields.workspace ?? here}>${me.workspaces.map((path) => html`<option value=${path} title=${path}>
          ${nameAmong(path, me.workspaces)}</option>`)}</select><//>`}
        <${Field} label="At most dollars"><input type="number" min="0" step="any" ...${bind("usd")}
          placeholder=${me.limits?.usd ?? "no limit"} /><//>
        <${Field} label="At most rounds"><input type="number" min="1" step="1" ...${bind("rounds")}
          placeholder=${Math.min(me.default_rounds, me.limits?.rounds ?? Infinity)} /><//>
      </div>
      <${Failure} failure=${failure} />
      <div class="buttons"><button class="yes" disabled=${isBusy || !me.route}>Start</button><span class="quiet">
        ${me.model || me.route || ""}</span></div>
    </form>`;
}
