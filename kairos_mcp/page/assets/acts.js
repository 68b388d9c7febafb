// What a person does: decide, settle, answer, control a run, start one. Each act names exactly what was on the screen.

import { html, useEffect, useRef, useState } from "./vendor/preact-htm.js";
import { act, get } from "./connection.js";
import { CONTROLS, PHASES, ROUTES } from "./controls.js";
import { formatPath, formatUnit, revealHidden } from "./format.js";
import { UNITS } from "./registers.js";
import { hasEnded, isDecidedByPerson } from "./status.js";
import { DecisionForm, Failure, useRequest } from "./waiting.js";

/** An act of the page with its state; `onDone(answer)` once the server has carried it out. */
export const useAct = (onDone) => useRequest(async (name, fields) => onDone(await act(name, fields)));

/** How an item that waits is decided or answered, or by whom. */
export function Decision({ run, item, onDone }) {
  const props = { run, item, key: item.digest || item.key };
  if (isDecidedByPerson(item)) {
    return html`<${DecisionForm} ...${props} decide=${async (name, fields) => onDone(await act(name, fields))} />`;
  }
  if (ROUTES[run.route]?.answeredBy === "caller") return html`<${CallerAnswer} ...${props} onDone=${onDone} />`;
  return html`<p class="quiet">It is answered by whoever called, or by a client's model; nobody else is asked.</p>`;
}

/** What a request says: its conversation, or the arguments of a call. */
const textOf = ({ messages, arguments: values }) =>
  messages ? messages.map(({ role, content }) => `${role}: ${content}`).join("\n\n") : JSON.stringify(values, null, 2);

function CallerAnswer({ run, item, onDone }) {
  const [text, setText] = useState("");
  const [request, setRequest] = useState(null);
  const { perform, isBusy, failure } = useAct(onDone);
  const id = `${run.run_id}-${item.key}`;
  const look = async () => setRequest((await get("api/item", { run: run.run_id, key: item.key })).item);
  return html`<div class="decision">
    ${request
      ? html`<pre tabindex="0">
        ${revealHidden(textOf(request))}</pre>`
      : html`<p><button class="link" onClick=${look}>Show what is asked</button></p>`}
    <label for="answer-${id}">${item.kind === "tool_call" ? "Result of the call" : "Answer in the model’s place"}
      </label>
    <textarea id="answer-${id}" rows="4" value=${text} onInput=${(event) => setText(event.target.value)}></textarea>
    <div class="buttons"><button data-approve disabled=${isBusy || !text.trim()}
      onClick=${() => perform("answer", { run: run.run_id, answers: { [item.key]: { content: text } } })}>
      Answer</button></div>
    <${Failure} failure=${failure} />
  </div>`;
}

/** A dialog over the page: Escape and "Back" close it; the focus goes where it was. */
export function Dialog({ title, onClose, children }) {
  const dialog = useRef(null);
  useEffect(() => {
    const before = document.activeElement;
    dialog.current.showModal();
    return () => before?.isConnected && before.focus();
  }, []);
  return html`<dialog ref=${dialog} aria-label=${title} onClose=${onClose}
    onClick=${(event) => event.target === dialog.current && onClose()}>
    <h2>${title}</h2>${children}</dialog>`;
}

/** A form in a dialog: `fields` are its inputs, `onSubmit` is called for the button `submit`. */
function FormDialog({ title, submit, isDangerous, onSubmit, onClose, isBusy, failure, children }) {
  const send = (event) => {
    event.preventDefault();
    onSubmit();
  };
  return html`<${Dialog} title=${title} onClose=${onClose}><form onSubmit=${send}>
    ${children}
    <${Failure} failure=${failure} />
    <div class="buttons">
      <button class=${isDangerous ? "danger" : "yes"} disabled=${isBusy}>${submit}</button>
      <button type="button" onClick=${onClose}>Back</button>
    </div>
  </form><//>`;
}

export function Field({ label, hint, children }) {
  return html`<label class="field"><span>${label}${hint && html` <small class="quiet">${hint}</small>`}</span>
    ${children}</label>`;
}

// How a field is given: its input, and its value before that.
const INPUTS = { limits: [LimitsInput, {}], route: [RouteInput, "auto"], text: [TextInput, ""] };

function LimitsInput({ run, value, onChange }) {
  const set = UNITS.filter(({ name }) => run.remaining[name] != null);
  return html`${set.length === 0 && html`<p>None of its limits can be extended: it has none.</p>`}
    ${set.map(({ name, label, words }) => html`<${Field} label="More ${label}" hint="${formatUnit(words, run.remaining[name])} left">
      <input type="number" min="0" step=${words === "$" || words === "s" ? "any" : 1} value=${value[name] ?? ""}
        onInput=${(event) => onChange({ ...value, [name]: Number(event.target.value) || undefined })} /><//>`)}`;
}

function RouteInput({ run, label, value, onChange }) {
  return html`<p class="quiet">Now its model is reached by: ${ROUTES[run.route]?.about || run.route}.</p>
    <${Field} label=${label}><select value=${value} onChange=${(event) => onChange(event.target.value)}>
      ${Object.entries(ROUTES).map(([name, { about }]) => html`<option value=${name}>${about}</option>`)}</select><//>`;
}

