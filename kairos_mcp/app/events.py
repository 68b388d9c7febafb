"""What happened to a principal's runs and mandates: read from rows, from a position on, or since a time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from kairos_mcp.app.context import Operations
from kairos_mcp.app.run_pool import EVERY_RUN
from kairos_mcp.core.decision_rights import Caller
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.store import events
from kairos_mcp.store.events import EventFilter, Position
from kairos_mcp.store.rows import Session
from kairos_mcp.views.event_view import as_occurrence, describe_event

MAX_EVENTS = 100  # of one page
MAX_SINCE = 500
LOOK_S = 5.0  # between two looks for a stream at most
GATHER_S = 0.1  # from a commit to the look that follows it


class EventPage(NamedTuple):
    """Events, as the extension for events has them, and where the next page begins. `positions`: after each of them."""

    events: Sequence[JsonObject]
    end: Position
    has_more: bool
    positions: Sequence[Position]


class Events(Operations):
    """Read events."""

    async def read_position(self) -> Position:
        """Return the position after what has happened by now."""
        return await self._store.read(events.newest_position) if self._store.exists else events.BEGINNING

    async def read_after(
        self, after: Position, wanted: EventFilter, caller: Caller, limit: int = MAX_EVENTS, since: int | None = None
    ) -> EventPage:
        """Return at most `limit` events after a position; none from before `since` (ms since 1970)."""
        if not self._store.exists:
            return EventPage((), after, has_more=False, positions=())
        page = self._context.find_page(caller)

        def read(session: Session) -> EventPage:
            newest = events.newest_position(session)
            found = events.read_after(session, after, wanted, limit + 1)
            shown, has_more = found[:limit], len(found) > limit
            end = shown[-1].position if has_more else max(after, newest)
            shown = [row for row in shown if since is None or row.at >= since]
            told = [as_occurrence(row, describe_event(session, row, caller, page)) for row in shown]
            return EventPage(told, end, has_more, [row.position for row in shown])

        return await self._store.read(read, one_state=True)

    async def list_since(self, at: int, caller: Caller, *, everywhere: bool) -> list[JsonObject]:
        """Return what has happened since a time (ms since 1970) in the workspaces at hand, or in all."""
        workspaces = None if everywhere else self._context.listed_workspaces
        wanted, page = EventFilter(caller.principal, workspaces=workspaces), self._context.find_page(caller)

        def read(session: Session) -> list[JsonObject]:
            found = events.read_since(session, at, wanted, MAX_SINCE)
            return [as_occurrence(row, describe_event(session, row, caller, page)) for row in found]

        return await self._store.read(read, one_state=True) if self._store.exists else []

    async def is_truncated(self, position: Position) -> bool:
        """Whether events after a position are kept no more."""
        if not self._store.exists or position == events.BEGINNING:
            return False
        oldest = await self._store.read(events.oldest_id)
        return oldest is not None and position.event < oldest - 1

    def next_change(self, within_s: float) -> asyncio.Task[None]:
        """Return a task that ends a moment after a commit, or after these seconds."""
        self._context.watcher.watch()

        async def wait() -> None:
            await self._pool.change_signal.wait((EVERY_RUN,), min(within_s, LOOK_S), urgent=False)
            await asyncio.sleep(GATHER_S)

        return asyncio.create_task(wait())
