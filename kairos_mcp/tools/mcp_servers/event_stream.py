"""The events of a downstream server: a page that was polled, or a stream of them.

Of an event the hash of its id is kept and nothing else: it starts a mandate, which observes by its own tools.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from hashlib import sha256
from typing import NamedTuple

from kairos_mcp.core.messages import JsonObject

MAX_STREAM_EVENTS = 500  # events of one stream: behind them it is ended, and the next one goes on from a cursor
MAX_CURSOR = 10_000  # characters
SILENT_S = 60.0  # after which a stream counts as lost: a server without events sends heartbeats
SUBSCRIPTION_ID = "io.modelcontextprotocol/subscriptionId"  # in `_meta` of a stream's notifications: its request's id
METHOD_PREFIX = "notifications/events/"  # what the methods of a stream's notifications begin with


class EventPage(NamedTuple):
    """Events in their order, by the hashes of their ids, and the cursor behind them. `has_more`: there are others
    already. `stream`: the one that brought them, or that was live before they were polled; `event_count`: how many it
    had brought by then, all of them in this page or before it."""

    ids: tuple[str, ...]
    cursor: str | None
    has_more: bool = False
    stream: EventStream | None = None
    event_count: int = 0


class EventStream:
    """A stream of events. The background loop fills it, and any thread reads it.

    `changed` is called once it is live and with each event. `was_live`: the server has confirmed the subscription.
    """

    def __init__(self, cursor: str | None, changed: Callable[[], object]) -> None:
        self.was_live = False
        self.has_ended = False
        self.holding: Future[None] | None = None
        self._cursor = cursor
        self._changed = changed
        self._ids: list[str] = []

    @property
    def is_live(self) -> bool:
        return self.was_live and not self.has_ended

    @property
    def event_count(self) -> int:
        """How many events came."""
        return len(self._ids)

    def page_after(self, event_count: int) -> EventPage:
        """Return what came after this many events. The cursor is read first: it is behind no event that is left out."""
        cursor, ids = self._cursor, tuple(self._ids[event_count:])
        return EventPage(ids, cursor, stream=self, event_count=event_count + len(ids))

    def take(self, method: str, params: JsonObject) -> bool:
        """Take in a notification; return whether more are wanted."""
        if self.has_ended or self.event_count >= MAX_STREAM_EVENTS:
            return False
        event = hash_id(params)
        if method == f"{METHOD_PREFIX}event" and event is not None:
            self._ids.append(event)
        if is_cursor(cursor := params.get("cursor")):
            self._cursor = cursor
        if method in (f"{METHOD_PREFIX}active", f"{METHOD_PREFIX}event"):
            self.was_live = True
            self._changed()
        return method != f"{METHOD_PREFIX}terminated" and self.event_count < MAX_STREAM_EVENTS

    def end(self) -> None:
        """Have it end, unless it has."""
        self.has_ended = True
        if self.holding is not None:
            self.holding.cancel()


def read_page(answer: JsonObject) -> EventPage | None:
    """Read the answer to events/poll; None if it isn't one."""
    match answer:
        case {"events": [*found], "cursor": cursor} if cursor is None or is_cursor(cursor):
            ids = tuple(found_id for event in found if (found_id := hash_id(event)) is not None)
            return EventPage(ids, cursor, answer.get("hasMore") is True) if len(ids) == len(found) else None
        case _:
            return None


def is_cursor(value: object) -> bool:
    """Whether it is a cursor that is kept."""
    return isinstance(value, str) and len(value) <= MAX_CURSOR


def hash_id(event: object) -> str | None:
    """Return the hash of an event's id; None where it has none."""
    if not isinstance(event, dict) or "eventId" not in event:
        return None
    return sha256(str(event["eventId"]).encode()).hexdigest()[:40]
