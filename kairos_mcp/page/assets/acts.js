// What a person does: decide, settle, answer, control a run, start one. Each act names exactly what was on the screen.

import { html, useEffect, useRef, useState } from "./vendor/preact-htm.js";
import { act, get } from "./connection.js";
import { formatPath, revealHidden } from "./format.js";
import { hasEnded } from "./view.js";

const ARMED_MS = 700; // what slid under a finger is not pressed
const MAX_FEEDBACK = 2000;

/** An act with its state: `perform(name, fields)`, whether it is under way, and how it failed. `onDone(answer)`. */
export function useAct(onDone) {
  const [isBusy, setIsBusy] = useState(false);
  const [failure, setFailure] = useState(null);
  const perform = async (name, fields) => {
    setIsBusy(true);
    setFailure(null);
    try {
      await onDone(await act(name, fields));
    } catch (raised) {
      setFailure(raised);
    }
    setIsBusy(false);
  };
  return { perform, isBusy, failure };
}

export const Failure = ({ failure }) =>
  failure && html`<p class="failure" role="alert">${failure.message} <span>${failure.hint}</span></p>`;

/** Whether what is shown has been there for a moment; it begins anew with each `key`. */
export function useArmed(key) {
  const [armed, setArmed] = useState(null);
  useEffect(() => {
    const timer = setTimeout(() => setArmed(key), ARMED_MS);
    return () => clearTimeout(timer);
  }, [key]);
  return armed === key;
}

export function Decision({ run, item, onDone }) {
  const props = { run, item, onDone, key: item.digest || item.key };
  if (item.kind === "approval") return html`<${Approval} ...${props} />`;
  if (item.kind === "settle") return html`<${Settlement} ...${props} />`;
  if (run.route === "caller") return html`<${CallerAnswer} ...${props} />`;
  return html`<p class="quiet">It is answered by whoever called, or by a client's model; nobody else is asked.</p>`;
}

function Approval({ run, item, onDone }) {
  const [feedback, setFeedback] = useState("");
  const [remember, setRemember] = useState("");
  const [pattern, setPattern] = useState(item.always?.pattern || "");
  const { perform, isBusy, failure } = useAct(onDone);
  const armed = useArmed(item.digest);
  const id = `${run.run_id}-${item.key}`;
  const shown = { run: run.run_id, key: item.key, digest: item.digest };
  const rule = remember ? { always: remember, ...(item.always.pattern != null && { pattern }) } : {};
  return html`<div class="decision">
    <label for="why-${id}">Comment <span class="quiet">for the model; say why if you deny</span></label>
    <input id="why-${id}" value=${feedback} maxlength=${MAX_FEEDBACK}
      onInput=${(event) => setFeedback(event.target.value)} autocomplete="off" />
    <div class="buttons">
      <button class="yes" data-approve disabled=${isBusy || !armed}
        onClick=${() => perform("approve", { ...shown, ...rule, ...(feedback && { feedback }) })}>Approve</button>
      <button class="no" disabled=${isBusy || !armed}
        onClick=${() => perform("deny", { ...shown, feedback })}>Deny</button>
      ${item.always && html`<select aria-label="For how long the approval holds" value=${remember}
        onChange=${(event) => setRemember(event.target.value)}>
        <option value="">this time only</option>
        <option value="run">always in this run</option>
        <option value="project">always in this project</option>
      </select>`}
      <span class="digest" title="Your decision holds for exactly what is shown above, which has this digest">
        ${(item.digest || "").slice(0, 12)}</span>
    </div>
    ${remember && html`<p class="quiet">From then on nobody is asked about ${revealHidden(item.always.covers)}.</p>`}
    ${remember && item.always.pattern != null && html`<label for="pattern-${id}">Commands like this${" "}
      <span class="quiet">… at the end stands for any further arguments</span></label>
      <input id="pattern-${id}" class="mono" value=${pattern} onInput=${(event) => setPattern(event.target.value)}
        autocomplete="off" spellcheck="false" />`}
    <${Failure} failure=${failure} />
  </div>`;
}

