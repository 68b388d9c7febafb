// Units, as core/limits.py declares them. Made by tests/page/registers.py.

export const UNITS = [
  {"name": "rounds", "label": "rounds", "words": "round", "isMain": true},
  {"name": "model_calls", "label": "model calls", "words": "model calls"},
  {"name": "tool_calls", "label": "tool calls", "words": "tool calls", "isMain": true},
  {"name": "total_tokens", "label": "tokens", "words": "tokens", "isMain": true},
  {"name": "input_tokens", "label": "input tokens", "words": "tokens in"},
  {"name": "output_tokens", "label": "output tokens", "words": "tokens out"},
  {"name": "usd", "label": "cost", "words": "$", "isMain": true},
  {"name": "seconds", "label": "time", "words": "s"},
];
