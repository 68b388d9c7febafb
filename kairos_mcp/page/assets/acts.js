// What a person does: decide, settle, answer, control a run, start one. Each act names exactly what was on the screen.

import { html, useEffect, useRef, useState } from "./vendor/preact-htm.js";
import { act, get } from "./connection.js";
import { formatPath, formatUnit, revealHidden } from "./format.js";
import { ROUTES, UNITS } from "./registers.js";
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

function ExtendDialog({ run, ...dialog }) {
  const [more, setMore] = useState({});
  const set = UNITS.filter(({ name }) => run.remaining[name] != null);
  const limits = Object.fromEntries(Object.entries(more).filter(([, value]) => value > 0));
  return html`<${FormDialog} title="Allow more" submit="Extend" ...${dialog}
    onSubmit=${() => dialog.perform("extend", { run: run.run_id, limits })}>
    <p class="quiet">Added to what is left of this run's limits, as far as the configuration allows.</p>
    ${set.length === 0 && html`<p>None of its limits can be extended: it has none.</p>`}
    ${set.map(({ name, label, words }) => html`<${Field} label="More ${label}" hint="${formatUnit(words, run.remaining[name])} left">
      <input type="number" min="0" step=${words === "$" || words === "s" ? "any" : 1} value=${more[name] ?? ""}
        onInput=${(event) => setMore({ ...more, [name]: Number(event.target.value) })} /><//>`)}
  <//>`;
}

function RerouteDialog({ run, ...dialog }) {
  const [route, setRoute] = useState("auto");
  return html`<${FormDialog} title="Let another answer" submit="Reroute" ...${dialog}
    onSubmit=${() => dialog.perform("reroute", { run: run.run_id, route })}>
    <p class="quiet">Now its model is reached by: ${ROUTES[run.route]?.about || run.route}.</p>
    <${Field} label="From now on"><select value=${route} onChange=${(event) => setRoute(event.target.value)}>
      ${Object.entries(ROUTES).map(([name, { about }]) => html`<option value=${name}>${about}</option>`)}</select><//>
  <//>`;
}

const ROUND = /round-\d+$/;
/** Whether a fork can begin at a group of steps: a round, a phase, a plan, a team's answer. */
const isForkPoint = (name) =>
  ROUND.test(name) || /^(cycle-\d+\/)?(observe|orient|decide|act|reflect)$|^(plan|replan-\d+|synthesis)$/.test(name);

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

function CancelDialog({ run, ...dialog }) {
  return html`<${FormDialog} title="Cancel this run?" submit="Cancel the run" isDangerous ...${dialog}
    onSubmit=${() => dialog.perform("cancel", { run: run.run_id })}>
    <p>It ends now and can't be resumed. Its record stays; files that it changed stay changed.</p>
  <//>`;
}

const DIALOGS = { extend: ExtendDialog, reroute: RerouteDialog, fork: ForkDialog, cancel: CancelDialog };

// Of each act its word, what a narrow screen leaves out of its label, and what follows from it.
const CONTROLS = {
  resume: ["Resume", "", "It goes on from where it stopped"],
  pause: ["Pause", "", "It stops until somebody resumes it"],
  extend: ["Extend", "limits", "Allow this run more of what limits it"],
  reroute: ["Reroute", "model", "Let another model, or whoever calls, answer from now on"],
  fork: ["Fork", "as a new run", "Start a new run from one of its steps; this one stays as it is"],
  cancel: ["Cancel run", "", "It ends for good and can’t be resumed; what it changed stays changed"],
};

/** The buttons of a run: those that make sense as it stands. */
export function Controls({ run, timeline, onDone }) {
  const [open, setOpen] = useState(null);
  const { perform, isBusy, failure } = useAct(async (answer) => {
    setOpen(null);
    await onDone(answer);
    if (answer.run_id && answer.run_id !== run.run_id) location.hash = `#/runs/${answer.run_id}`; // a fork
  });
  const ended = hasEnded(run);
  const canFork = timeline.groups.some((group) => isForkPoint(group.name));
  const button = (name) => {
    const [label, rest, title] = CONTROLS[name];
    return html`<button class="small ${name}" disabled=${isBusy} title=${title}
      onClick=${() => (DIALOGS[name] ? setOpen(name) : perform(name, { run: run.run_id }))}>
      ${label}${rest && html`<span class="rest"> ${rest}</span>`}</button>`;
  };
  return html`<div class="controls" role="group" aria-label="Control this run">
    ${!ended && run.status === "paused" && button("resume")}
    ${!ended && run.status !== "paused" && button("pause")}
    ${!ended && button("extend")}
    ${!ended && button("reroute")}
    ${canFork && button("fork")}
    ${!ended && button("cancel")}
    ${!open && html`<${Failure} failure=${failure} />`}
    ${open && html`<${DIALOGS[open]} run=${run} timeline=${timeline} perform=${perform} isBusy=${isBusy}
      failure=${failure} onClose=${() => setOpen(null)} />`}
  </div>`;
}
