// What waits for a person, and how they decide about it: the same on the page and, where its host may decide, in the app.
// A decision names the digest of what is shown, and can't be made before that has been on the screen for a moment.

import { html, useEffect, useState } from "./vendor/preact-htm.js";
import { formatDuration, revealHidden, timeOf } from "./format.js";

const EFFECTS = {
  read: ["only reads", "It changes nothing"],
  idempotent: ["safe to repeat", "To make the call twice does no harm"],
  checked: ["changes files", "After a crash Kairos looks whether the change was made before it goes on"],
  irreversible: ["can’t be undone", "After a crash a person says whether it took effect"],
};

const EXPIRY = "Nobody has approved then, and the call is not made. Other tasks of a team go on first. " +
  "Once the run is resumed, you are asked again.";
const ARMED_MS = 700; // what slid under a finger is not pressed
const MAX_FEEDBACK = 2000;
const OPEN_FILES = 12; // of those that a stage changes

export function EffectChip({ effect }) {
  const [words, title] = EFFECTS[effect] || [effect];
  return html`<span class="effect ${effect}" title=${title}>${words}</span>`;
}

// Names of files, hashes, `\ No newline`.
const HEAD = /^(---|\+\+\+) |^(before|after) ([0-9a-f]|sha256:|no file)|^\\ /;
const HASHES = /^before ([0-9a-f]{12}|no file), after [0-9a-f]{12}$/; // and nothing else in the line
const CHANGED_FILE = /^(edit|create) (.+?)(?: \(line ends CRLF\))?$/;

/** What a person is asked about a call: of one that changes files, by its preview, which files. */
function questionOf({ name, effect, preview }) {
  const titles = effect === "checked" ? previewLines(preview || "").filter(({ kind }) => kind === "title") : [];
  const files = titles.map(({ text }) => CHANGED_FILE.exec(text)).filter(Boolean);
  if (!files.length) return html`May it call <code>${name}</code>?`;
  const [[, verb, path]] = files;
  if (files.length > 1) return html`May it change ${files.length} files?`;
  return html`May it ${verb === "edit" ? "change" : "create"} <code>${path}</code>?`;
}

