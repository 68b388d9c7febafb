// What the page asks the server, and the one line of events that each visible tab keeps open.

import { useCallback, useEffect, useRef, useState } from "./vendor/preact-htm.js";

let csrf = "";

/** An answer of the server that is no success; `hint` says what to do, `status` is HTTP's. */
export class RequestFailed extends Error {
  constructor(status, error) {
    super(error?.message || `The server answered ${status}.`);
    this.status = status;
    this.code = error?.code;
    this.hint = error?.hint || "";
  }
}

async function request(path, options) {
  let response;
  try {
    response = await fetch(path, { credentials: "same-origin", ...options });
  } catch {
    throw new RequestFailed(0, { message: "The server does not answer.", hint: "`kairos-mcp ui` starts it again." });
  }
  const body = await response.json().catch(() => ({}));
  if (response.status === 401 && path !== "api/enter" && path !== "api/me") location.reload(); // the session has ended
  if (!response.ok) throw new RequestFailed(response.status, body.error);
  return body;
}

export function get(path, query = {}) {
  const given = Object.entries(query).filter(([, value]) => value != null && value !== "");
  return request(given.length ? `${path}?${new URLSearchParams(given)}` : path);
}

function post(path, body) {
  const headers = { "content-type": "application/json", "x-kairos-csrf": csrf };
  return request(path, { method: "POST", headers, body: JSON.stringify(body) });
}

/** Carry out what a person decided; returns {said, run_id?}. Raises RequestFailed. */
export const act = (name, fields) => post("api/act", { act: name, ...fields });

/** Enter with a one-time code, or with the session that there is; returns what `api/me` says. Raises RequestFailed. */
export async function enter(code) {
  if (code) csrf = (await post("api/enter", { code })).csrf;
  const me = await get("api/me");
  csrf = me.csrf;
  return me;
}

// A browser holds six connections to a server, which all tabs share: so each tab has one line, and none while hidden.
const listeners = new Set();
let line = null;
let lineRun = null;
let lineIsUp = false;
let lastId = "";

const tell = (kind, data) => listeners.forEach((listener) => listener(kind, data));

function setUp(isUp) {
  if (lineIsUp !== isUp) tell("up", (lineIsUp = isUp));
}

function close() {
  line?.close();
  line = null;
}

function open() {
  close();
  if (document.hidden) return;
  const query = new URLSearchParams(lineRun ? { run: lineRun, ...(lastId && { after: lastId }) } : {});
  const opened = (line = new EventSource(`api/events?${query}`));
  opened.onopen = () => setUp(true);
  opened.onerror = () => {
    setUp(false);
    if (opened.readyState === EventSource.CLOSED && opened === line) reopen(); // else the browser tries again by itself
  };
  for (const kind of ["me", "run", "runs", "steps"]) {
    opened.addEventListener(kind, (event) => {
      if (opened !== line) return;
      if (event.lastEventId) lastId = event.lastEventId;
      tell(kind, JSON.parse(event.data));
    });
  }
}

/** A line that the server refused stays closed: look whether there is still a session, then open another. */
async function reopen() {
  close();
  try {
    await get("api/me");
    tell("refused", lineRun);
  } catch (failure) {
    if (failure.status === 401) location.reload();
  }
  setTimeout(() => line || open(), 1000);
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
