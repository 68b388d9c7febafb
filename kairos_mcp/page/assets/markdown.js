// Markdown of models as elements: a part of it, and never HTML. What it doesn't know stays the text that it is.

import { html } from "./vendor/preact-htm.js";
import { revealHidden } from "./format.js";

// No part of it looks further than to the next sign of its kind, or to the end of a paragraph a few times: it takes time
// in proportion to the text.
const INLINE = /(?<!`)(`{1,4})(?!`)(.+?)(?<!`)\1(?!`)|\*\*(?!\*)(.+?)\*\*|(?<![\w*])\*([^\s*](?:[^*]*[^\s*])?)\*(?![\w*])|\[([^[\]]*)\]\(([^()\s]*)\)/g;
const MAX_CHARS = 200_000; // a longer text is shown as it is, and so is a paragraph that is longer than the next
const MAX_PARAGRAPH_CHARS = 5_000;
const MAX_DEPTH = 4;

/** A line's emphasis, code and links. A link is words with its address beside them: nobody is led somewhere unseen. */
function inline(text, depth = 0) {
  const parts = [];
  let from = 0;
  for (const found of depth < MAX_DEPTH && text.length <= MAX_PARAGRAPH_CHARS ? text.matchAll(INLINE) : []) {
    const [whole, , code, strong, emphasis, words, address] = found;
    if (found.index > from) parts.push(revealHidden(text.slice(from, found.index)));
    if (code != null) parts.push(html`<code>${revealHidden(code)}</code>`);
    else if (strong != null) parts.push(html`<strong>${inline(strong, depth + 1)}</strong>`);
    else if (emphasis != null) parts.push(html`<em>${inline(emphasis, depth + 1)}</em>`);
    else parts.push(html`<span>${inline(words, depth + 1)} <span class="address">(${revealHidden(address)})</span></span>`);
    from = found.index + whole.length;
  }
  if (from < text.length) parts.push(revealHidden(text.slice(from)));
  return parts;
}

const FENCE = /^\s*(```+|~~~+)/;
const HEADING = /^(#{1,6})\s+(.*)$/;
const ITEM = /^(\s*)(?:[-*+]|(\d{1,9})[.)])\s+(.*)$/;
const QUOTE = /^>\s?(.*)$/;
const isPlain = (line) => line.trim() && !FENCE.test(line) && !HEADING.test(line) && !ITEM.test(line) && !QUOTE.test(line);

/** The lines from `at` on that a test holds for. */
function takeWhile(lines, at, test) {
  let end = at;
  while (end < lines.length && test(lines[end])) end += 1;
  return lines.slice(at, end);
}

function listOf(lines) {
  const items = [];
  for (const line of lines) {
    const [, indent, number, words] = line.match(ITEM) || [];
    if (words == null) items.at(-1).words += ` ${line.trim()}`;
    else items.push({ depth: Math.min(3, Math.floor(indent.length / 2)), number, words });
  }
  return html`<ul class="marked">${items.map(({ depth, number, words }) => html`<li class="depth-${depth}">
    <span class="sign" aria-hidden="true">${number ? `${number}.` : "•"}</span><span>${inline(words)}</span></li>`)}</ul>`;
}

export function Markdown({ text }) {
  const lines = text.replaceAll("\r\n", "\n").split("\n");
  if (text.length > MAX_CHARS || lines.some((line) => line.length > MAX_PARAGRAPH_CHARS)) {
    return html`<p>${revealHidden(text)}</p>`;
  }
  const blocks = [];
  for (let at = 0; at < lines.length;) {
    const fence = lines[at].match(FENCE)?.[1];
    const heading = lines[at].match(HEADING);
    if (!lines[at].trim()) at += 1;
    else if (fence) {
      const inside = takeWhile(lines, at + 1, (line) => !line.trim().startsWith(fence));
      blocks.push(html`<pre tabindex="0">${revealHidden(inside.join("\n"))}</pre>`);
      at += inside.length + 2;
    } else if (heading) {
      blocks.push(html`<h3 class="marked">${inline(heading[2].trimEnd().replace(/(?<![#])#+$/, ""))}</h3>`);
      at += 1;
    } else {
      const kinds = [[ITEM, (line) => ITEM.test(line) || /^\s+\S/.test(line)], [QUOTE, (line) => QUOTE.test(line)]];
      const [kind, test] = kinds.find(([pattern]) => pattern.test(lines[at])) || [null, isPlain];
      const taken = takeWhile(lines, at, test);
      if (kind === ITEM) blocks.push(listOf(taken));
      else if (kind === QUOTE) blocks.push(html`<blockquote>${inline(taken.map((line) => line.match(QUOTE)[1]).join(" "))}
        </blockquote>`);
      else blocks.push(html`<p>${inline(taken.join("\n"))}</p>`);
      at += taken.length;
    }
  }
  return html`<div class="marked">${blocks}</div>`;
}
