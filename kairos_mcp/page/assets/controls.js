// Operations, routes and phases, as their registers declare them. Made by tests/page/registers.py.

export const CONTROLS = [
  {"name": "pause", "about": "Pause a run: what is under way ends, and nothing new begins until it is resumed.", "label": "Pause", "shown": "moving", "fields": []},
  {"name": "resume", "about": "Go on with a run that was paused, or whose process died.", "label": "Resume", "shown": "paused", "fields": []},
  {"name": "extend", "about": "Add to the limits of a run that has not ended.", "label": "Extend", "rest": "limits", "title": "Allow more", "note": "Added to what is left of this run's limits, as far as the configuration allows.", "shown": "open", "fields": [{"name": "limits", "label": "", "input": "limits"}]},
  {"name": "reroute", "about": "Change where a run's completions come from, and go on with it.", "label": "Reroute", "rest": "model", "title": "Let another answer", "shown": "open", "fields": [{"name": "route", "label": "From now on", "input": "route"}]},
  {"name": "cancel", "about": "Cancel a run; what it did is kept.", "label": "Cancel run", "title": "Cancel this run?", "note": "It ends now and can't be resumed. Its record stays; files that it changed stay changed.", "shown": "open", "isDangerous": true, "fields": []},
];

export const ROUTES = {
  "auto": {"about": "whatever is configured"},
  "scripted": {"about": "a script", "answeredBy": "server"},
  "provider": {"about": "the provider that is configured", "answeredBy": "server"},
  "sampling": {"about": "a client's model", "answeredBy": "client"},
  "caller": {"about": "whoever calls the server", "answeredBy": "caller"},
};

export const PHASES = ["observe", "orient", "decide", "act", "reflect"];