/** Lines of a preview as {kind, left, right, text}: whatever is in it is shown, hunks with their line numbers. */
function previewLines(preview) {
  const lines = [];
  let left = 0, right = 0, oldLines = 0, newLines = 0; // line numbers, and how many lines of the hunk are to come
  for (const text of revealHidden(preview).replace(/\n+$/, "").split("\n")) {
    const hunk = /^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@/.exec(text);
    const sign = text[0];
    if (oldLines > 0 || newLines > 0) {
      if (sign === "\\") lines.push({ kind: "head", text });
      else if (sign === "+") lines.push({ kind: "add", left: "", right: right++, text }), newLines--;
      else if (sign === "-") lines.push({ kind: "del", left: left++, right: "", text }), oldLines--;
      else lines.push({ kind: "same", left: left++, right: right++, text }), oldLines--, newLines--;
    } else if (hunk) {
      [left, oldLines, right, newLines] = hunk.slice(1).map((number) => (number === undefined ? 1 : Number(number)));
      lines.push({ kind: "hunk", text });
    } else if (text.startsWith("! ")) lines.push({ kind: "warn", text });
    else if (HASHES.test(text)) lines.push({ kind: "hashes", text });
    else if (HEAD.test(text)) {
      lines.push({ kind: "head", text: text.replace(/^--- a\//, "before: ").replace(/^\+\+\+ b\//, "after: ") });
    } else lines.push({ kind: "title", text });
  }
  return lines;
}

/** A preview as a table; `withoutHashes`, where `Codes` shows them. */
export function Preview({ text, withoutHashes }) {
  const lines = previewLines(text).filter(({ kind }) => !(withoutHashes && kind === "hashes"));
  const count = (kind) => lines.filter((line) => line.kind === kind).length;
  const counts = [["add", "+", count("add")], ["del", "−", count("del")]];
  const changed = counts[0][2] + counts[1][2];
  return html`<figure class="preview">
    <div class="diff" tabindex="0" role="group" aria-label="What would happen"><table><tbody>
      ${lines.map(({ kind, left, right, text: line }) => {
        const isChange = kind === "add" || kind === "del" || kind === "same";
        return html`<tr class=${kind}><td>${left}</td><td>${right}</td><td>
          ${isChange && html`<span class="sign">${line[0] || " "}</span>`}${isChange ? line.slice(1) : line}
        </td></tr>`;
      })}
    </tbody></table></div>
    ${changed > 0 && html`<figcaption>
      ${counts.map(([kind, sign, n]) => n > 0 && html`<span class=${kind}>${sign}${n}</span> `)}
      ${changed === 1 ? "line" : "lines"}
    </figcaption>`}
  </figure>`;
}

/** What a stage changes, file by file: each can be folded, the first ones are open. No line of a file is empty, since
 * each has its sign: an empty one stands between files. */
function FilePreviews({ text }) {
  const [head, ...files] = text.split("\n\n");
  return html`<${Preview} text=${head} />${files.map((file, at) => html`<details class="file" open=${at < OPEN_FILES}>
    <summary><code>${previewLines(file).find(({ kind }) => kind === "title")?.text}</code></summary>
    <${Preview} text=${file} /></details>`)}`;
}

/** What waits, item by item; `children` is how it is decided, or by whom. */
export function WaitingCard({ item, children }) {
  const expires = timeOf(item.expires_at);
  const hasCodes = item.kind === "approval" && item.digest;
  const title = {
    approval: questionOf(item),
    settle: html`Nobody knows how <code>${item.name}</code> ended`,
    completion: "The calling model is to answer",
    tool_call: html`The caller is to carry out <code>${item.name || "a call"}</code>`,
  }[item.kind];
  return html`<section class="waiting ${item.kind}" aria-label="Waits">
    <header>
      <h2><i aria-hidden="true">◆</i> ${title}</h2>
      ${item.effect && html`<${EffectChip} effect=${item.effect} />`}
      ${item.agent && html`<span class="quiet">for ${item.agent}</span>`}
      ${expires && html`<span class="quiet until" title=${EXPIRY}>
        decide within ${formatDuration(Math.max(0, expires - Date.now()))}, else the run pauses</span>`}
    </header>
    ${item.about && html`<p class="quiet">${revealHidden(item.about)}</p>`}
    ${item.preview && (item.files ? html`<${FilePreviews} text=${item.preview} />`
      : html`<${Preview} text=${item.preview} withoutHashes=${hasCodes} />`)}
    ${item.kind === "settle" && html`<p>A server ended while this call was under way. Look whether it took effect.</p>
      <pre tabindex="0">${revealHidden(JSON.stringify(item.arguments, null, 2) || "")}</pre>`}
    ${children}
    ${hasCodes && html`<${Codes} item=${item} />`}
  </section>`;
}

/** What a decision is bound to, for whoever wants to compare it. */
function Codes({ item }) {
  const hashes = previewLines(item.preview || "").filter(({ kind }) => kind === "hashes");
  return html`<details class="codes quiet"><summary>Tool and digests</summary>
    <p>The call is <code>${item.name}</code>. A decision holds for exactly what is shown here, whose digest is${" "}
      <code>${item.digest.slice(0, 12)}</code>.</p>
    ${hashes.map(({ text }) => html`<p>SHA-256 of a file: ${text}</p>`)}</details>`;
}

/** An act with its state: `perform(...given)` calls `carryOut`; whether it is under way, and how it failed. */
export function useRequest(carryOut) {
  const [isBusy, setIsBusy] = useState(false);
  const [failure, setFailure] = useState(null);
  const perform = async (...given) => {
    setIsBusy(true);
    setFailure(null);
    try {
      await carryOut(...given);
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

/** The form of a decision. `decide(act, fields)` carries it out: `approve`, `deny` or `settle` what `fields` names. */
export function DecisionForm({ run, item, decide }) {
  const [note, setNote] = useState("");
  const { perform, isBusy, failure } = useRequest(decide);
  const isReady = useArmed(item.digest) && !isBusy;
  const id = `note-${run.run_id}-${item.key}`;
  const shown = { run: run.run_id, key: item.key, digest: item.digest };
  const [label, hint, Buttons] = item.kind === "settle"
    ? ["Note", "optional, for the model", SettlementButtons]
    : ["Message to the model", "optional, sent with either answer", ApprovalButtons];
  return html`<div class="decision">
    <label for=${id}>${label} <span class="quiet">${hint}</span></label>
    <input id=${id} value=${note} maxlength=${MAX_FEEDBACK} onInput=${(event) => setNote(event.target.value)}
      autocomplete="off" />
    <${Buttons} id=${id} item=${item} isReady=${isReady} note=${note}
      perform=${(act, fields) => perform(act, { ...shown, ...fields })} />
    <${Failure} failure=${failure} />
  </div>`;
}

/** Approve, where it can't be undone only once the tool's name was typed; deny; and for how long it is to hold. */
function ApprovalButtons({ id, item, isReady, note, perform }) {
  const [typed, setTyped] = useState("");
  const [remember, setRemember] = useState("");
  const [pattern, setPattern] = useState(item.always?.pattern || "");
  const [left, setLeft] = useState(new Set()); // files that stay in the stage
  const files = (item.files || []).filter((path) => !left.has(path));
  const isFinal = item.effect === "irreversible";
  const chosen = left.size > 0 && { files };
  const rule = remember && { always: remember, ...(item.always.pattern != null && { pattern }) };
  return html`
    ${item.files && html`<${FileChoice} files=${item.files} left=${left} onChange=${setLeft} />`}
    ${isFinal && html`<label for="name-${id}">This can’t be undone. To approve, type its name: <code>${item.name}</code>
      </label>
      <input id="name-${id}" class="mono typed" value=${typed} onInput=${(event) => setTyped(event.target.value)}
        autocomplete="off" autocapitalize="off" spellcheck="false" />`}
    <div class="buttons">
      <button class="yes" data-approve disabled=${!isReady || (isFinal && typed !== item.name) || (item.files && !files.length)}
        onClick=${() => perform("approve", { ...rule, ...chosen, ...(note && { feedback: note }), ...(isFinal && { name: typed }) })}>
        ${chosen ? `Approve ${files.length} of ${item.files.length} files` : "Approve"}</button>
      ${item.always && html`<select aria-label="For how long the approval holds" value=${remember}
        onChange=${(event) => setRemember(event.target.value)}>
        <option value="">approve this time only</option>
        <option value="run">approve always in this run</option>
        <option value="project">approve always in this project</option>
      </select>`}
      <button class="no" disabled=${!isReady} title="The call is not made; the run goes on without it"
        onClick=${() => perform("deny", { feedback: note })}>Deny</button>
    </div>
    ${remember && html`<p class="quiet">From then on nobody is asked about ${revealHidden(item.always.covers)}.</p>`}
    ${remember && item.always.pattern != null && html`<label for="pattern-${id}">Commands like this${" "}
      <span class="quiet">… at the end stands for any further arguments</span></label>
      <input id="pattern-${id}" class="mono" value=${pattern} onInput=${(event) => setPattern(event.target.value)}
        autocomplete="off" spellcheck="false" />`}`;
}

/** Which files of several are approved: `left` are those that stay in the stage. */
function FileChoice({ files, left, onChange }) {
  const toggle = (path) => {
    const next = new Set(left);
    if (!next.delete(path)) next.add(path);
    onChange(next);
  };
  const turn = () => onChange(new Set(left.size ? [] : files));
  return html`<details class="files"><summary>Approve some of the ${files.length} files</summary>
    <p><button type="button" class="link" onClick=${turn}>${left.size ? "All" : "None"} of them</button></p>
    ${files.map((path) => html`<label><input type="checkbox" checked=${!left.has(path)} onChange=${() => toggle(path)} />
      <code>${revealHidden(path)}</code></label>`)}
  </details>`;
}

function SettlementButtons({ isReady, note, perform }) {
  const settle = (settlement) => perform("settle", { settlement, ...(note && { note }) });
  return html`<div class="buttons">
    <button data-approve disabled=${!isReady} onClick=${() => settle("already_done")}>It took effect</button>
    <button disabled=${!isReady} onClick=${() => settle("reattempt")}>It did not: make it again</button>
  </div>`;
}
