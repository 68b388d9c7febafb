// What a run looks like: the same for the page and for the app in a host. It draws, and asks nobody for anything.
// Every text is a text node: nothing here makes HTML of a string.

import { html, useEffect, useMemo, useState } from "./vendor/preact-htm.js";
import { folderName, formatAgo, formatArguments, formatCount, formatDuration, formatMoment, formatMoney, formatPath, formatUnit, joinFacts, plural, revealHidden, sentenceOf, timeOf } from "./format.js";
import { UNITS } from "./registers.js";
import { hasEnded, isDecidedByPerson, StatusPill } from "./status.js";
import { newestStep, sectionsOf, totalsOf } from "./steps.js";
import { WaitingCard } from "./waiting.js";

const TASK_SIGNS = {
  waiting: "○", working: "●", done: "✓", stopped: "◐", failed: "✕", skipped: "⊘", cancelled: "–",
};
const STEP_SIGNS = { ok: "✓", failed: "✕", refused: "⊘", open: "◆", begun: "●" };
const STEP_STATES = {
  ok: "done", failed: "failed", refused: "refused by a limit", open: "waiting", begun: "under way",
};
const ACTIVITIES = {
  round: "model thinks",
  phase: "model thinks",
  repair: "corrects its answer",
  closing: "sums up",
  compact: "shortens the conversation",
  pause: "pauses",
};
const AT_LIMIT = "At the limit the run sums up what it has and ends, unless the limit is extended before";
const GIST_CHARS = 240; // of arguments or words in one line
export const NEWEST_GROUPS = 400; // of a long run; more on a click

export function Meter({ label, used, limit, left, format = formatCount, note, title, open = "no limit" }) {
  const part = limit ? Math.min(1, used / limit) : 0;
  const rest = left ?? (limit == null ? null : Math.max(0, limit - used));
  const words = limit == null ? open : `of ${format(limit)} · ${format(rest)} left`;
  return html`<div class="meter" title=${title}>
    <span class="label">${label}</span><b>${format(used)}</b><span class="of">${words}${note && html` <em>${note}</em>`}
      </span>
    ${limit != null && html`<span class="bar" role="meter" aria-label=${label} aria-valuemin="0" aria-valuemax=${limit}
      aria-valuenow=${Math.min(used, limit)} aria-valuetext="${format(used)} ${words}">
      <span class=${part > 0.9 ? "full" : part > 0.7 ? "near" : ""} style=${{ width: `${part * 100}%` }}></span>
        </span>`}
  </div>`;
}

function RunMeters({ run }) {
  const { usage, remaining } = run;
  const isLimited = Object.values(remaining).some((left) => left != null);
  const used = { ...usage, rounds: run.rounds, total_tokens: usage.input_tokens + usage.output_tokens };
  const isShown = ({ name, isMain }) =>
    name === run.counts || remaining[name] != null || (isMain && (name !== "rounds" || run.rounds));
  const meter = ({ name, label, words }) => {
    const left = remaining[name];
    const limit = run.limits?.[name] ?? (left == null ? null : used[name] + left);
    const note = words === "$" && usage.unpriced ? "some calls have no price" : null;
    return html`<${Meter} label=${label} used=${used[name]} limit=${limit} left=${left} note=${note}
      format=${(amount) => formatUnit(words, amount)} title=${limit == null ? null : AT_LIMIT}
      open=${isLimited ? "no limit of its own" : "no limit"} />`;
  };
  return html`<div class="meters">${UNITS.filter(isShown).map(meter)}</div>`;
}

/** How long ago a moment was, kept true every second while it is on the screen. */
export function Elapsed({ since }) {
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), 1000);
    return () => clearInterval(timer);
  }, []);
  return html`<span class="elapsed">${formatDuration(Math.max(0, Math.floor((now - since) / 1000) * 1000))}</span>`;
}

/** One line: what the run is doing now, since when; or how long it took. */
function CurrentActivity({ run, timeline }) {
  if (hasEnded(run)) {
    const took = run.ended_at && formatDuration(run.ended_at - run.started_at);
    return run.ended_at && html`<p class="now">Ended ${formatMoment(run.ended_at)}, after ${took}.</p>`;
  }
  if (run.status === "paused") {
    const end = run.resume_at ? `until ${formatMoment(run.resume_at)}` : run.pause;
    return html`<p class="now">Stands still, waits ${end}.</p>`;
  }
  const mine = run.waiting.filter(isDecidedByPerson);
  if (mine.length) {
    const [item] = mine;
    const [before, after] = item.kind === "settle"
      ? ["Waits for you to say how", " ended."]
      : ["Waits for your decision on", ". If you deny, that call is not made and the run goes on without it."];
    const more = mine.length > 1 && ` ${mine.length} items wait.`;
    return html`<p class="now wait">${before} <code>${item.name}</code>${after}${more}</p>`;
  }
  if (run.waiting.length) {
    return html`<p class="now">Waits for an answer from ${run.waits_for}.</p>`;
  }
  const step = newestStep(timeline);
  if (!step) return html`<p class="now">Begins …</p>`;
  const place = formatPath(step.path.replace(/\/call-\d+$/, ""));
  if (step.state !== "begun") return html`<p class="now">Now: ${place}</p>`;
  const doing = step.kind === "call" ? html`calls <code>${step.name}</code>` : ACTIVITIES[step.kind] || step.kind;
  return html`<p class="now">Now: ${place}, ${doing} · <${Elapsed} since=${step.at} /></p>`;
}

