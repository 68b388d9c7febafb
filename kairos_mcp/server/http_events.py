"""The newest events of each session's streams, so that a client which lost its connection misses none.

Up to 2025-11-25 a client comes back with the id of the last event that it got (`Last-Event-ID`). In memory and bounded:
the rows of a run hold all that matters for longer.
"""

from __future__ import annotations

from collections import deque
from contextvars import ContextVar

from mcp.server.streamable_http import EventCallback, EventMessage, EventStore
from mcp_types import JSONRPCError, JSONRPCMessage, JSONRPCResponse, jsonrpc_message_adapter

from kairos_mcp.core.quick_dataclass import dataclass

MAX_EVENTS = 256
MAX_BYTES = 2**20
RETRY_MS = 1_000  # how long a client waits before it comes back


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """An event of a stream, its message as JSON: a result of a run took 5.4 kB as an object, and takes 1.3. Without a
    message it only names a place to come back to. `ends_stream`: it answers a request, so that nothing more comes."""

    number: int
    stream: str
    encoded: bytes
    ends_stream: bool

    def decode(self) -> JSONRPCMessage | None:
        """Return the message."""
        return jsonrpc_message_adapter.validate_json(self.encoded, by_name=False) if self.encoded else None


class SessionEvents:
    """The events of one session, oldest first; the oldest go where there are too many, of whatever stream."""

    def __init__(self) -> None:
        self._events: deque[StoredEvent] = deque()
        self._bytes = 0
        self._count = 0

    def add(self, stream: str, message: JSONRPCMessage | None) -> str:
        """Store an event and return its id, which no other event of this session has."""
        encoded = b"" if message is None else message.model_dump_json(by_alias=True, exclude_unset=True).encode()
        ends_stream = isinstance(message, JSONRPCResponse | JSONRPCError) and message.id is not None
        self._count += 1
        self._events.append(StoredEvent(self._count, stream, encoded, ends_stream))
        self._bytes += len(encoded)
        while len(self._events) > MAX_EVENTS or self._bytes > MAX_BYTES:
            self._bytes -= len(self._events.popleft().encoded)
        return str(self._count)

    def find(self, event_id: str) -> StoredEvent | None:
        """Return the event of this id; None where it was never there, or is there no more."""
        return next((event for event in self._events if str(event.number) == event_id), None)

    def next_after(self, event: StoredEvent) -> StoredEvent | None:
        """Return the event that came next on the same stream."""
        return next(
            (later for later in self._events if later.number > event.number and later.stream == event.stream), None
        )


_events: ContextVar[SessionEvents | None] = ContextVar("kairos_events", default=None)


def set_events(events: SessionEvents) -> None:
    """Store events there from here on, in this context: that of a request, and of the session that it begins."""
    _events.set(events)


class EventsOfSessions(EventStore):
    """The SDK's store of events. It names streams by the numbers of requests, which every session counts for itself.

    So each session has events of its own, found by the context, and none can ask for those of another."""

    async def store_event(self, stream_id: str, message: JSONRPCMessage | None) -> str:
        """Store an event of a stream of this session."""
        return _current().add(stream_id, message)

    async def replay_events_after(self, last_event_id: str, send_callback: EventCallback) -> str | None:
        """Send what came after that event on its stream, and return the stream, unless it has ended."""
        events = _current()
        event = events.find(last_event_id)
        while event is not None and not event.ends_stream:
            following = events.next_after(event)
            if following is None:
                return event.stream  # returned without another wait: what comes from now on is sent as it comes
            if (message := following.decode()) is not None:
                await send_callback(EventMessage(message, str(following.number)))
            event = following
        return None


def _current() -> SessionEvents:
    events = _events.get()
    assert events is not None  # set by StreamableTransport for each request of a session
    return events
