// Stacked bars as SVG: themed by the style sheet, printable, with a title on each part and a table for screen readers.

import { html } from "./vendor/preact-htm.js";

const HUES = 8;
const HEIGHT = 180;
const AXIS = 52; // room for the labels at the left
const [TOP, BOTTOM] = [8, 26];

/** The hue of a name: the same in every range and on every day. */
export function hueOf(name) {
  let hash = 7;
  for (const char of name) hash = (hash * 31 + char.codePointAt(0)) >>> 0;
  return hash % HUES;
}

/** Hues for names: each its own where it can be, so that two of one chart differ. */
function huesOf(names) {
  const taken = new Map();
  for (const name of [...names].sort()) {
    let hue = hueOf(name);
    for (let tries = 0; tries < HUES && [...taken.values()].includes(hue); tries++) hue = (hue + 1) % HUES;
    taken.set(name, hue);
  }
  return taken;
}

/** The next of 1, 2, 5, 10, … at or above a number. */
function roundUp(number) {
  const power = 10 ** Math.floor(Math.log10(number));
  return [1, 2, 5, 10].find((factor) => number <= factor * power) * power;
}

/** `bars`: [{label, title, parts: [{name, value}]}]. `format`: of a value. `names`: the parts, in drawing order. */
export function StackedBars({ bars, names, format, label, least, width = 720 }) {
  const hues = huesOf(names);
  const sums = bars.map((bar) => bar.parts.reduce((sum, part) => sum + part.value, 0));
  const top = roundUp(Math.max(...sums, least));
  const step = width / bars.length;
  const barWidth = Math.min(38, step * 0.62);
  const every = Math.ceil(bars.length / 15);
  const y = (value) => TOP + HEIGHT - (value / top) * HEIGHT;
  const valueOf = (bar, name) =>
    bar.parts.filter((part) => part.name === name).reduce((sum, part) => sum + part.value, 0);
  return html`<figure class="bars">
    <svg viewBox="0 0 ${width + AXIS + 8} ${TOP + HEIGHT + BOTTOM}" role="img" aria-label=${label}>
      ${[0, top / 2, top].map((value) => html`<g class="grid">
        <line x1=${AXIS - 4} x2=${width + AXIS + 4} y1=${y(value)} y2=${y(value)} />
        <text x=${AXIS - 10} y=${y(value) + 4} text-anchor="end">${format(value)}</text>
      </g>`)}
      ${bars.map((bar, at) => {
        const x = AXIS + at * step + (step - barWidth) / 2;
        let sum = 0;
        return html`<g class="day">
          ${names.map((name) => {
            const value = valueOf(bar, name);
            if (!value) return null;
            sum += value;
            return html`<rect class="hue-${hues.get(name)}" x=${x} y=${y(sum)} width=${barWidth}
              height=${Math.max(1, y(sum - value) - y(sum))} rx="1.5">
              <title>${bar.title} · ${name}: ${format(value)}</title></rect>`;
          })}
          ${at % every === 0 && html`<text x=${x + barWidth / 2} y=${TOP + HEIGHT + 18} text-anchor="middle">
            ${bar.label}</text>`}
        </g>`;
      })}
    </svg>
    <figcaption>${names.map((name) => html`<span><i class="hue-${hues.get(name)}"></i>${name}</span>`)}</figcaption>
    <details class="as-table"><summary>as a table</summary>
      <div class="scroll" tabindex="0" role="group" aria-label=${label}><table class="plain">
        <thead><tr><th>day</th>${names.map((name) => html`<th>${name}</th>`)}<th>all</th></tr></thead>
        <tbody>${bars.map((bar, at) => html`<tr><td>${bar.title}</td>${names.map((name) => html`<td>
          ${format(valueOf(bar, name))}</td>`)}<td>${format(sums[at])}</td></tr>`)}</tbody>
      </table></div></details>
  </figure>`;
}