function Details({ step, readAll }) {
  const isCall = step.kind === "call";
  const [all, setAll] = useState(null);
  const facts = [
    ["path", step.path],
    ["agent", step.agent],
    ["route", step.by],
    ["tokens", step.input_tokens != null && `${formatCount(step.input_tokens)} in, ${formatCount(step.output_tokens)} out`],
    ["of these cached", step.cached_tokens && formatCount(step.cached_tokens)],
    ["cost", step.usd && `$${step.usd.toFixed(4)}`],
    ["attempts", step.attempts],
    ["code", step.code],
    ["limit", step.limit && `${step.limit.name}: ${step.limit.used} of ${step.limit.allowed}`],
    ["began", formatMoment(step.at)],
    ...(step.carries || []).map(({ says }) => ["asked about", says]),
    ...(step.decided || []).map(({ said, by, through, note, shown }) =>
      ["decided", joinFacts(said, by, through && `through ${through}`, shown && `which showed ${shown}`, note && `“${note}”`)]),
  ];
  return html`<div class="details">
    <dl>${facts.filter(([, value]) => value).map(([name, value]) => html`<div><dt>${name}</dt><dd>
      ${revealHidden(String(value))}</dd></div>`)}</dl>
    ${step.arguments && html`<h4>Arguments</h4><pre tabindex="0">
      ${revealHidden(JSON.stringify(step.arguments, null, 2))}</pre>`}
    ${step.text && html`<h4>${isCall ? "Result" : "Answer"}</h4><pre tabindex="0" class=${isCall ? "" : "prose"}>
      ${revealHidden(all ?? step.text)}</pre>`}
    ${step.chars && readAll && all === null && html`<button class="link"
      onClick=${async () => setAll(await readAll(step))}>Show all ${step.chars.toLocaleString()} characters</button>`}
  </div>`;
}

function Step({ step, begin, span, isOpen, onOpen, readAll }) {
  const isCall = step.kind === "call";
  const left = span ? Math.min(98, ((step.at - begin) / span) * 100) : 0;
  const width = span ? Math.max(1, Math.min(100 - left, ((step.ms || 0) / span) * 100)) : 0;
  const gist = isCall
    ? formatArguments(step.arguments) || (step.text || "").split("\n", 1)[0]
    : step.calls ? `wants to call ${step.calls.join(", ")}` : sentenceOf(step.text);
  return html`<li class="step ${isCall ? "call" : "turn"} ${step.state}" id="step-${step.path}">
    <button class="row" aria-expanded=${isOpen} onClick=${() => onOpen(isOpen ? null : step.path)}>
      <i class="mark" role="img" aria-label=${STEP_STATES[step.state]}>${STEP_SIGNS[step.state] || "·"}</i>
      <span class="name">${isCall ? step.name : ACTIVITIES[step.kind] || step.kind}</span>
      <span class="gist">${revealHidden(gist.slice(0, GIST_CHARS))}</span>
      <span class="waterfall" aria-hidden="true">${step.ms != null && html`<span
        style=${{ left: `${left}%`, width: `${width}%` }}></span>`}</span>
      <span class="took">${step.state === "begun" ? "…" : formatDuration(step.ms)}</span>
    </button>
    ${isOpen && html`<${Details} step=${step} readAll=${readAll} />`}
  </li>`;
}

