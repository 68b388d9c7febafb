// What the page asks the server, and the one line of events that each visible tab keeps open.

import { useCallback, useEffect, useRef, useState } from "./vendor/preact-htm.js";

const SECRET = "kairos-secret"; // in the storage of this origin alone: a cookie would go to every port of this machine

/** An answer of the server that is no success; `hint` says what to do, `status` is HTTP's. */
export class RequestFailed extends Error {
  constructor(status, error) {
    super(error?.message || `The server answered ${status}.`);
    this.status = status;
    this.code = error?.code;
    this.hint = error?.hint || "";
  }
}

async function answerTo(path, { headers, ...options } = {}) {
  const secret = { "x-kairos-secret": localStorage.getItem(SECRET) || "" };
  try {
    return await fetch(path, { credentials: "omit", ...options, headers: { ...headers, ...secret } });
  } catch {
    throw new RequestFailed(0, { message: "The server does not answer.", hint: "`kairos-mcp ui` starts it again." });
  }
}

async function request(path, options) {
  const response = await answerTo(path, options);
  if (response.ok) return response;
  if (response.status === 401 && path !== "api/enter" && path !== "api/me") location.reload(); // the session has ended
  throw new RequestFailed(response.status, (await response.json().catch(() => ({}))).error);
}

function withQuery(path, query) {
  const given = Object.entries(query).filter(([, value]) => value != null && value !== "");
  return given.length ? `${path}?${new URLSearchParams(given)}` : path;
}

export const get = async (path, query = {}) => (await request(withQuery(path, query))).json();

async function post(path, body) {
  const headers = { "content-type": "application/json" };
  return (await request(path, { method: "POST", headers, body: JSON.stringify(body) })).json();
}

/** Have the browser save what `path` answers as a file: a plain link could not send the secret. Raises RequestFailed. */
export async function save(path, query, name) {
  const href = URL.createObjectURL(await (await request(withQuery(path, query))).blob());
  Object.assign(document.createElement("a"), { href, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(href), 60_000); // by then the browser has begun to read it
}

/** Carry out what a person decided; returns {said, run_id?}. Raises RequestFailed. */
export const act = (name, fields) => post("api/act", { act: name, ...fields });

/** Enter with a one-time code, or with the secret that is kept; returns what `api/me` says. Raises RequestFailed. */
export async function enter(code) {
  if (code) localStorage.setItem(SECRET, (await post("api/enter", { code })).secret);
  return get("api/me");
}

// A browser holds six connections to a server, which all tabs share: so each tab has one line, and none while hidden.
const listeners = new Set();
let line = null; // what ends it
let lineRun = null;
let lineIsUp = false;
let lastId = "";

const AGAIN_MS = 1000; // from the end of a line to the next one

const tell = (kind, data) => listeners.forEach((listener) => listener(kind, data));

function setUp(isUp) {
  if (lineIsUp !== isUp) tell("up", (lineIsUp = isUp));
}

function close() {
  line?.abort();
  line = null;
}

/** Open a line in place of the one that there is, and another one after it has ended. */
async function open() {
  close();
  if (document.hidden) return;
  const opened = (line = new AbortController());
  const query = lineRun ? { run: lineRun, after: lastId } : {};
  try {
    // not an EventSource, which sends no header of ours
    const response = await request(withQuery("api/events", query), { signal: opened.signal });
    setUp(true);
    for await (const event of readEvents(response.body)) {
      if (opened !== line) return;
      if (event.id) lastId = event.id;
      if (event.event) tell(event.event, JSON.parse(event.data));
    }
  } catch (failure) {
    if (opened === line && failure.status && failure.status !== 401) tell("refused", lineRun);
  }
  if (opened !== line) return;
  setUp(false);
  setTimeout(() => opened === line && open(), AGAIN_MS);
}

/** The fields of each event of a stream, as the server writes them: a line for each, and an empty one at the end. */
async function* readEvents(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (let part = await reader.read(); !part.done; part = await reader.read()) {
    text += part.value;
    const events = text.split("\n\n");
    text = events.pop();
    for (const event of events) yield Object.fromEntries(event.split("\n").map(readField));
  }
}

function readField(field) {
  const at = field.indexOf(": ");
  return [field.slice(0, at), field.slice(at + 2)];
}

/** Listen to one run beside the list, or to the list alone (null). */
export function follow(run) {
  if (line && lineRun === run) return;
  if (lineRun !== run) lastId = "";
  lineRun = run;
  open();
}

document.addEventListener("visibilitychange", () => (document.hidden ? close() : line || open()));

/** Have `onEvent(kind, data)` called with each event of the line; returns whether the line is up. */
export function useEvents(onEvent) {
  const [isUp, setIsUp] = useState(lineIsUp);
  const current = useRef(onEvent);
  current.current = onEvent;
  useEffect(() => {
    const listener = (kind, data) => (kind === "up" ? setIsUp(data) : current.current(kind, data));
    listeners.add(listener);
    return () => listeners.delete(listener);
  }, []);
  return isUp;
}

const RELOAD_MS = 1000; // at most so often after changes

/** What `path` answers, kept up to date with the runs; {value, failure, reload}. */
export function useFetched(path, query = {}) {
  const [state, setState] = useState({ value: null, failure: null });
  const key = `${path}?${JSON.stringify(query)}`;
  const newest = useRef(key);
  newest.current = key;
  const timer = useRef(0);
  const reload = useCallback(async () => {
    try {
      const value = await get(path, query);
      if (newest.current === key) setState({ value, failure: null });
    } catch (failure) {
      if (newest.current === key) setState((before) => ({ ...before, failure }));
    }
  }, [key]);
  useEffect(() => {
    setState({ value: null, failure: null });
    reload();
    return () => clearTimeout(timer.current);
  }, [key]);
  useEvents((kind) => {
    if (kind !== "runs" || timer.current) return;
    timer.current = setTimeout(() => {
      timer.current = 0;
      reload();
    }, RELOAD_MS);
  });
  return { ...state, reload };
}
