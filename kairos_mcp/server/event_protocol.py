"""Events in the protocol: the kinds that clients are listed, what narrows each, and the requests about them."""

from __future__ import annotations

from typing import Any

import mcp_types as wire
from mcp.shared.exceptions import MCPError

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
    """Return a kind of event by its name, None if absent."""
    return next((event for event in EVENTS if event["name"] == name), None)


class PlainError(MCPError):
    """An error that repeats nothing of what the client sent."""


class EventParams(wire.RequestParams):
    """The kind of event that a request is about, and what narrows it."""

    name: str
    arguments: dict[str, Any] | None = None
    cursor: str | None = None
    max_age_ms: int | None = None


class PollParams(EventParams):
    """The parameters of events/poll and events/stream."""

    max_events: int | None = None


class SubscribeParams(EventParams):
    """The parameters of events/subscribe and events/unsubscribe."""

    delivery: dict[str, Any]
    ttl_ms: int | None = None