/** A round or a phase. Drawn again only when it changed: of a thousand of them a frame touches one. */
function Group({ group, at, onOpen, readAll }) {
  return useMemo(() => {
    const { begin, end, tokens, usd } = totalsOf(group);
    const words = group.steps.find((step) => step.kind !== "call" && step.calls && step.text)?.text;
    const took = end > begin && formatDuration(end - begin);
    const sums = joinFacts(tokens && `${formatCount(tokens)} tokens`, usd && formatMoney(usd), took);
    const name = group.name.replace(group.section && `${group.section}/`, "").replace(/^try-1\//, "");
    return html`<li class="group">
      <header><h3>${formatPath(name)}</h3><span class="sums" title="Calls of a round may run side by side">
        ${sums}</span></header>
      ${words && html`<p class="words">${revealHidden(words)}</p>`}
      <ol>${group.steps.map((step) => html`<${Step} key=${step.path} step=${step} begin=${begin} span=${end - begin}
        isOpen=${at === step.path} onOpen=${onOpen} readAll=${readAll} />`)}</ol>
    </li>`;
  }, [group, at]);
}

const para = (text) => html`<p>${revealHidden(text)}</p>`;

function TaskHeader({ task }) {
  const after = task.depends_on.length && `after ${task.depends_on.join(", ")}`;
  return html`<header class="task">
    <h3><i class="task-sign ${task.status}" aria-hidden="true">${TASK_SIGNS[task.status] || "·"}</i> ${task.id} <small>
      ${task.agent}</small></h3>
    <span class="sums">
      ${joinFacts(task.status, task.rounds && plural(task.rounds, "round"), task.usd && formatMoney(task.usd), after)}</span>
    ${para(task.description)}
  </header>`;
}

export function Timeline({ timeline, plan = [], at, onOpen, readAll, newest = NEWEST_GROUPS }) {
  const [more, setMore] = useState(0);
  const shown = newest + more;
  const isDeep = at && !timeline.groups.slice(-shown).some((group) => group.steps.some((step) => step.path === at));
  const groups = isDeep ? timeline.groups : timeline.groups.slice(-shown);
  const hidden = timeline.groups.length - groups.length;
  const begun = new Set(timeline.groups.map((group) => group.section));
  return html`<section class="timeline" aria-label="What happened">
    ${hidden > 0 && html`<button class="earlier"
      onClick=${() => setMore(more + NEWEST_GROUPS)}>Show earlier: ${hidden.toLocaleString()} more</button>`}
    ${sectionsOf(groups).map((section) => {
      const task = plan.find((each) => each.path === section.task);
      return html`<div key=${section.task || section.groups[0].name} class=${section.task ? "of-task" : ""}>
        ${task && html`<${TaskHeader} task=${task} />`}
        <ol>${section.groups.map((group) => html`<${Group} key=${group.name} group=${group}
          at=${group.steps.some((step) => step.path === at) ? at : null} onOpen=${onOpen} readAll=${readAll} />`)}</ol>
      </div>`;
    })}
    ${plan.filter((task) => !begun.has(task.path)).map((task) => html`<div key=${task.path} class="of-task">
      <${TaskHeader} task=${task} /></div>`)}
  </section>`;
}

/** Why a run stands still, and how it goes on. */
export const HeldUp = ({ reasons, next }) => html`<section class="still"><h2>Why it stands still</h2>
  ${reasons.map(para)}${next?.why && para(next.why)}</section>`;

function Notes({ notes }) {
  const [first, ...rest] = notes.map(revealHidden);
  if (!rest.length) return html`<p class="notes"><b>Note</b> ${first}</p>`;
  return html`<details class="notes"><summary><b>${plural(notes.length, "note")}</b> ${first}</summary>
    <ul>${rest.map((note) => html`<li>${note}</li>`)}</ul></details>`;
}

/** A whole run. `decision(item)`: how an item that waits is decided; `controls`: what one can do with the run; `cause`:
 * why it ended early; `prose(text)`: how its result is shown, if not as it is. */
export function RunView({ run, timeline, at, onOpen, readAll, decision, isLive, controls, cause, prose = para, newest }) {
  const { usage: { usd }, remaining } = run;
  const facts = [
    run.mandate ? ["mandate", run.mandate] : ["kind", run.flow.replaceAll("_", " ")],
    run.model ? ["model", run.model] : ["answered by", run.route],
    ["cost", usd && joinFacts(formatMoney(usd), remaining.usd != null && `${formatMoney(remaining.usd)} left`)],
    ["project", folderName(run.workspace)],
    ["started by", run.client],
  ];
  return html`<article class="run">
    <header class="top">
      <div class="state"><${StatusPill} run=${run} />${isLive && html`<span class="live"
        title="Shows changes as they are committed">connected</span>`}${controls}</div>
      <h1>${revealHidden(run.goal || run.run_id)}</h1>
      <p class="facts"><code>${run.run_id}</code>${facts.filter(([, fact]) => fact).map(([label, fact]) => html`<span>
        ${label} <b>${revealHidden(fact)}</b></span>`)}<span>started ${formatAgo(timeOf(run.started_at ?? run.created_at))}</span></p>
      <${CurrentActivity} run=${run} timeline=${timeline} />
    </header>
    ${cause}
    ${run.waiting.map((item) => html`<${WaitingCard} key=${item.key} item=${item}>${decision(item)}<//>`)}
    <${RunMeters} run=${run} />
    ${run.summary && html`<section class="summary"><h2>Result</h2>${prose(run.summary)}</section>`}
    ${run.record && html`<section class="summary"><h2>What was done</h2>${prose(run.record)}</section>`}
    ${run.status === "paused" && html`<${HeldUp} reasons=${run.held_up_by} next=${run.next} />`}
    ${run.degraded.length > 0 && html`<${Notes} notes=${run.degraded} />`}
    <${Timeline} timeline=${timeline} plan=${run.plan} at=${at} onOpen=${onOpen} readAll=${readAll} newest=${newest} />
  </article>`;
}
