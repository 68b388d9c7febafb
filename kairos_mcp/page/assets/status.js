// How a run stands, in a sign and a word: the same in a list, on its page and in the app.

import { html } from "./vendor/preact-htm.js";

export const STATUS = {
  working: ["●", "working"],
  input_required: ["◆", "waiting"],
  paused: ["❚❚", "paused"],
  completed: ["✓", "completed"],
  failed: ["✕", "failed"],
  cancelled: ["–", "cancelled"],
};
const STOP_REASONS = {
  assistant_stop: "",
  team_done: "",
  goal_achieved: "goal achieved",
  max_rounds: "out of rounds",
  budget: "out of budget",
  cancelled: "",
};

export const isDecidedByPerson = (item) => ["approval", "settle"].includes(item.kind);
export const hasEnded = (run) => ["completed", "failed", "cancelled"].includes(run.status);

export function StatusPill({ run }) {
  const [sign, word] = STATUS[run.status] || ["·", run.status];
  const waitsForYou = run.status === "input_required" && run.waiting.some(isDecidedByPerson);
  const reason = STOP_REASONS[run.stop_reason] ?? run.stop_reason?.replaceAll("_", " ");
  return html`<span class="pill ${run.status}">
    <i aria-hidden="true">${sign}</i>${waitsForYou ? "waits for you" : word}${reason && html`<small>${reason}</small>`}
  </span>`;
}
