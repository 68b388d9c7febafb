// Values into words: money, counts, durations, times, paths of steps. Pure, and the same for page and app.

export const plural = (n, noun) => `${n} ${noun}${n === 1 ? "" : "s"}`;

export function formatMoney(usd) {
  if (usd == null) return "–";
  if (usd === 0) return "$0";
  return usd < 0.01 ? "<$0.01" : `$${usd.toFixed(2)}`;
}

export function formatCount(n) {
  if (n == null) return "–";
  if (n < 1000) return String(n);
  if (n < 1e6) return `${(n / 1e3).toFixed(n < 1e4 ? 1 : 0)}k`;
  return `${(n / 1e6).toFixed(2)}M`;
}

/** A duration in milliseconds, in at most two units. */
export function formatDuration(ms) {
  if (ms == null) return "";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const seconds = ms / 1000;
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  const parts = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const first = parts.findIndex(([size]) => seconds >= size);
  const [size, unit] = parts[first];
  const [nextSize, nextUnit] = parts[first + 1];
  const rest = Math.floor((seconds % size) / nextSize);
  return `${Math.floor(seconds / size)} ${unit}${rest ? ` ${rest} ${nextUnit}` : ""}`;
}

/** An amount of a unit in which runs are limited; `words` is how the status line names it. */
export function formatUnit(words, amount) {
  if (words === "$") return formatMoney(amount);
  return words === "s" ? formatDuration(amount * 1000) : formatCount(amount);
}

/** How long ago a moment was; `at` and `now` in milliseconds since 1970. */
export function formatAgo(at, now = Date.now()) {
  const seconds = Math.max(0, (now - at) / 1000);
  if (seconds < 45) return "just now";
  if (seconds < 3600) return `${Math.max(1, Math.round(seconds / 60))} min ago`;
  return seconds < 86400 ? `${Math.round(seconds / 3600)} h ago` : `${Math.round(seconds / 86400)} d ago`;
}

/** A moment in the reader's own time zone; `at` in milliseconds since 1970, or ISO 8601. */
export const formatMoment = (at) =>
  new Date(at).toLocaleString(undefined, { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit" });

/** Milliseconds since 1970 of a number or of an ISO 8601 text; null for neither. */
export const timeOf = (at) => (at == null ? null : typeof at === "number" ? at : Date.parse(at));

// Control, zero-width and direction characters, and tags: a text could hide something with them.
const HIDDEN = new RegExp(
  "[\\u0000-\\u0008\\u000b-\\u001f\\u007f-\\u009f\\u00ad\\u034f\\u061c\\u115f\\u1160\\u17b4\\u17b5\\u180b-\\u180e" +
    "\\u200b-\\u200f\\u2028-\\u202e\\u2060-\\u206f\\u3164\\ufe00-\\ufe0f\\ufeff\\uffa0\\ufff9-\\ufffb]" +
    "|[\\u{e0000}-\\u{e0fff}]",
  "gu",
);

/** A text with each invisible character spelled out: nothing may be approved unseen. */
export const revealHidden = (text) =>
  text.replace(HIDDEN, (char) => `⟨U+${char.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`);

/** What there is of these facts, in one line. */
export const joinFacts = (...facts) => facts.filter(Boolean).join(" · ");

/** The last part of a folder's path, by which a project is known. */
export const folderName = (path) => path?.split("/").at(-1);

/** What a folder is called beside others: its last name, with those above it where another one is called the same. */
export function nameAmong(path, paths) {
  const parts = path.split("/");
  let from = parts.length - 1;
  const isTaken = () => paths.some((other) => other !== path && other.endsWith(`/${parts.slice(from).join("/")}`));
  while (from > 0 && isTaken()) from -= 1;
  return parts.slice(from).join("/");
}

/** Whether something of this project is shown: of all where none is chosen, and what belongs to none. */
export const isInScope = (scope, workspace) => !scope || !workspace || workspace === scope;

/** `cycle-1/act` as "Cycle 1 · Act". */
export const formatPath = (path) =>
  path
    .split("/")
    .map((part) => part.charAt(0).toUpperCase() + part.slice(1).replace(/-(\d+)$/, " $1"))
    .join(" · ");

/** The arguments of a call in one line. */
export function formatArguments(values) {
  return Object.entries(values || {})
    .map(([name, value]) => `${name}: ${typeof value === "string" ? value : JSON.stringify(value)}`)
    .join("  ");
}

/** What a phase answered as JSON, as the sentence in it; any other text as it is. */
export function sentenceOf(text) {
  if (!text || text[0] !== "{") return text || "";
  try {
    const found = JSON.parse(text);
    if (found.summary) return found.summary;
    if (found.intent) return [found.action, found.target].filter(Boolean).join(" ") + `: ${found.intent}`;
    if (found.assessment) {
      return found.confidence == null ? found.assessment : `${found.assessment}, confidence ${found.confidence}`;
    }
    return typeof found.analysis === "string" ? found.analysis : text;
  } catch {
    return text; // cut, or no JSON
  }
}
