"""Start mandates on events, of other mandates and of configured servers, beside what schedules say. Workers do.

How far the events of a mandate were looked at is a row (`listener`), which begins when the mandate was saved. The run
that an event starts has the mandate's and the event's id as its key: so however many workers see it, and whatever is
killed, it starts one. While a run of the mandate is open, its events wait.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Set
from functools import partial
from hashlib import sha256

from kairos_mcp.app.context import AppContext, Operations
from kairos_mcp.app.runs import Runs
from kairos_mcp.app.server_events import EventSource, ServerEvents
from kairos_mcp.core.decision_rights import Caller
from kairos_mcp.core.errors import KairosError, Stale
from kairos_mcp.core.mandate import Trigger
from kairos_mcp.core.messages import canonical_json
from kairos_mcp.core.run_spec import CyclesRequest, MandateRef
from kairos_mcp.store import events, mandates
from kairos_mcp.store.events import EventFilter, EventRow, Position
from kairos_mcp.store.mandates import MandateRow
from kairos_mcp.store.rows import Session
from kairos_mcp.tools.mcp_servers.event_stream import EventPage

MAX_LOOKED_AT = 500  # events at a look

log = logging.getLogger(__name__)


class MandateTriggers(Operations):
    """The mandates that start on events."""

    def __init__(self, context: AppContext, runs: Runs) -> None:
        super().__init__(context)
        self._runs = runs
        self.server_events = ServerEvents(context)
        self._failed: dict[str, str] = {}  # why servers gave no events, as it was logged last

    async def start_triggered(self) -> bool:
        """Start a run for the next event of each mandate that has one; return whether there was any. Raises the store's
        errors."""
        folders = self._context.listed_workspaces, self._settings.place
        rows = await self._store.read(lambda session: mandates.list_triggered(session, *folders))
        self.server_events.keep_only({_source_of(row, trigger) for row in rows for trigger in row.parse().starts_on})
        return any([await self._start_next(row) for row in rows])

    async def _start_next(self, row: MandateRow) -> bool:
        mandate = row.parse()
        own = {(trigger.event, trigger.mandate_id) for trigger in mandate.starts_on if trigger.server is None}
        if own and await self._start_on_own(row, own):
            return True
        for trigger in mandate.starts_on:
            if trigger.server is not None and await self._start_on_server(row, trigger):
                return True
        return False

    async def _start_on_own(self, row: MandateRow, wanted: TriggerEvents) -> bool:
        """Start a run for the next of these events of other mandates."""
        name = _name_of(row)
        found = await self._store.read(lambda session: _find_next(session, name, row, wanted), one_state=True)
        if found is None:  # it was saved since the last look
            await self._store.submit(partial(_begin, name=name, row=row))
            found = await self._store.read(lambda session: _find_next(session, name, row, wanted), one_state=True)
        event, end = found or (None, None)
        if event is not None and not await self._start(row, f"event:{row.id}:{event.public_id}"):
            return False
        if end is not None:
            await self._store.submit(partial(events.move_forward, name=name, to=end))
        return event is not None

    async def _start_on_server(self, row: MandateRow, trigger: Trigger) -> bool:
        """Start a run for the next event of a server: a page is taken in order, and its cursor kept once each event of
        it has a run. The content of an event is not looked at: a mandate observes by its own tools."""
        name, source = _name_of(row, canonical_json(trigger.as_json())), _source_of(row, trigger)
        listener = await self._store.read(partial(events.find_listener, name=name))
        cursor = None if listener is None else json.loads(listener.state).get("cursor")
        page = await self._read_page(row, source, name, cursor, is_new=listener is None)
        if page is None:
            return False
        if listener is None:  # what has happened before is no reason to start
            await self._store.submit(partial(events.add_listener, name=name, principal=row.principal))
        else:
            for event in page.ids:
                key = f"event:{row.id}:{trigger.server}:{event}"
                if await self._store.read(partial(mandates.find_with_key, row=row, key=key)) is None:
                    return await self._start(row, key)
        if page.cursor != cursor:
            state = json.dumps({"cursor": page.cursor})
            await self._store.submit(partial(events.write_state, name=name, state=state))
        self.server_events.pass_page(source, name, page)
        return False

    async def _read_page(
        self, row: MandateRow, source: EventSource, name: str, cursor: str | None, *, is_new: bool
    ) -> EventPage | None:
        try:
            return await self.server_events.read_page(source, name, cursor, is_new=is_new)
        except KairosError as error:
            if self._failed.get(row.id) != error.message:
                self._failed[row.id] = error.message
                log.warning("the mandate %s hears of no events: %s", row.id, error.message)
            return None

    async def _start(self, row: MandateRow, key: str) -> bool:
        """Start the run of an event; return whether there is one by now."""
        mandate, clock = MandateRef(row.id, workspace=row.workspace or None), Caller(row.principal, via="clock")
        try:
            await self._runs.start(CyclesRequest(mandate, key=key), clock)
        except Stale:
            return False  # somebody has just started another one
        except KairosError as error:
            log.warning("an event starts the mandate %s, which can't be started: %s", row.id, error.message)
            return False
        return await self._store.read(partial(mandates.find_with_key, row=row, key=key)) is not None


TriggerEvents = Set[tuple[str, str | None]]
"""Events of other mandates: kinds, each with the id of its mandate."""


def _source_of(row: MandateRow, trigger: Trigger) -> EventSource:
    return EventSource(row.workspace or None, trigger.server or "", trigger.event, canonical_json(trigger.arguments))


def _name_of(row: MandateRow, of: str = "") -> str:
    whose = sha256(repr((row.principal, row.workspace, row.id, of)).encode()).hexdigest()
    return f"mandate:{whose[:32]}"


def _begin(session: Session, name: str, row: MandateRow) -> None:
    if events.find_listener(session, name) is None:
        events.add_listener(session, name, row.principal, start=events.position_before(session, row.saved_at))


def _find_next(
    session: Session, name: str, row: MandateRow, wanted: TriggerEvents
) -> tuple[EventRow | None, Position | None] | None:
    """Return the next event of a mandate, and how far that is; None where it has no listener yet."""
    listener = events.find_listener(session, name)
    if listener is None:
        return None
    kinds = tuple({kind for kind, _ in wanted})
    newest = events.newest_position(session)
    found = events.read_after(session, listener.position, EventFilter(row.principal, kinds), MAX_LOOKED_AT)
    for event in found:
        if (event.kind, event.mandate) in wanted:
            return event, event.position
    end = found[-1].position if len(found) == MAX_LOOKED_AT else newest
    return None, end if end.event - listener.event > MAX_LOOKED_AT else None
