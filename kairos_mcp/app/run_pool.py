"""Every run that moves in this server: starts drivers, hears what other processes left, picks up what is ownerless."""

from __future__ import annotations

import asyncio
import sys
import traceback
from collections import OrderedDict
from collections.abc import Callable, Sequence

from kairos_mcp.app.run_factory import RunFactory
from kairos_mcp.core.errors import KairosError, ReplayDiffers, StoreUnavailable, Unreadable
from kairos_mcp.core.steps import Failure
from kairos_mcp.execution.accounting import StepResult
from kairos_mcp.execution.cancellation import force_cancel_job
from kairos_mcp.execution.daily_limits import DailyAccounts
from kairos_mcp.execution.retry import ATTEMPTS
from kairos_mcp.execution.run_state import RunState
from kairos_mcp.execution.worker import RunWorker, replay_mismatch
from kairos_mcp.store import decisions, ownership, queries, runs
from kairos_mcp.store.database import Store
from kairos_mcp.store.queries import RunRow, with_run_id
from kairos_mcp.views import transcript
from kairos_mcp.views.awaited import BackOff

KEPT = 64  # parked runs whose unfolded flow is kept as a cache; others are folded again from their rows
LOOK_S = 0.15  # between looks at what other processes have committed, while a run moves or somebody waits
IDLE_LOOK_S = 1.0
FINISH_S = 0.7  # what is being performed may take this long to end when the server stops


class ChangeSignal:
    """Rung after each commit, ours or another process's; whoever waits for news waits for the next ring."""

    def __init__(self) -> None:
        self._next = asyncio.Event()
        self._listeners = 0
        self.hurried = 0  # how many of the listeners have a call waiting for them

    def notify(self) -> None:
        if self._listeners:
            rung, self._next = self._next, asyncio.Event()
            rung.set()

    async def wait(self, within_s: float, *, hurried: bool = True) -> None:
        """Return at the next ring, or after `within_s` seconds."""
        self._listeners += 1
        self.hurried += hurried
        try:
            async with asyncio.timeout(within_s):
                await self._next.wait()
        except TimeoutError:
            pass
        finally:
            self._listeners -= 1
            self.hurried -= hurried