function TextInput({ label, value, onChange }) {
  return html`<${Field} label=${label}><input value=${value} onInput=${(event) => onChange(event.target.value)} /><//>`;
}

/** The dialog of an operation: what it says, and its fields. */
function ControlDialog({ run, control, perform, ...dialog }) {
  const before = control.fields.map(({ name, input }) => [name, INPUTS[input][1]]);
  const [given, setGiven] = useState(Object.fromEntries(before));
  return html`<${FormDialog} title=${control.title || control.label} submit=${control.label}
    isDangerous=${control.isDangerous} ...${dialog}
    onSubmit=${() => perform(control.name, { run: run.run_id, ...given })}>
    ${control.note && html`<p class=${control.isDangerous ? "" : "quiet"}>${control.note}</p>`}
    ${control.fields.map(({ name, label, input }) => html`<${INPUTS[input][0]} run=${run} label=${label}
      value=${given[name]} onChange=${(value) => setGiven({ ...given, [name]: value })} />`)}
  <//>`;
}

const ROUND = /round-\d+$/;
/** Whether a fork can begin at a group of steps: a round, a phase, a plan, a team's answer. */
const isForkPoint = (name) =>
  ROUND.test(name) || PHASES.includes(name.replace(/^cycle-\d+\//, "")) || /^(plan|replan-\d+|synthesis)$/.test(name);

function ForkDialog({ run, timeline, ...dialog }) {
  const points = timeline.groups.map((group) => group.name).filter(isForkPoint);
  const [round, setRound] = useState(points.at(-1));
  const [goal, setGoal] = useState(ROUND.test(round) ? run.goal : "");
  return html`<${FormDialog} title="Fork this run" submit="Start the fork" ...${dialog}
    onSubmit=${() => dialog.perform("fork", { run: run.run_id, round, ...(goal.trim() && { goal }) })}>
    <p class="quiet">A new run goes on with all that this one had been answered before that point, with limits and
      approvals of its own. Files stay as they are now. Without words it asks there the same once more.</p>
    <${Field} label="From before"><select value=${round} onChange=${(event) => setRound(event.target.value)}>
      ${points.map((name) => html`<option value=${name}>${formatPath(name)}</option>`)}</select><//>
    <${Field} label="What to do next"><textarea rows="3" value=${goal}
      onInput=${(event) => setGoal(event.target.value)}></textarea><//>
  <//>`;
}

/** The button that goes on from a run that ended early, as its `next` would. */
export function Again({ run, onDone }) {
  const { perform, isBusy, failure } = useAct(async (answer) => {
    await onDone(answer);
    location.hash = `#/runs/${answer.run_id}`;
  });
  const { tool, arguments: given } = run.next || {};
  if (tool !== "planner_run" || !given.continues) return null;
  const about = "Start a new run that goes on from this one, with limits of its own";
  return html`<div class="buttons"><button class="yes" disabled=${isBusy} title=${about}
    onClick=${() => perform("fork", { run: given.continues, round: given.from, goal: given.goal, agent: given.agent })}>
    ${run.status === "failed" ? "Try again" : "Go on"}</button><span class="quiet">${about}.</span></div>
    <${Failure} failure=${failure} />`;
}

const FORK = {
  name: "fork",
  label: "Fork",
  rest: "as a new run",
  about: "Start a new run from one of its steps; this one stays as it is",
};

/** The buttons of a run: those that make sense as it stands. */
export function Controls({ run, timeline, onDone }) {
  const [open, setOpen] = useState(null);
  const { perform, isBusy, failure } = useAct(async (answer) => {
    setOpen(null);
    await onDone(answer);
    if (answer.run_id && answer.run_id !== run.run_id) location.hash = `#/runs/${answer.run_id}`; // a fork
  });
  const isShown = { open: true, paused: run.status === "paused", moving: run.status !== "paused" };
  const canFork = timeline.groups.some((group) => isForkPoint(group.name));
  const button = (control) => {
    const { name, label, rest, about, isDangerous } = control;
    const asks = control === FORK || control.title || control.fields.length > 0;
    return html`<button class="small ${isDangerous ? "dangerous" : ""}" disabled=${isBusy} title=${about}
      onClick=${() => (asks ? setOpen(control) : perform(name, { run: run.run_id }))}>
      ${label}${rest && html`<span class="rest"> ${rest}</span>`}</button>`;
  };
  const shown = hasEnded(run) ? [] : CONTROLS.filter((control) => isShown[control.shown]);
  return html`<div class="controls" role="group" aria-label="Control this run">
    ${shown.filter((control) => !control.isDangerous).map(button)}
    ${canFork && button(FORK)}
    ${shown.filter((control) => control.isDangerous).map(button)}
    ${!open && html`<${Failure} failure=${failure} />`}
    ${open && html`<${open === FORK ? ForkDialog : ControlDialog} control=${open} run=${run} timeline=${timeline}
      perform=${perform} isBusy=${isBusy} failure=${failure} onClose=${() => setOpen(null)} />`}
  </div>`;
}
