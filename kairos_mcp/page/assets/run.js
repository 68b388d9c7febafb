// The page of one run: live, with deep links to its steps, its decisions and its controls.

import { html, useCallback, useEffect, useLayoutEffect, useRef, useState } from "./vendor/preact-htm.js";
import { follow, get, save, useEvents } from "./connection.js";
import { formatCount, formatMoney, formatPath, revealHidden } from "./format.js";
import { addSteps, emptyTimeline, newestStep } from "./steps.js";
import { hasEnded, isDecidedByPerson, StatusPill } from "./status.js";
import { Markdown } from "./markdown.js";
import { RunView } from "./view.js";
import { Again, Controls, Decision } from "./acts.js";

const AT_END_PX = 120; // so near to the end of the page the reader is taken along
const STRIP_FROM_PX = 230; // scrolled so far, the header is out of sight

/** The run and its timeline as frames come; frames of one picture are laid over it at once. */
function useRun(id) {
  const [run, setRun] = useState(null);
  const [timeline, setTimeline] = useState(emptyTimeline);
  const [failure, setFailure] = useState(null);
  const pending = useRef([]);
  const frame = useRef(0);
  const isUp = useEvents((kind, data) => {
    if (kind === "run") setRun(data);
    if (kind === "refused") get("api/run", { run: id }).catch(setFailure); // it says why, which a line of events can't
    if (kind !== "steps") return;
    pending.current.push(...data);
    frame.current ||= requestAnimationFrame(() => {
      const changed = pending.current;
      pending.current = [];
      frame.current = 0;
      setTimeline((known) => addSteps(known, changed));
    });
  });
  useEffect(() => {
    follow(id);
    return () => cancelAnimationFrame(frame.current);
  }, [id]);
  return { run, timeline, isUp, failure };
}

/** Whether the reader is at the end of the page, and whether the header is out of sight. */
function useScroll() {
  const [place, setPlace] = useState({ atEnd: false, isDown: false });
  useEffect(() => {
    const look = () => {
      const atEnd = scrollY > 0 && innerHeight + scrollY > document.documentElement.scrollHeight - AT_END_PX;
      const isDown = scrollY > STRIP_FROM_PX;
      setPlace((before) => (before.atEnd === atEnd && before.isDown === isDown ? before : { atEnd, isDown }));
    };
    addEventListener("scroll", look, { passive: true });
    return () => removeEventListener("scroll", look);
  }, []);
  return place;
}

/** What a screen reader is told while a run moves: one sentence a round, not one a step. */
function announcementOf(run, timeline) {
  const waiting = run.waiting.filter(isDecidedByPerson);
  if (waiting.length) return `Waits for your decision on ${waiting.map((item) => item.name).join(", ")}.`;
  if (hasEnded(run)) return `The run is ${run.status}.`;
  const step = newestStep(timeline);
  return step ? formatPath(step.path.replace(/\/call-\d+$/, "")) : "";
}

function Strip({ run }) {
  const waits = run.waiting.some(isDecidedByPerson);
  return html`<div class="strip"><${StatusPill} run=${run} /><b>${run.goal}</b>
    ${waits && html`<button class="small" onClick=${() => scrollTo(0, 0)}>decide</button>`}
    <span>${run.work}</span><span>
      ${formatCount(run.usage.input_tokens + run.usage.output_tokens)} tokens</span><span>${formatMoney(run.usage.usd)}
      </span></div>`;
}

/** Why a run ended before it was done, and what lets another one go on. */
const Cause = ({ run, onDone }) => html`<section class="still cause"><h2>Why it ${run.status}</h2>
  ${run.stop_words && html`<p><b>${revealHidden(run.stop_words)}</b></p>`}
  ${run.status === "failed" && run.degraded.map((note) => html`<p>${revealHidden(note)}</p>`)}
  ${run.next?.why && html`<p class="quiet">${revealHidden(run.next.why)}</p>`}
  <${Again} run=${run} onDone=${onDone} /></section>`;

export function RunPage({ id, step, onDone }) {
  const { run, timeline, isUp, failure } = useRun(id);
  const { atEnd, isDown } = useScroll();
  const isMoving = run?.status === "working";
  const hasSteps = timeline.steps.size > 0;

  useLayoutEffect(() => {
    if (atEnd && isMoving && !step) scrollTo(0, document.documentElement.scrollHeight);
  }, [timeline]);
  useEffect(() => {
    if (step && hasSteps) document.getElementById(`step-${step}`)?.scrollIntoView({ block: "nearest" });
  }, [step, hasSteps]);

  const open = useCallback((path) => {
    history.replaceState(null, "", `#/runs/${[id, path].filter(Boolean).join("/")}`);
    dispatchEvent(new HashChangeEvent("hashchange"));
  }, [id]);
  const download = () => save("api/export", { run: id }, `${id}.jsonl`).catch(({ message }) => onDone({ said: message }));
  const readAll = useCallback(async ({ path }) => (await get("api/text", { run: id, ref: path })).text, [id]);

  if (failure && !run) return html`<div class="empty"><h1>No such run</h1><p>${failure.message} ${failure.hint}</p><p>
    <a href="#/runs">All runs</a></p></div>`;
  if (!run) return html`<p class="quiet" aria-busy="true">…</p>`;
  return html`
    ${isDown && html`<${Strip} run=${run} />`}
    <p class="hidden" aria-live="polite">${announcementOf(run, timeline)}</p>
    <${RunView} run=${run.status === "failed" ? { ...run, degraded: [] } : run} timeline=${timeline} at=${step} onOpen=${open} readAll=${readAll}
      isLive=${isUp && !hasEnded(run)}
      decision=${(item) => html`<${Decision} run=${run} item=${item} onDone=${onDone} />`}
      prose=${(text) => html`<${Markdown} text=${text} />`}
      cause=${["failed", "stopped"].includes(run.status) && html`<${Cause} run=${run} onDone=${onDone} />`}
      controls=${html`<${Controls} run=${run} timeline=${timeline} onDone=${onDone} />`} />
    <p><button class="link" onClick=${download}>Download this run as a file</button></p>`;
}
