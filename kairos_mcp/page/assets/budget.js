// The budget: today with what is left, and two weeks of days, by whom.

import { html, useMemo, useState } from "./vendor/preact-htm.js";
import { StackedBars } from "./charts.js";
import { useFetched } from "./connection.js";
import { folderName, formatCount, formatDuration, formatMoney, isInScope } from "./format.js";
import { Meter } from "./view.js";
import { Failure } from "./waiting.js";

const DAY_MS = 86_400_000;
const UNITS = { usd: ["dollars", formatMoney, 0.01], total_tokens: ["tokens", formatCount, 1] };
const GROUPINGS = { model: "model", mandate: "mandate", agent: "agent", workspace: "project" };
const NARROW = "(max-width: 760px)";

const nameOf = (share, grouping) => {
  const value = grouping === "model" ? share.model || share.route : share[grouping];
  return grouping === "workspace" ? folderName(value) || "no project" : value || `no ${GROUPINGS[grouping]}`;
};

/** As many days up to today, the oldest first; those without a row are empty. */
function fillDays(days, today, count) {
  const known = new Map(days.map((day) => [day.day, day]));
  const last = Date.parse(`${today}T12:00:00Z`);
  return Array.from({ length: count }, (_, at) => {
    const day = new Date(last - (count - 1 - at) * DAY_MS).toISOString().slice(0, 10);
    return known.get(day) || { day, by: [] };
  });
}

const Choice = ({ label, options, value, onChange }) => html`<div class="tabs" role="group" aria-label=${label}>
  ${options.map(([name, words]) => html`<button aria-pressed=${String(value === name)} onClick=${() => onChange(name)}>
    ${words}</button>`)}</div>`;

export function BudgetPage({ scope }) {
  const { value, failure } = useFetched("api/budget");
  const [unit, setUnit] = useState("usd");
  const [grouping, setGrouping] = useState("model");
  const isNarrow = matchMedia(NARROW).matches;
  const days = useMemo(() => value && fillDays(value.days, value.today.day, isNarrow ? 7 : 14), [value]);
  if (!value) return html`<h1>Budget</h1><${Failure} failure=${failure} />`;
  const { today } = value;
  const [unitName, format, least] = UNITS[unit];
  const bars = days.map((day) => ({
    label: `${Number(day.day.slice(8))}.${Number(day.day.slice(5, 7))}.`,
    title: day.day,
    parts: day.by.filter((share) => isInScope(scope, share.workspace)).map((share) => ({ name: nameOf(share, grouping), value: share[unit] })),
  }));
  const parts = bars.flatMap((bar) => bar.parts);
  const names = [...new Set(parts.filter((part) => part.value).map((part) => part.name))].sort();
  const sum = parts.reduce((total, part) => total + part.value, 0);
  const shares = days.at(-1).by.filter((share) => isInScope(scope, share.workspace));
  const untilReset = Date.parse(today.resets_at) - Date.now();
  const meters = [
    ["cost", "usd", formatMoney],
    ["tokens", "total_tokens", formatCount],
    ["model calls", "model_calls", formatCount],
  ];
  return html`<h1>Budget</h1>
    <section class="card"><header class="split"><h2>Today${scope && html` <small class="quiet">of every project, as the limits are</small>`}</h2><span
      class="quiet">begins anew in ${formatDuration(Math.max(0, untilReset))} (midnight, ${today.time_zone})</span>
      </header>
      <div class="meters">${meters.map(([label, name, words]) => html`<${Meter} label=${label} used=${today.spent[name]}
        limit=${today.limits[name]} left=${today.remaining[name]} format=${words} />`)}</div>
      ${today.unpriced && html`<p class="quiet">Without a price, so not in the cost: ${today.unpriced.join(", ")}.</p>`}
      ${today.note && html`<p class="still">${today.note}</p>`}</section>
    <section class="card"><header class="split"><h2>${days.length === 7 ? "A week" : "Two weeks"} <small class="quiet">
      ${unit === "usd" ? formatMoney(sum) : `${formatCount(sum)} tokens`}</small></h2>
      <div class="choices"><${Choice} label="Unit" value=${unit} onChange=${setUnit}
        options=${Object.entries(UNITS).map(([name, [words]]) => [name, words])} />
      <${Choice} label="By whom" value=${grouping} onChange=${setGrouping}
        options=${Object.entries(GROUPINGS).map(([name, words]) => [name, `by ${words}`])} /></div></header>
      ${names.length ? html`<${StackedBars} bars=${bars} names=${names} format=${format} least=${least}
        label="${unitName} by day and ${GROUPINGS[grouping]}" width=${isNarrow ? 300 : 720} />`
        : html`<p class="empty small">Nothing was spent on these days.</p>`}</section>
    ${shares.length > 0 && html`<section class="card"><h2>Today, by whom</h2><div class="scroll" tabindex="0"
      role="group" aria-label="Today, by whom"><table class="plain">
      <thead><tr><th>model</th><th>agent</th><th>mandate</th><th>project</th><th class="n">calls</th>
        <th class="n">tokens</th><th class="n">cost</th></tr></thead>
      <tbody>${shares.map((share) => html`<tr><td>${share.model || share.route}</td><td>${share.agent || "–"}</td><td>
        ${share.mandate || "–"}</td><td>${folderName(share.workspace) || "–"}</td>
        <td class="n">${share.model_calls}</td><td class="n">${formatCount(share.total_tokens)}</td><td class="n">
          ${formatMoney(share.usd)}</td></tr>`)}</tbody></table></div></section>`}`;
}
