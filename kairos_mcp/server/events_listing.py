"""The kinds of events that clients are listed, with the arguments that narrow each."""

from __future__ import annotations

from typing import Any

_TEXT = {"type": "string"}
_OF_RUN = {
    "workspace": {"type": "string", "description": "The name or the path of a workspace."},
    "mandate_id": {"type": "string", "description": "The id of a mandate."},
    "run_id": {"type": "string", "description": "The id of a run."},
}
_OF_MANDATE = {name: _OF_RUN[name] for name in ("workspace", "mandate_id")}


def _event(name: str, description: str, arguments: dict[str, Any], what: tuple[str, ...] = ()) -> dict[str, Any]:
    narrowed = {"what": {"type": "string", "enum": list(what)}} if what else {}
    said = {"text": {"type": "string", "maxLength": 200}, "link": _TEXT, "workspace": _TEXT, "mandate_id": _TEXT}
    more = {"run_id": _TEXT, "flow": _TEXT, "status": _TEXT, "stop_reason": _TEXT, "what": _TEXT, "key": _TEXT}
    return {
        "name": name,
        "description": description,
        "delivery": ["poll", "push", "webhook"],
        "inputSchema": {"type": "object", "properties": {**arguments, **narrowed}, "additionalProperties": False},
        "payloadSchema": {"type": "object", "properties": {**said, **more}, "required": ["text"]},
    }


EVENTS = [
    _event("run.waiting", "A run waits for a person.", _OF_RUN, ("approval", "settle", "pause")),
    _event("run.ended", "A run has ended by itself, failed or was cancelled.", _OF_RUN),
    _event("run.stopped", "A limit or a guard has stopped a run.", _OF_RUN),
    _event("budget.near", "90 % of a limit is used.", _OF_RUN, ("run", "mandate", "day")),
    _event("mandate.due", "A mandate is run by its schedule.", _OF_MANDATE),
    _event("mandate.ended", "A mandate is done, or was stopped for good.", _OF_MANDATE),
]


def find_event(name: str) -> dict[str, Any] | None:
    """Return a kind of event by its name, None where there is none."""
    return next((event for event in EVENTS if event["name"] == name), None)
