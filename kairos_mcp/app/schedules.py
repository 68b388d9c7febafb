"""Which mandates are due by their schedules, what a person has to be told about them, and how a worker starts them.

Every worker looks, by the store's clock; `mandate run --due` does the same for a person. Which of them starts a run is
decided by the transaction that creates it: it also records the time that the mandate was run for. The run belongs to
nobody at first, so it is lost with no worker.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from contextlib import suppress

from kairos_mcp.app.context import AppContext, Operations
from kairos_mcp.app.mandate_triggers import MandateTriggers
from kairos_mcp.app.mandates import Mandates, due_times_of
from kairos_mcp.app.runs import Runs
from kairos_mcp.core.decision_rights import Caller
from kairos_mcp.core.errors import BadArguments, KairosError, Stale
from kairos_mcp.core.messages import canonical_json
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.run_spec import CyclesRequest, MandateRef
from kairos_mcp.core.schedule import Schedule, next_time
from kairos_mcp.specs.build import find_own_route
from kairos_mcp.store import mandates
from kairos_mcp.store.mandates import MandateRow
from kairos_mcp.store.rows import Session
from kairos_mcp.views.waiting import format_time

LOOK_S = 10.0  # between two looks: mandates are saved and runs end without a word
TOGETHER_S = 0.1  # what servers tell within it is one look
AGAIN_S = 60.0  # after which a start that was refused is tried again

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ScheduledTime:
    """A time of a mandate's schedule, in milliseconds since 1970. `principal`: whose mandate it is."""

    principal: str
    mandate_id: str
    workspace: str
    at: int


