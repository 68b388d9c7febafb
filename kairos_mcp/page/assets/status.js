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
const NO_REASONS = ["assistant_stop", "no_tool_calls", "team_done", "cancelled"]; // the status says it all

export const isDecidedByPerson = (item) => ["approval", "settle"].includes(item.kind);
export const hasEnded = (run) => !OPEN.includes(run.status);
/** Why a run ended, in the server's words; empty where its status says it all. */
export const reasonOf = (run) => (NO_REASONS.includes(run.stop_reason) ? "" : run.stop_words);

export function StatusPill({ run }) {
  const [sign, word] = STATUS[run.status] || ["·", run.status];
  const waitsForYou = run.status === "input_required" && run.waiting.some(isDecidedByPerson);
  const reason = reasonOf(run);
  return html`<span class="pill ${run.status}">
    <i aria-hidden="true">${sign}</i>${waitsForYou ? "waits for you" : word}${reason && html`<small>${reason}</small>`}
  </span>`;
}
