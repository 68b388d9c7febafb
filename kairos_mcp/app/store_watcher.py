"""Notice what other processes commit, and take over the runs of servers that have died."""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import NamedTuple

from kairos_mcp.app.drive_mode import DriveMode
from kairos_mcp.app.run_factory import RunFactory
from kairos_mcp.app.run_pool import RunPool
from kairos_mcp.core.errors import KairosError, StoreUnavailable
from kairos_mcp.core.text import count_of
from kairos_mcp.store import decisions, gauges, ownership, queries, runs
from kairos_mcp.store.database import News, Store
from kairos_mcp.store.ownership import ANY_SERVER
from kairos_mcp.store.queries import RunRow
from kairos_mcp.store.rows import Session, read_together
from kairos_mcp.store.runs import FIRST_FENCE

log = logging.getLogger(__name__)

POLL_S = 0.15  # between checks for commits of other processes, while a run moves or somebody waits
IDLE_POLL_S = 1.0
NAMED_RUNS = 5  # in a line of the log
PAGE_RUNS = 256  # orphaned runs in one read


class RunsToTake(NamedTuple):
    """What a server may take over: `due`, paused runs whose pause is over; and the runs of the owners in `dead`, which
    are servers that have ended, and 0 (`ANY_SERVER`). `has_overdue`: approvals have expired and are not marked yet."""

    has_overdue: bool
    dead: list[int]
    due: Sequence[RunRow]


NOTHING_TO_TAKE = RunsToTake(False, [], ())