class RunPool:
    """One driver for each run that moves here; parked ones are kept as a cache."""

    def __init__(self, store: Store, factory: RunFactory, clock: Callable[[], int]) -> None:
        self._days = DailyAccounts(factory.settings, store)
        self.bell = ChangeSignal()
        self.picks_up = False  # only once a tool has been called: some hosts start servers only to probe them
        self._store = store
        self._factory = factory
        self._clock = clock
        self._moving: dict[int, tuple[RunWorker, asyncio.Task[None]]] = {}
        self._parked: OrderedDict[int, RunWorker] = OrderedDict()
        self._stalled: dict[int, RunWorker] = {}
        self._watcher: asyncio.Task[None] | None = None
        self._seen = 0

    # -- what is asked of a run --------------------------------------------------------------------------------

    def moves(self, n: int) -> bool:
        return n in self._moving

    async def wait_until_stopped(self, ns: Sequence[int], within_s: float) -> bool:
        """Return when none of these runs moves here, or after `within_s` seconds; False at once where none did.

        Who waits for an end need not wake at each commit.
        """
        tasks = [self._moving[n][1] for n in ns if n in self._moving]
        if tasks:
            await asyncio.wait(tasks, timeout=within_s)
        return bool(tasks)

    def trouble(self, n: int) -> KairosError | None:
        """Why a run stands still here, if it does."""
        driver = self._stalled.get(n)
        return driver.error if driver is not None else None

    def failed_attempts(self, n: int) -> list[BackOff]:
        """The attempts of a run that failed here and are made again after a pause."""
        moving = self._moving.get(n)
        if moving is None:
            return []
        found = []
        for path, mark in moving[0].state.pending.items():
            match mark.failed_result:
                case StepResult(answer=Failure(code=code)) if mark.retry_at is not None:
                    found.append(BackOff(path, code, mark.retry_at, mark.tries % ATTEMPTS + 1, ATTEMPTS))
                case _:
                    pass
        return found

    def state_of(self, run: RunRow) -> RunState:
        """The run in memory, for a look at its steps: the cached one while its rows are as it knows them.

        Raises Stale where its record does not fit the flow.
        """
        moving = self._moving.get(run.n)
        if moving is not None and moving[0].is_rebuilt:
            return moving[0].state
        parked = self._parked.get(run.n)
        if parked is not None and parked.fence == run.fence and run.owner is None:
            return parked.state
        self._factory.check_version(run)
        driver = self._driver(run, run.fence)
        try:
            driver.state.rebuild(self._store.reader)
        except ReplayDiffers as differs:
            raise replay_mismatch(run.id, differs) from differs
        except Unreadable as damaged:
            raise with_run_id(run, damaged) from damaged
        if run.owner is None and run.outcome is None:  # who looks at what waits often answers it next
            driver.is_rebuilt = True
            self._park(run.n, driver)
        return driver.state

    # -- moving a run ------------------------------------------------------------------------------------------

    def start(self, run: RunRow, fence: int) -> None:
        """Drive a run that this server has just taken with this fencing number."""
        parked = self._parked.pop(run.n, None)
        if parked is not None and parked.fence == fence - 1:
            parked.owner, parked.fence, parked.state.run = self._store.owner_number, fence, run
            self._launch(parked)
        else:
            self._launch(self._driver(run, fence))

    def continue_run(self, run: RunRow, mine: int, fence: int | None, *, interrupt: bool = False) -> None:
        """After rows were left for a run: drive it if they took it for this server, else tell its driver here."""
        if fence is None:
            self.retry_run(run.n)
            self.nudge(run.n, interrupt=interrupt)
        elif mine != ownership.NOBODY:
            self.start(queries.run_by_number(self._store.reader, run.n), fence)
        self.bell.notify()

    async def break_off(self, run: RunRow, fence: int) -> None:
        """Cancel a run of this server that can't be built from its rows. Raises the store's errors."""
        summary = transcript.summary(queries.read_record(self._store.reader, run.n))
        await self._store.submit(force_cancel_job(run, fence, self._clock(), summary, {}))
        self.bell.notify()

    def nudge(self, n: int, *, interrupt: bool = False) -> bool:
        """Tell the driver here, if there is one, that something came for its run."""
        moving = self._moving.get(n)
        if moving is not None:
            moving[0].nudge(interrupt=interrupt)
        return moving is not None

    def retry_run(self, n: int) -> None:
        """Go on with a run that stood still; answers that could not be committed are committed now."""
        driver = self._stalled.pop(n, None)
        if driver is not None:
            self._launch(driver)

    def _driver(self, run: RunRow, fence: int) -> RunWorker:
        def summarise() -> str:
            return transcript.summary(queries.read_record(self._store.reader, run.n))

        standing = self._factory.new_state(run)
        return RunWorker(
            self._store,
            standing,
            self._store.owner_number,
            fence,
            self._clock,
            self.bell.notify,
            summarise,
            self._days.find_accounts,
        )

    def _launch(self, driver: RunWorker) -> None:
        self._watch()
        task = asyncio.create_task(self._drive(driver))
        self._moving[driver.state.run.n] = (driver, task)

    async def _drive(self, driver: RunWorker) -> None:
        n = driver.state.run.n
        try:
            await driver.drive()
        except Exception as bug:  # one run's bug must not take the others; it is loud, and the run says so
            traceback.print_exception(bug, file=sys.stderr)
            driver.is_rebuilt = False
            driver.error = StoreUnavailable(f"A bug stopped this run: {type(bug).__name__}.", "Please report it.")
        finally:
            self._moving.pop(n, None)
        if driver.error is not None:
            self._stalled[n] = driver
        elif driver.is_rebuilt and not driver.state.runner.finished:
            self._park(n, driver)
        self.bell.notify()

    def _park(self, n: int, driver: RunWorker) -> None:
        self._parked[n] = driver
        while len(self._parked) > KEPT:
            self._parked.popitem(last=False)

    # -- what other processes do -------------------------------------------------------------------------------

    async def pick_up(self) -> None:
        """Own and drive the runs whose servers have ended, whose pause is over, or whose approvals have expired, as far
        as this server can perform them."""
        if not self._store.exists:
            return
        reader, mine = self._store.reader, self._store.owner_number
        if decisions.has_overdue(reader, at := self._clock()):
            await self._store.submit(lambda connection: decisions.expire_overdue(connection, at))
        dead = ownership.dead_owners(reader, self._store.home, mine)
        for run in queries.due_runs(reader, self._clock(), dead):
            if self._factory.can_perform(run):
                await self._go_on_after_pause(run, dead)
        for run in queries.runs_of_owners(reader, dead) if dead else ():
            if run.paused is None and self._factory.can_perform(run):
                await self.take(run, dead)

    async def _go_on_after_pause(self, run: RunRow, dead: list[int]) -> None:
        at, n = self._clock(), run.n
        mine = await self._store.register_owner(at)
        fence = await self._store.submit(lambda connection: runs.take_due_run(connection, n, mine, at, dead))
        if fence is not None:
            self.start(queries.run_by_number(self._store.reader, n), fence)

    async def take(self, run: RunRow, dead: list[int]) -> bool:
        """Own the run if nobody living does, and drive it."""
        mine, n = await self._store.register_owner(self._clock()), run.n
        fence = await self._store.submit(lambda connection: runs.take_run(connection, n, mine, dead))
        if fence is None:
            return False
        self.start(queries.run_by_number(self._store.reader, n), fence)
        return True

    def _watch(self) -> None:
        if self._watcher is None or self._watcher.done():
            self._watcher = asyncio.create_task(self._watch_store())

    def wake(self) -> None:
        """A tool was called: from now on this server looks after ownerless runs."""
        self.picks_up = True
        self._watch()

    async def _watch_store(self) -> None:
        while True:
            busy = self._moving or self.bell.hurried
            await asyncio.sleep(LOOK_S if busy else IDLE_LOOK_S)
            try:
                await self._check_store()
            except (KairosError, OSError):
                continue  # the store is busy or gone; whoever asks something of it is told so

    async def _check_store(self) -> None:
        if not self._store.is_open:
            return
        seen = queries.read_data_version(self._store.reader)
        if seen != self._seen:
            self._seen = seen
            for driver, _ in list(self._moving.values()):
                self._nudge_for_rows(driver)
            for n in [n for n in self._stalled if self._is_cancelled(n)]:
                self.retry_run(n)
            self.bell.notify()
        if self.picks_up:
            await self.pick_up()

    def _nudge_for_rows(self, driver: RunWorker) -> None:
        driver.nudge(interrupt=self._is_cancelled(driver.state.run.n))

    def _is_cancelled(self, n: int) -> bool:
        """Whether somebody wishes to; a run that stands still is ended all the same."""
        return any(wish.kind == "cancel" for wish in queries.pending_requests(self._store.reader, n))

    async def close(self) -> None:
        """Let what is being performed end, commit it, stop."""
        if self._watcher is not None:
            self._watcher.cancel()
        tasks = [task for _, task in self._moving.values()]
        for driver, _ in list(self._moving.values()):
            driver.stop()
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=FINISH_S)
            for task in late:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
