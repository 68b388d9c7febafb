"""Start runs of mandates by their schedules, by itself: what a worker does, as `mandate run --due` does for a person.

Every worker looks, by the store's clock. Which of them starts a run is decided by the transaction that creates it: it
also records the time that the mandate was run for. The run belongs to nobody at first, so it is lost with no worker.
"""

from __future__ import annotations

import asyncio
import logging
import time

from kairos_mcp.app.context import AppContext, Operations
from kairos_mcp.app.cycles import Cycles, RunOptions
from kairos_mcp.app.mandates import MandateRef
from kairos_mcp.app.schedules import ScheduledTime, Schedules
from kairos_mcp.core.decision_rights import Caller
from kairos_mcp.core.errors import KairosError, Stale
from kairos_mcp.specs.build import find_own_route

LOOK_S = 10.0  # between two looks: mandates are saved and runs end without a word
AGAIN_S = 60.0  # after which a start that was refused is tried again

log = logging.getLogger(__name__)


class Scheduler(Operations):
    """Starts mandates when they are due, where this process has a model for them."""

    def __init__(self, context: AppContext, schedules: Schedules, cycles: Cycles) -> None:
        super().__init__(context)
        self._schedules, self._cycles = schedules, cycles
        self._refused: dict[ScheduledTime, float] = {}  # when each was refused, by time.monotonic
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Start what is due from now on."""
        if self._task is None:
            self._task = asyncio.create_task(self._start_for_ever())

    async def close(self) -> None:
        """Start nothing more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _start_for_ever(self) -> None:
        while True:
            wait_s = LOOK_S
            try:
                wait_s = await self.start_due()
            except (KairosError, OSError):
                pass  # the store is busy or away
            except Exception:
                log.exception("a bug kept mandates from being started")
            await asyncio.sleep(wait_s)

    async def start_due(self) -> float:
        """Start what is due, and return how many seconds later to look again. Raises the store's errors."""
        if find_own_route(self._settings) is None:
            return LOOK_S  # nobody here could begin them
        due, coming = await self._schedules.list_startable()
        now_s = time.monotonic()
        self._refused = {each: at for each, at in self._refused.items() if each in due and now_s - at < AGAIN_S}
        for each in due:
            if each not in self._refused:
                await self._start(each)
        if due:
            await self._context.watcher.pick_up_runs()
        return LOOK_S if coming is None else max(0.0, min(LOOK_S, (coming - self._clock()) / 1000))

    async def _start(self, due: ScheduledTime) -> None:
        mandate, clock = MandateRef(due.mandate_id, workspace=due.workspace or None), Caller(due.principal, via="clock")
        try:
            await self._cycles.start_cycles(mandate, RunOptions(due=due.at), clock)
        except Stale:
            pass  # another worker has started it
        except KairosError as error:
            self._refused[due] = time.monotonic()
            log.warning("the mandate %s is due and can't be started: %s", due.mandate_id, error.message)