class StoreWatcher:
    """Looks for commits of other processes, and wakes the workers and waiters of their runs.

    `takes_runs`, which `wake` sets: it also takes over runs whose server has ended, runs of `ANY_SERVER`, and runs
    whose pause is over.
    """

    def __init__(
        self, store: Store, factory: RunFactory, clock: Callable[[], int], pool: RunPool, mode: DriveMode
    ) -> None:
        self._store = store
        self._factory = factory
        self._clock = clock
        self.pool = pool
        self._mode = mode
        self.takes_runs = False  # until a tool is called: some hosts start servers only to probe them
        self._undriven: dict[int, int] = {}  # runs of this server that nobody drove at the last look, with their fences
        self._task: asyncio.Task[None] | None = None
        self.pool.on_launch = self.watch

    def watch(self) -> None:
        """Notice what other processes write from now on."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._watch_store())

    def wake(self) -> None:
        """Take over runs of dead owners and of ANY_SERVER from now on, if this process drives runs: a tool was called.
        A parked run has no owner, and nobody takes it over."""
        self.takes_runs = self._mode.drives
        self.watch()

    def close(self) -> None:
        """Look no more."""
        if self._task is not None:
            self._task.cancel()

    async def _watch_store(self) -> None:
        is_away, outages = False, self._store.outages
        while True:
            busy = self.pool.moving or self.pool.change_signal.urgent_listeners
            await self._store.wait_for_news(POLL_S if busy else IDLE_POLL_S)
            began = time.monotonic()  # a store that was reached before is waited for, before it counts as away
            try:
                await self._check_store()
            except (KairosError, OSError) as error:
                is_away = True  # the store is busy or gone; the next request that needs it reports that
                if isinstance(error, StoreUnavailable):
                    outages.note(error, began)
                continue
            outages.end()
            if is_away:
                is_away = False
                for n in list(self.pool.stalled):
                    self.pool.retry_run(n)

    async def _check_store(self) -> None:
        if not self._store.is_open:
            return
        news, at, number = await self._store.take_news(), self._clock(), self._store.owner_number
        looks_for_cancels, looks_for_runs = self._is_concerned(news), self.takes_runs
        cancelled, owned, to_take = await self._store.read(
            lambda session: read_together(
                session,
                lambda session: queries.runs_to_cancel(session) if looks_for_cancels else set[int](),
                lambda session: queries.fences_of_owner(session, number),
                lambda session: self._find_runs_to_take(session, at) if looks_for_runs else NOTHING_TO_TAKE,
            )
        )
        await self._wake_for(news, cancelled)
        # A run that this server took and does not drive: the call that took it was cancelled just then. Only the second
        # look counts, since a call that is under way drives the run in a moment.
        found = {n: fence for n, fence in owned.items() if n not in self.pool.moving and n not in self.pool.stalled}
        undriven, self._undriven = found.items() & self._undriven.items(), found
        for n, fence in undriven:
            await self.pool.start_taken(n, fence)
        await self._take_runs(to_take, at)

    def _is_concerned(self, news: News) -> bool:
        return any(map(news.concerns, (*self.pool.moving, *self.pool.stalled)))

    async def _wake_for(self, news: News, cancelled: Collection[int]) -> None:
        """Wake the workers and waiters of runs that another process may have changed. `cancelled`: the runs that were
        also asked to cancel."""
        if self._is_concerned(news):
            for n in list(self.pool.moving):
                if news.concerns(n):
                    self.pool.nudge(n, interrupt=n in cancelled)
            for n in self.pool.stalled.keys() & cancelled:  # a cancel also ends a run that an error has stopped
                self.pool.retry_run(n)
        if news.of_any:
            self.pool.change_signal.notify_all()
        elif news.runs and self.pool.change_signal.is_awaited:
            for run_id in await self._store.read(lambda session: queries.ids_of_runs(session, news.runs)):
                self.pool.change_signal.notify(run_id)

    async def pick_up_runs(self) -> None:
        """Take over the runs whose server has ended, whose pause is over, or whose approvals have expired, if this
        server can perform them."""
        if not self._store.exists:
            return
        at = self._clock()
        await self._take_runs(await self._store.read(lambda session: self._find_runs_to_take(session, at)), at)

    async def _take_runs(self, found: RunsToTake, at: int) -> None:
        if found.has_overdue:
            await self._store.submit(lambda session: decisions.expire_overdue(session, at))
            found = await self._store.read(lambda session: self._find_runs_to_take(session, at))
        for run in found.due:
            if self._free_slots > 0 and await self._factory.can_perform(run):
                await self._resume_due_run(run, found.dead)
        await self._adopt_orphans(found.dead)

    def _find_runs_to_take(self, session: Session, at: int) -> RunsToTake:
        if not queries.may_take_runs(session, self._store.owner_number, at):
            return NOTHING_TO_TAKE  # as nearly always, and every call looks
        dead = ownership.dead_owners(session, self._store.owners, self._store.owner_number)
        has_overdue, due = read_together(
            session,
            lambda session: decisions.has_overdue(session, at),
            lambda session: queries.due_runs(session, at, dead),
        )
        return RunsToTake(has_overdue, dead, due)

    async def _resume_due_run(self, run: RunRow, dead: list[int]) -> None:
        at, n = self._clock(), run.n
        mine = await self._store.register_owner(at)
        fence = await self._store.submit(lambda session: runs.take_due_run(session, n, mine, at, dead), of_run=n)
        if fence is not None:
            await self.pool.start_taken(n, fence)

    @property
    def _free_slots(self) -> int:
        return PAGE_RUNS if self._mode.slots is None else self._mode.slots - len(self.pool.moving)

    async def _adopt_orphans(self, dead: list[int]) -> None:
        """Take over orphaned runs, up to the free slots: first those of the dead servers, then unowned ones (mostly not
        started)."""
        ended = [number for number in dead if number != ANY_SERVER]
        for owners in (ended, [number for number in dead if number == ANY_SERVER]):
            await self._take_runs_of(owners)

    async def _take_runs_of(self, owners: list[int]) -> None:
        """Take over runs of these owners, in few commits."""
        after = 0
        while owners and self._free_slots > 0:
            page = await self._store.read(partial(queries.runs_of_owners, owners=owners, after=after, limit=PAGE_RUNS))
            if not page:
                return
            after = page[-1].n
            if self._mode.slots is not None:
                random.shuffle(page)  # several workers look at the same runs just now
                page.sort(key=lambda run: run.fence == FIRST_FENCE)  # those that were begun and given up come first
            free, chosen = await self._share(len(page)), list[RunRow]()
            for run in page:
                if len(chosen) < free and await self._factory.can_perform(run):
                    chosen.append(run)
            is_shared = len(chosen) == free < len(page)
            taken = await asyncio.gather(*(self.take_over(run, owners) for run in chosen))
            self._log_takeovers([run for run, is_taken in zip(chosen, taken, strict=True) if is_taken])
            if is_shared:
                return  # the others have their shares; what is left then is found at the next look

    async def _share(self, waiting: int) -> int:
        """Return how many of so many waiting runs this server takes at one look: all that it has slots for, or among
        several workers a part by free slots, so that the first to look does not take all."""
        free = self._free_slots
        if self._mode.slots is None or waiting <= 1:
            return free
        everywhere = await self._store.read(lambda session: gauges.count_free_slots(session, self._store.owners))
        return min(free, max(1, math.ceil(waiting * free / max(free, everywhere))))

    @staticmethod
    def _log_takeovers(taken: Sequence[RunRow]) -> None:
        """Say which runs go on here, and which dead server had each; not of runs that nobody had."""
        by_owner: dict[int, list[str]] = {}
        for run in taken:
            if run.owner:
                by_owner.setdefault(run.owner, []).append(run.id)
        for owner, ids in by_owner.items():
            named = ", ".join(ids[:NAMED_RUNS]) + (", …" if len(ids) > NAMED_RUNS else "")
            log.warning("took over %s of server %d, which has ended: %s", count_of(len(ids), "run"), owner, named)

    async def take_over(self, run: RunRow, dead: list[int]) -> bool:
        """Own the run if no living server does, and drive it."""
        mine, n = await self._store.register_owner(self._clock()), run.n
        fence = await self._store.submit(lambda session: runs.take_run(session, n, mine, dead), of_run=n)
        if fence is None:
            return False
        if self._factory.tracing is not None and run.owner:
            self._factory.tracing.follow_takeover(run, fence, mine)
        await self.pool.start_taken(n, fence)
        return True
