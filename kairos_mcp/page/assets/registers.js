// Routes, units and phases, as their registers declare them. Made by tests/page/registers.py.

export const ROUTES = {
  "auto": {"about": "whatever is configured"},
  "scripted": {"about": "a script", "answeredBy": "server"},
  "provider": {"about": "the provider that is configured", "answeredBy": "server"},
  "sampling": {"about": "a client's model", "answeredBy": "client"},
  "caller": {"about": "whoever calls the server", "answeredBy": "caller"},
};

export const UNITS = [
  {"name": "rounds", "label": "rounds", "words": "round", "isMain": true},
  {"name": "model_calls", "label": "model calls", "words": "model calls", "isMain": false},
  {"name": "tool_calls", "label": "tool calls", "words": "tool calls", "isMain": true},
  {"name": "total_tokens", "label": "tokens", "words": "tokens", "isMain": true},
  {"name": "input_tokens", "label": "input tokens", "words": "tokens in", "isMain": false},
  {"name": "output_tokens", "label": "output tokens", "words": "tokens out", "isMain": false},
  {"name": "usd", "label": "cost", "words": "$", "isMain": true},
  {"name": "seconds", "label": "time", "words": "s", "isMain": false},
];

export const PHASES = ["observe", "orient", "decide", "act", "reflect"];