class Schedules(Operations):
    """The schedules of saved mandates.

    A worker starts what is due, where it has a model for it; elsewhere a timer of the system or an agent does.
    """

    def __init__(self, context: AppContext, saved: Mandates, runs: Runs) -> None:
        super().__init__(context)
        self._mandates, self._runs = saved, runs
        self._triggers = MandateTriggers(context, runs)
        self._refused: dict[ScheduledTime, float] = {}  # when each was refused, by time.monotonic
        self._task: asyncio.Task[None] | None = None

    async def list_due(self, only: str | None, caller: Caller) -> list[ScheduledTime]:
        """Return the scheduled times for which mandates of this server's workspaces have to be run now.

        `only`: the id of the one that is meant. Raises UnknownMandate, BadArguments.
        """
        now = self._clock()
        return [
            _time_of(row, at)
            for row, schedule in await self._find_scheduled(only, caller)
            for at in due_times_of(row, schedule, now)
        ]

    async def find_next_due(self, only: str | None, caller: Caller) -> ScheduledTime | None:
        """Return the first scheduled time that is still to come, as `list_due` does; None if there is none."""
        now = self._clock()
        coming = [
            _time_of(row, at)
            for row, schedule in await self._find_scheduled(only, caller)
            if (at := next_time(schedule, now)) is not None
        ]
        return min(coming, key=lambda each: each.at, default=None)

    async def list_startable(self) -> tuple[list[ScheduledTime], int | None]:
        """Return the times for which mandates of all principals, in this server's workspaces, are to be run now, the
        oldest of each, and when the next one comes. A mandate that has an open run is left out."""
        now, folders = self._clock(), (self._context.listed_workspaces, self._settings.place)
        rows = await self._store.read(lambda session: mandates.list_scheduled(session, *folders))
        due, coming = list[ScheduledTime](), list[int]()
        for row in rows:
            if (schedule := row.parse().schedule) is None:
                continue
            due += [_time_of(row, at) for at in due_times_of(row, schedule, now)[:1]]
            coming += [at for at in [next_time(schedule, now)] if at is not None]
        return due, min(coming, default=None)

    async def _find_scheduled(self, only: str | None, caller: Caller) -> list[tuple[MandateRow, Schedule]]:
        """Find the mandates of this server's workspaces that have a schedule. Raises UnknownMandate, BadArguments."""
        if only is not None:
            rows = [await self._mandates.find_saved(MandateRef(only), caller)]
        else:
            workspaces = self._context.listed_workspaces
            rows = await self._store.read(lambda session: mandates.list_page(session, caller.principal, workspaces))
        found = [(row, row.parse().schedule) for row in rows]
        if only is not None and any(schedule is None for _, schedule in found):
            raise BadArguments(f"The mandate {only} has no schedule.", "Run it without --due.")
        return [(row, schedule) for row, schedule in found if schedule is not None]

    async def list_unattended(self, times: Sequence[ScheduledTime], caller: Caller) -> list[ScheduledTime]:
        """Return those of the due times for which no run was begun and no model is here to begin one."""
        if find_own_route(self._settings) is not None:
            return []

        def is_unattended(session: Session, due: ScheduledTime) -> bool:
            newest = mandates.newest_run(session, caller.principal, due.workspace, due.mandate_id)
            return newest is None or (newest.outcome is not None and newest.created_at < due.at)

        return await self._store.read(lambda session: [due for due in times if is_unattended(session, due)])

    async def notes_for_person(self, caller: Caller) -> list[str]:
        """Return a note for each mandate of this server's folders that is due while no model is here to work on it."""
        unattended = await self.list_unattended(await self.list_due(None, caller), caller)
        return list(map(unattended_note, unattended))

    def begin(self) -> None:
        """Start what is due from now on."""
        if self._task is None:
            self._task = asyncio.create_task(self._start_for_ever())

    async def close(self) -> None:
        """Start nothing more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._triggers.server_events.keep_only(frozenset())

    async def _start_for_ever(self) -> None:
        while True:
            wait_s = LOOK_S
            try:
                wait_s = await self.start_due()
            except (KairosError, OSError):
                pass  # the store is busy or away
            except Exception:
                log.exception("a bug kept mandates from being started")
            await self._wait(wait_s)

    async def _wait(self, wait_s: float) -> None:
        """Wait until it is time to look again, or a server tells of events."""
        heard = self._triggers.server_events.heard
        with suppress(TimeoutError):
            await asyncio.wait_for(heard.wait(), wait_s)
            await asyncio.sleep(TOGETHER_S)
        heard.clear()

    async def start_due(self) -> float:
        """Start what is due, and return how many seconds later to look again. Raises the store's errors."""
        if find_own_route(self._settings) is None:
            return LOOK_S  # nobody here could begin them
        due, coming = await self.list_startable()
        now_s = time.monotonic()
        self._refused = {each: at for each, at in self._refused.items() if each in due and now_s - at < AGAIN_S}
        for each in due:
            if each not in self._refused:
                await self._start(each)
        if await self._triggers.start_triggered() or due:
            await self._context.watcher.pick_up_runs()
        return LOOK_S if coming is None else max(0.0, min(LOOK_S, (coming - self._clock()) / 1000))

    async def _start(self, due: ScheduledTime) -> None:
        mandate, clock = MandateRef(due.mandate_id, workspace=due.workspace or None), Caller(due.principal, via="clock")
        try:
            await self._runs.start(CyclesRequest(mandate, due=due.at), clock)
        except Stale:
            pass  # another worker has started it
        except KairosError as error:
            self._refused[due] = time.monotonic()
            log.warning("the mandate %s is due and can't be started: %s", due.mandate_id, error.message)


def _time_of(row: MandateRow, at: int) -> ScheduledTime:
    return ScheduledTime(row.principal, row.id, row.workspace or "", at)


def unattended_note(due: ScheduledTime) -> str:
    """Return a person's note about a scheduled time that is due while no model is here."""
    call = canonical_json({"mandate_id": due.mandate_id})
    return (
        f"The mandate {due.mandate_id} is due since {format_time(due.at)}, and no model is configured to work on it:"
        f" set KAIROS_MODEL, or let an agent call ooda_run {call}."
    )
