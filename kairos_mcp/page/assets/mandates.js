// Mandates: their list, and one with its schedule, cycles, lessons and what one may do with it.

import { html, useState } from "./vendor/preact-htm.js";
import { Dialog, useAct } from "./acts.js";
import { useFetched } from "./connection.js";
import { folderName, formatAgo, formatMoment, formatMoney, isInScope, joinFacts, revealHidden } from "./format.js";
import { PHASES } from "./controls.js";
import { STATUS } from "./status.js";
import { Meter } from "./view.js";
import { Failure } from "./waiting.js";

const STATES = {
  created: ["○", "never run"], active: ["●", "active"], paused_at_checkpoint: ["◆", "waits at a checkpoint"],
  paused_risk_exceeded: ["◆", "waits: too risky"], paused_goal_drift: ["◆", "waits: off its goal"],
  interrupted: ["✕", "interrupted"], terminated: ["✓", "ended"],
};
const STATE_CLASSES = { active: "working", interrupted: "failed", terminated: "completed" };
const TEMPLATE = {
  id: "links",
  goal: "Every link in docs leads to a file.",
  observe: ["file_tree"],
  allowed_actions: ["noop"],
  max_cycles: 3,
};

function MandatePill({ status }) {
  const [sign, words] = STATES[status] || ["·", status];
  const looks = STATE_CLASSES[status] || (status.startsWith("paused") ? "input_required" : "");
  return html`<span class="pill ${looks}"><i aria-hidden="true">${sign}</i>${words}</span>`;
}

function scheduleWords({ schedule, schedule_words: words }) {
  if (!schedule) return "no schedule: it runs when somebody starts it";
  return words || `${schedule.rule} (${schedule.time_zone})`;
}

const factsOf = (mandate) =>
  [
    folderName(mandate.workspace),
    scheduleWords(mandate),
    mandate.next_due && `next due ${formatMoment(mandate.next_due)}`,
    mandate.last_due && `last ${formatMoment(mandate.last_due)}`,
  ].filter(Boolean);

const addressOf = ({ mandate_id: id, workspace }) =>
  `#/mandates/${encodeURIComponent(id)}${workspace ? `?workspace=${encodeURIComponent(workspace)}` : ""}`;

/** A mandate as JSON in a text area; what isn't JSON is said here, what isn't a mandate by the server. */
function Editor({ title, text, onSave, onClose, isBusy, failure }) {
  const [draft, setDraft] = useState(text);
  const [problem, setProblem] = useState("");
  const save = (event) => {
    event.preventDefault();
    try {
      onSave(JSON.parse(draft));
      setProblem("");
    } catch (error) {
      setProblem(error.message);
    }
  };
  return html`<${Dialog} title=${title} onClose=${onClose}><form onSubmit=${save}>
    <label class="field"><span>JSON</span><textarea class="mono" rows="18" spellcheck="false" value=${draft}
      onInput=${(event) => setDraft(event.target.value)}></textarea></label>
    ${problem && html`<p class="failure" role="alert">This is not JSON: ${problem}</p>`}
      <${Failure} failure=${failure} />
    <div class="buttons"><button class="yes" disabled=${isBusy}>Save</button><button type="button"
      onClick=${onClose}>Back</button></div></form><//>`;
}

export function MandatesPage({ scope, onDone }) {
  const { value, failure, reload } = useFetched("api/mandates");
  const [isNew, setIsNew] = useState(false);
  const saving = useAct(async (answer) => {
    setIsNew(false);
    await onDone(answer);
    await reload();
  });
  if (!value) return html`<h1>Mandates</h1><${Failure} failure=${failure} />`;
  const shown = value.mandates.filter(({ workspace }) => isInScope(scope, workspace));
  return html`<header class="split"><h1>Mandates <small class="quiet">${shown.length}</small></h1><button class="button"
    onClick=${() => setIsNew(true)}>New …</button></header>
    ${isNew && html`<${Editor} title="A new mandate" text=${JSON.stringify(TEMPLATE, null, 2)} isBusy=${saving.isBusy}
      failure=${saving.failure} onClose=${() => setIsNew(false)}
      onSave=${(mandate) => saving.perform("mandate_save", { mandate })} />`}
    ${value.mandates.length === 0 && html`<div class="empty"><h2>No mandates yet</h2>
      <p>A mandate is a standing goal that an agent works on in cycles, on a schedule if you like.</p>
      <pre>kairos-mcp mandate save FILE.json</pre></div>`}
    ${shown.map((mandate) => html`<a class="card mandate" href=${addressOf(mandate)} key=${addressOf(mandate)}>
      <header class="split"><h2>${mandate.mandate_id}</h2><${MandatePill} status=${mandate.status} /></header>
      <p>${revealHidden(mandate.goal)}</p>
      <p class="quiet">
        ${joinFacts(...factsOf(mandate))}</p></a>`)}`;
}