function Settlement({ run, item, onDone }) {
  const [note, setNote] = useState("");
  const { perform, isBusy, failure } = useAct(onDone);
  const armed = useArmed(item.digest);
  const id = `${run.run_id}-${item.key}`;
  const shown = { run: run.run_id, key: item.key, digest: item.digest };
  const settle = (settlement) => perform("settle", { ...shown, settlement, ...(note && { note }) });
  return html`<div class="decision">
    <label for="note-${id}">Note <span class="quiet">optional, for the model</span></label>
    <input id="note-${id}" value=${note} maxlength=${MAX_FEEDBACK} onInput=${(event) => setNote(event.target.value)}
      autocomplete="off" />
    <div class="buttons">
      <button data-approve disabled=${isBusy || !armed} onClick=${() => settle("already_done")}>It took effect</button>
      <button disabled=${isBusy || !armed} onClick=${() => settle("reattempt")}>It did not: make it again</button>
    </div>
    <${Failure} failure=${failure} />
  </div>`;
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

const EXTENDABLE = [
  ["rounds", "rounds", 1],
  ["usd", "dollars", "any"],
  ["total_tokens", "tokens", 1],
  ["tool_calls", "tool calls", 1],
];

function ExtendDialog({ run, ...dialog }) {
  const [more, setMore] = useState({});
  const set = EXTENDABLE.filter(([name]) => run.remaining[name] != null);
  const limits = Object.fromEntries(Object.entries(more).filter(([, value]) => value > 0));
  return html`<${FormDialog} title="Allow more" submit="Extend" ...${dialog}
    onSubmit=${() => dialog.perform("extend", { run: run.run_id, limits })}>
    <p class="quiet">Added to what is left of this run's limits, as far as the configuration allows.</p>
    ${set.length === 0 && html`<p>None of its limits can be extended: it has none.</p>`}
    ${set.map(([name, label, step]) => html`<${Field} label="More ${label}" hint="${run.remaining[name]} left">
      <input type="number" min="0" step=${step} value=${more[name] ?? ""}
        onInput=${(event) => setMore({ ...more, [name]: Number(event.target.value) })} /><//>`)}
  <//>`;
}

const ROUTES = {
  auto: "whatever is configured",
  provider: "the provider that is configured",
  caller: "whoever calls the server",
  sampling: "the client’s model",
  scripted: "a script",
};

function RerouteDialog({ run, ...dialog }) {
  const [route, setRoute] = useState("auto");
  return html`<${FormDialog} title="Let another answer" submit="Reroute" ...${dialog}
    onSubmit=${() => dialog.perform("reroute", { run: run.run_id, route })}>
    <p class="quiet">Now its model is reached by: ${ROUTES[run.route] || run.route}.</p>
    <${Field} label="From now on"><select value=${route} onChange=${(event) => setRoute(event.target.value)}>
      ${Object.entries(ROUTES).map(([name, words]) => html`<option value=${name}>${words}</option>`)}</select><//>
  <//>`;
}

function ForkDialog({ run, timeline, ...dialog }) {
  const rounds = timeline.groups.filter((group) => /round-\d+$/.test(group.name)).map((group) => group.name);
  const [round, setRound] = useState(rounds.at(-1));
  const [goal, setGoal] = useState(run.goal);
  return html`<${FormDialog} title="Fork from a round" submit="Start the fork" ...${dialog}
    onSubmit=${() => dialog.perform("fork", { run: run.run_id, round, goal })}>
    <p class="quiet">A new run goes on from the conversation as it was before that round, with limits and
      approvals of its own. Files stay as they are now.</p>
    <${Field} label="From before"><select value=${round} onChange=${(event) => setRound(event.target.value)}>
      ${rounds.map((name) => html`<option value=${name}>${formatPath(name)}</option>`)}</select><//>
    <${Field} label="What to do next"><textarea rows="3" required value=${goal}
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

/** The buttons of a run: those that make sense as it stands. */
export function Controls({ run, timeline, onDone }) {
  const [open, setOpen] = useState(null);
  const { perform, isBusy, failure } = useAct(async (answer) => {
    setOpen(null);
    await onDone(answer);
    if (answer.run_id && answer.run_id !== run.run_id) location.hash = `#/runs/${answer.run_id}`; // a fork
  });
  const ended = hasEnded(run);
  const canFork = timeline.groups.some((group) => /round-\d+$/.test(group.name));
  const button = (name, label) => html`<button class="small" disabled=${isBusy}
    onClick=${() => (DIALOGS[name] ? setOpen(name) : perform(name, { run: run.run_id }))}>${label}</button>`;
  return html`<div class="controls" role="group" aria-label="Control this run">
    ${!ended && run.status === "paused" && button("resume", "Resume")}
    ${!ended && run.status !== "paused" && button("pause", "Pause")}
    ${!ended && button("extend", "Extend")}
    ${!ended && button("reroute", "Reroute")}
    ${canFork && button("fork", "Fork")}
    ${!ended && button("cancel", "Cancel run")}
    ${!open && html`<${Failure} failure=${failure} />`}
    ${open && html`<${DIALOGS[open]} run=${run} timeline=${timeline} perform=${perform} isBusy=${isBusy}
      failure=${failure} onClose=${() => setOpen(null)} />`}
  </div>`;
}
