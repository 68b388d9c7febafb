"""Start mandates on events: where a run of another mandate has ended. Workers do, beside what schedules say.

How far the events of a mandate were looked at is a row (`listener`), which begins when the mandate was saved. The run
that an event starts has the event's id as its key: so however many workers see it, and whatever is killed, it starts
one. While a run of the mandate is open, its events wait.
"""

from __future__ import annotations

import logging
from functools import partial
from hashlib import sha256

from kairos_mcp.app.context import AppContext, Operations
from kairos_mcp.app.runs import Runs
from kairos_mcp.app.saved_mandates import mandate_of_row
from kairos_mcp.core.decision_rights import Caller
from kairos_mcp.core.errors import KairosError, Stale
from kairos_mcp.core.mandate import Mandate
from kairos_mcp.core.run_spec import CyclesRequest, MandateRef
from kairos_mcp.store import events, mandates, queries
from kairos_mcp.store.events import EventFilter, EventRow, Position
from kairos_mcp.store.mandates import MandateRow
from kairos_mcp.store.rows import Session

MAX_LOOKED_AT = 500  # events at a look

log = logging.getLogger(__name__)


class MandateTriggers(Operations):
    """The mandates that start on events."""

    def __init__(self, context: AppContext, runs: Runs) -> None:
        super().__init__(context)
        self._runs = runs

    async def start_triggered(self) -> bool:
        """Start a run for the next event of each mandate that has one; return whether there was any. Raises the store's
        errors."""
        folders = self._context.listed_workspaces, self._settings.place
        rows = await self._store.read(lambda session: mandates.list_triggered(session, *folders))
        return any([await self._start_next(row) for row in rows])

    async def _start_next(self, row: MandateRow) -> bool:
        name, mandate = _name_of(row), mandate_of_row(row)
        found = await self._store.read(lambda session: _find_next(session, name, row, mandate), one_state=True)
        if found is None:  # it was saved since the last look
            await self._store.submit(partial(_begin, name=name, row=row))
            found = await self._store.read(lambda session: _find_next(session, name, row, mandate), one_state=True)
        event, end = found or (None, None)
        if event is not None and not await self._start(row, event):
            return False
        if end is not None:
            await self._store.submit(partial(events.move_forward, name=name, to=end))
        return event is not None

    async def _start(self, row: MandateRow, event: EventRow) -> bool:
        """Start the run of an event; return whether there is one by now."""
        mandate, clock = MandateRef(row.id, workspace=row.workspace or None), Caller(row.principal, via="clock")
        key = f"event:{event.public_id}"
        try:
            started = await self._runs.start(CyclesRequest(mandate, key=key), clock)
        except Stale:
            return False  # somebody has just started another one
        except KairosError as error:
            log.warning("the mandate %s starts on %s and can't be started: %s", row.id, event.kind, error.message)
            return False
        run = await self._store.read(partial(queries.run_by_id, run_id=started.run_id))
        return await self._store.read(lambda session: mandates.has_key(session, run.n, key))


def _name_of(row: MandateRow) -> str:
    whose = sha256(repr((row.principal, row.workspace, row.id)).encode()).hexdigest()
    return f"mandate:{whose[:32]}"


def _begin(session: Session, name: str, row: MandateRow) -> None:
    if events.find_listener(session, name) is None:
        events.add_listener(session, name, row.principal, start=events.position_before(session, row.saved_at))


def _find_next(
    session: Session, name: str, row: MandateRow, mandate: Mandate
) -> tuple[EventRow | None, Position | None] | None:
    """Return the next event of a mandate, and how far that is; None where it has no listener yet."""
    listener = events.find_listener(session, name)
    if listener is None:
        return None
    wanted = {(trigger.event, trigger.mandate_id) for trigger in mandate.starts_on}
    kinds = tuple({kind for kind, _ in wanted})
    newest = events.newest_position(session)
    found = events.read_after(session, listener.position, EventFilter(row.principal, kinds), MAX_LOOKED_AT)
    for event in found:
        if (event.kind, event.mandate) in wanted:
            return event, event.position
    end = found[-1].position if len(found) == MAX_LOOKED_AT else newest
    return None, end if end.event - listener.event > MAX_LOOKED_AT else None