function Cycle({ cycle }) {
  return html`<tr><td><a class="text" href="#/runs/${cycle.run_id}/cycle-${cycle.n}/${PHASES.at(-1)}">${cycle.n}</a></td>
    <td>${cycle.action || "–"} ${cycle.target && html`<code>${cycle.target}</code>`}${cycle.intent && html`<div
      class="quiet">${revealHidden(cycle.intent)}</div>`}</td>
    <td class="verdict ${cycle.verdict || ""}">${(cycle.verdict || cycle.status || "–").replaceAll("_", " ")}</td>
      <td class="n">${cycle.confidence ?? "–"}</td></tr>`;
}

export function MandatePage({ id, query, onDone }) {
  const { value, failure, reload } = useFetched("api/mandate", { id, workspace: query.get("workspace") });
  const [open, setOpen] = useState(null);
  const { perform, isBusy, failure: refused } = useAct(async (answer) => {
    const removed = open === "remove";
    setOpen(null);
    await onDone(answer);
    if (answer.run_id) location.hash = `#/runs/${answer.run_id}`;
    else if (removed) location.hash = "#/mandates";
    else await reload();
  });
  if (!value) return html`<h1>Mandate</h1><${Failure} failure=${failure} />`;
  const named = { id: value.mandate_id, workspace: value.workspace };
  const spent = value.spent_today;
  const isPaused = value.status.startsWith("paused");
  return html`<article class="mandate">
    <header class="top"><div class="state"><${MandatePill} status=${value.status} />
      <div class="controls" role="group" aria-label="Control this mandate">
        ${isPaused && value.run_id ? html`<button class="small" disabled=${isBusy}
          onClick=${() => perform("resume", { run: value.run_id })}>Resume</button>` : html`<button class="small"
          disabled=${isBusy || value.status === "active"}
          onClick=${() => perform("mandate_run", named)}>Run now</button>`}
        <button class="small" onClick=${() => setOpen("edit")}>Edit …</button><button class="small"
          onClick=${() => setOpen("remove")}>Remove …</button></div></div>
      <h1>${value.mandate_id}</h1><p>${revealHidden(value.goal)}</p>
      <p class="facts" title=${value.workspace}>
        ${factsOf(value).map((fact) => html`<span>${fact}</span>`)}</p></header>
    ${!open && html`<${Failure} failure=${refused} />`}
    ${value.hint && html`<p class="still">${value.hint}</p>`}
    ${open === "edit" && html`<${Editor} title="Edit ${value.mandate_id}" text=${JSON.stringify(value.mandate, null, 2)}
      isBusy=${isBusy} failure=${refused} onClose=${() => setOpen(null)}
      onSave=${(mandate) => perform("mandate_edit", { ...named, digest: value.digest, mandate })} />`}
    ${open === "remove" && html`<${Dialog} title="Remove ${value.mandate_id}?" onClose=${() => setOpen(null)}>
      <p>It is not run again. Its runs and their record stay.</p><${Failure} failure=${refused} />
      <div class="buttons"><button class="danger" disabled=${isBusy}
        onClick=${() => perform("mandate_remove", { ...named, digest: value.digest })}>Remove</button>
        <button onClick=${() => setOpen(null)}>Back</button></div><//>`}
    ${spent && html`<div class="meters"><${Meter} label="cost today" used=${spent.usd} limit=${value.limits_today?.usd}
      format=${formatMoney} /><${Meter} label="tokens today" used=${spent.total_tokens}
      limit=${value.limits_today?.total_tokens} /><${Meter} label="model calls today" used=${spent.model_calls}
      limit=${value.limits_today?.model_calls} /></div>`}
    <section class="card"><h2>Cycles</h2>${value.cycles.length ? html`<div class="scroll" tabindex="0" role="group"
      aria-label="Cycles"><table class="plain"><thead><tr><th>cycle</th><th>did</th><th>verdict</th>
      <th class="n">confidence</th></tr></thead>
      <tbody>${value.cycles.map((cycle) => html`<${Cycle} cycle=${cycle} />`)}</tbody></table></div>` : html`<p
        class="quiet">None yet.</p>`}</section>
    ${value.lessons.length > 0 && html`<section class="card"><h2>What it has learned</h2><ul>
      ${value.lessons.map((lesson) => html`<li>${revealHidden(lesson)}</li>`)}</ul></section>`}
    ${value.runs.length > 0 && html`<section class="card"><h2>Its runs</h2><ul class="then">
      ${value.runs.map((run) => html`<li><a href="#/runs/${run.run_id}"><code>${run.run_id}</code><span>
      ${joinFacts(STATUS[run.status][1], run.stop_words, formatMoney(run.usd), formatAgo(run.started_at))}
      </span></a></li>`)}</ul></section>`}
  </article>`;
}
