"""The events of configured servers: one that streams them is listened to, any other is polled at each look.

A stream is news of what happens from now on. Where a listener stands is the cursor in its row: the server is polled
from there before anything is taken from a stream, so what a stream missed, or a process heard that was killed, is found
again. A server that can't be polled goes on from that cursor in its stream.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Set
from functools import partial
from typing import NamedTuple

from kairos_mcp.app.context import AppContext
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.tools.mcp_servers.event_stream import EventPage, EventStream, read_page

POLL_S = 30.0  # for a server to start and to say what has happened
MOST_PAUSE_S = 300.0  # between two tries of a stream


class EventSource(NamedTuple):
    """A kind of event of a server, narrowed by arguments (canonical JSON): what one request is about."""

    workspace: str | None
    server: str
    event: str
    arguments: str


class _SourceStream(NamedTuple):
    """The newest stream of a source. `failures`: tries in a row that brought no event; `again_at`: when to
    try again once it has ended, by `time.monotonic`."""

    stream: EventStream
    failures: int
    again_at: float


class ServerEvents:
    """The events of configured servers for the mandates of this process. `heard` is set when a stream has new ones."""

    def __init__(self, context: AppContext) -> None:
        self.heard = asyncio.Event()
        self._context = context
        self._held: dict[EventSource, _SourceStream] = {}
        self._passed: dict[str, EventPage] = {}  # the newest page that each listener is done with

    async def read_page(
        self, source: EventSource, listener: str, cursor: str | None, *, is_new: bool
    ) -> EventPage | None:
        """Return the next events for a listener, whose row has this cursor; `is_new`: it has no row yet, and hears of
        what happens from now on. None where the server gives none that can be read. Raises KairosError."""
        held = self._held.get(source)
        live = held.stream if held is not None and held.stream.is_live else None
        passed = self._passed.get(listener)
        if live is not None and passed is not None and passed.stream is live:
            return live.page_after(passed.event_count)
        event_count = 0 if live is None else live.event_count
        server = self._context.factory.find_server(source.workspace, source.server)
        answer = await asyncio.to_thread(server.poll_events, _params(source, cursor), time.monotonic() + POLL_S)
        if answer is not None:
            page = read_page(answer)
            return page if page is None else page._replace(stream=live, event_count=event_count)
        if live is not None:
            return live.page_after(event_count if is_new else 0)
        self._open(source, cursor)
        return None

    def pass_page(self, source: EventSource, listener: str, page: EventPage) -> None:
        """Take note that a listener is done with a page. Once nothing is behind it, the server's stream is opened."""
        if not page.has_more:
            self._passed[listener] = page
            self._open(source, page.cursor)

    def _open(self, source: EventSource, cursor: str | None) -> None:
        """Open a stream from a cursor, unless there is one, or the last one failed just now."""
        failures, now = 0, time.monotonic()
        if (held := self._held.get(source)) is not None:
            if not held.stream.has_ended or now < held.again_at:
                return
            failures = 0 if held.stream.was_live else held.failures + 1
        stream = EventStream(cursor, partial(asyncio.get_running_loop().call_soon_threadsafe, self.heard.set))
        self._held[source] = _SourceStream(stream, failures, now + min(MOST_PAUSE_S, 2**failures))
        self._context.factory.find_server(source.workspace, source.server).stream_events(
            _params(source, cursor), stream
        )

    def keep_only(self, sources: Set[EventSource]) -> None:
        """End the streams of all other sources."""
        for source in self._held.keys() - sources:
            self._held.pop(source).stream.end()


def _params(source: EventSource, cursor: str | None) -> JsonObject:
    return {"name": source.event, "arguments": json.loads(source.arguments), "cursor": cursor}
