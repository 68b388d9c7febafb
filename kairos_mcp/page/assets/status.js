// How a run stands, in a sign and a word: the same in a list, on its page and in the app.

import { html } from "./vendor/preact-htm.js";

export const STATUS = {
  working: ["●", "working"],
  input_required: ["◆", "waiting"],
  paused: ["❚❚", "paused"],
  completed: ["✓", "completed"],
  stopped: ["■", "stopped"],
  failed: ["✕", "failed"],
  cancelled: ["–", "cancelled"],
};
const OPEN = ["working", "input_required", "paused"];

export const isDecidedByPerson = (item) => ["approval", "settle"].includes(item.kind);
export const hasEnded = (run) => !OPEN.includes(run.status);

export function StatusPill({ run }) {
  const [sign, word] = STATUS[run.status] || ["·", run.status];
  const waitsForYou = run.status === "input_required" && run.waiting.some(isDecidedByPerson);
  return html`<span class="pill ${run.status}">
    <i aria-hidden="true">${sign}</i>${waitsForYou ? "waits for you" : word}${run.stop_words && html`<small>${run.stop_words}</small>`}
  </span>`;
}
