"""Every run that moves in this server: start workers, notice what other processes write, pick up runs without owner."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from kairos_mcp.app.change_signal import ChangeSignal
from kairos_mcp.app.first_commit import CreatedRun, create_with_first_commit
from kairos_mcp.app.run_factory import RunFactory
from kairos_mcp.app.teams import TeamViews
from kairos_mcp.core.errors import FenceLost, KairosError, ReplayDiffers, StoreCorrupt, StoreUnavailable, Unreadable
from kairos_mcp.core.run_spec import Spec
from kairos_mcp.core.steps import Failure
from kairos_mcp.execution.cancellation import force_cancel_job
from kairos_mcp.execution.daily_limits import DailyAccounts
from kairos_mcp.execution.pending_step import MAX_ATTEMPTS
from kairos_mcp.execution.plan_commit import plan_commit
from kairos_mcp.execution.plan_usual_commit import plan_usual_commit
from kairos_mcp.execution.run_state import RunState
from kairos_mcp.execution.stored_rows import read_stored_run
from kairos_mcp.execution.worker import RunWorker, replay_mismatch
from kairos_mcp.store import decisions, ownership, queries, runs
from kairos_mcp.store.apply_usual_commit import WrittenCommit, apply_usual_commit
from kairos_mcp.store.commit import StepResult, UsualCommit
from kairos_mcp.store.database import News, Store
from kairos_mcp.store.inbox import SubmittedAnswer
from kairos_mcp.store.joined_commit import ParkedRun, commit_with_answers
from kairos_mcp.store.queries import RunRow, with_run_id
from kairos_mcp.store.runs import NewRun
from kairos_mcp.store.session import Session
from kairos_mcp.views import transcript
from kairos_mcp.views.waiting import BackOff

MAX_PARKED = 64  # runs at rest whose replayed flow is cached; others are replayed from their rows again
POLL_S = 0.15  # between checks for commits of other processes, while a run moves or somebody waits
IDLE_POLL_S = 1.0
FINISH_S = 0.7  # how long running steps may take to end when the server stops

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DriveMode:
    """How a process drives runs. `drives`: whether it does at all; else it writes rows and leaves the runs to others.
    `slots`: how many runs it drives at most of those that others left; None: all that there are. `finish_s`: how long
    running steps may take to end when it stops."""

    drives: bool = True
    slots: int | None = None
    finish_s: float = FINISH_S


DRIVES_ALL = DriveMode()
SERVER_SLOTS = 64  # of a server that shares a database with others: what one leaves is shared among those that live


def server_mode(*, drives: bool, is_shared: bool) -> DriveMode:
    """Return how a server for clients drives runs; `is_shared`: others on other machines have the same store."""
    return DriveMode(drives, SERVER_SLOTS if is_shared else None)


class RunsToTake(NamedTuple):
    """What a server may take over: paused runs that are due, and those that ended servers left behind (`dead`).
    `has_overdue`: approvals were not decided in time, and have to be marked so first."""

    has_overdue: bool
    dead: list[int]
    due: Sequence[RunRow]


NOTHING_TO_TAKE = RunsToTake(False, [], ())
PAGE_RUNS = 256  # runs that were left behind, looked at in one read


class RunPool:
    """One worker for each run that moves here; the states of runs at rest are kept as a cache."""

    def __init__(
        self, store: Store, factory: RunFactory, clock: Callable[[], int], mode: DriveMode = DRIVES_ALL
    ) -> None:
        self._mode = mode
        self._daily_accounts = DailyAccounts(factory.settings, store)
        self._tracing = factory.tracing
        self.change_signal = ChangeSignal(None if self._tracing is None else self._tracing.note_commit)
        self.picks_up_runs = False  # until a tool is called: some hosts start servers only to probe them
        self.teams = TeamViews(store, factory)
        self._store = store
        self._factory = factory
        self._clock = clock
        self._moving: dict[int, tuple[RunWorker, asyncio.Task[None]]] = {}
        self._parked: OrderedDict[int, tuple[int, RunState]] = OrderedDict()  # each with the fence that it fits
        self._stalled: dict[int, RunWorker] = {}
        self._undriven: dict[int, int] = {}  # runs of this server that nobody drove at the last look, with their fences
        self._watcher: asyncio.Task[None] | None = None

    # -- what is asked of a run --------------------------------------------------------------------------------

    def is_moving(self, n: int) -> bool:
        return n in self._moving

    def moving_numbers(self, run_ids: Collection[str], principal: str) -> list[int]:
        """Return the numbers of those of a principal's runs that move here: for them this server was called before, and
        looks for others itself."""
        moving = ((n, worker.state.run) for n, (worker, _) in self._moving.items())
        return [n for n, run in moving if run.id in run_ids and run.principal == principal]

    async def wait_until_stopped(self, ns: Sequence[int], within_s: float) -> bool:
        """Return when none of these runs moves here, or after `within_s` seconds; False at once where none did.

        Somebody who waits for the end of a run need not wake at each commit.
        """
        tasks = [self._moving[n][1] for n in ns if n in self._moving]
        if tasks:
            await asyncio.wait(tasks, timeout=within_s)
        return bool(tasks)

    def stall_error(self, n: int) -> KairosError | None:
        """Return the error that stopped a run here, if one did."""
        worker = self._stalled.get(n)
        return worker.error if worker is not None else None

    def failed_attempts(self, n: int) -> list[BackOff]:
        """Return the attempts of a run that failed here and are repeated after a pause."""
        moving = self._moving.get(n)
        if moving is None:
            return []
        found = []
        for path, step in moving[0].state.pending.items():
            match step.failed_result:
                case StepResult(answer=Failure(code=code)) if step.retry_at is not None:
                    found.append(BackOff(path, code, step.retry_at, step.attempts % MAX_ATTEMPTS + 1, MAX_ATTEMPTS))
                case _:
                    pass
        return found

    async def state_of(self, run: RunRow) -> RunState:
        """Return the in-memory state of a run, for reading: the cached one as long as it fits the rows.

        Raises Stale where the record does not fit the flow.
        """
        moving = self._moving.get(run.n)
        if moving is not None and moving[0].is_rebuilt:
            return moving[0].state
        fence, parked = self._parked.get(run.n, (None, None))
        if parked is not None and fence == run.fence and run.owner is None:
            return parked
        self._factory.check_version(run)
        state = await self._factory.new_state(run)
        try:
            state.rebuild(await self._store.read(lambda session: read_stored_run(session, run)))
        except ReplayDiffers as mismatch:
            raise replay_mismatch(run.id, mismatch) from mismatch
        except Unreadable as error:
            raise with_run_id(run, error) from error
        if run.owner is None and run.outcome is None:  # whoever reads what waits often answers it next
            self._park(run.fence, state)
        return state

    # -- moving a run ------------------------------------------------------------------------------------------

    async def start(self, run: RunRow, fence: int) -> None:
        """Drive a run that this server has just taken, with this fencing number."""
        parked_fence, parked = self._parked.pop(run.n, (None, None))
        if parked is not None and parked_fence == fence - 1:
            parked.take_row(run)
            self._launch(self._make_worker(parked, fence, is_rebuilt=True))
        else:
            self._launch(self._make_worker(await self._factory.new_state(run), fence))

    async def start_new(self, new: NewRun, spec: Spec, owner: int) -> RunRow | None:
        """Create a run together with its first commit, where that is a usual one, and drive it; or return the run that
        the same start has created before."""
        created = await create_with_first_commit(self._store, self._factory, self._daily_accounts, new, spec, owner)
        if not isinstance(created, CreatedRun):
            return created
        run, state, written = created
        if state is None:
            self._launch(self._make_worker(await self._factory.new_state(run), run.fence))
        else:
            self._go_on(state, run.fence, written)
        return None

    async def continue_run(self, run: RunRow, mine: int, fence: int | None, *, interrupt: bool = False) -> None:
        """Go on with a run for which rows were written: drive it if they took it for this server (`fence`), else nudge
        its worker here."""
        if fence is None:
            self.retry_run(run.n)
            self.nudge(run.n, interrupt=interrupt)
        elif mine != ownership.ANY_SERVER:
            await self._start_taken(run.n, fence)
        self.change_signal.notify(run.id)

    async def _start_taken(self, n: int, fence: int) -> None:
        """Drive the run with this number, whose row was changed when this server took it."""
        await self.start(await self._store.read(lambda session: queries.run_by_number(session, n)), fence)

    async def commit_answers(
        self, run: RunRow, answers: Sequence[SubmittedAnswer], by_route: str, mine: int, *, nonce: str | None = None
    ) -> bool:
        """Write answers for a run that is parked here together with its next commit, and go on with it.

        `nonce`: of the ask that is answered. False where that can't be, and nothing was written: the answers are then
        to be recorded by themselves. Raises the store's errors.
        """
        parked = self._parked.get(run.n)
        if not answers or mine == ownership.ANY_SERVER or parked is None:
            return False
        state, fence, at = parked[1], run.fence + 1, self._clock()
        is_at_rest = (run.fence, run.owner, run.paused) == (parked[0], None, None)
        if not is_at_rest or not state.waits_only_for({each.path for each in answers}):
            return False
        accounts = await self._daily_accounts.find_accounts(run, state.executor.tool_access.mandate, at)
        if self._parked.get(run.n) is not parked:
            return False
        del self._parked[run.n]  # the state is given up, unless all of this is written
        state.take_row(run)
        try:
            parked_run = state.take_answers(answers, by_route, nonce)
            state.run = state.run._replace(owner=mine, fence=fence)
            usual = plan_usual_commit(state, self._daily_accounts, mine, fence, at)
        except Exception:  # a bug of the flow: the answer is recorded all the same, and the run's worker meets the bug
            return False
        if usual is not None and await self._commit_usual(state, usual, parked_run):
            return True
        try:
            commit = plan_commit(state, mine, fence, at, accounts, no_new_steps=False, steps_running=False)
        except Exception:
            return False
        try:
            result = await self._store.submit(
                lambda session: commit_with_answers(session, commit, parked_run), of_run=run.n
            )
        except (FenceLost, StoreCorrupt):
            return False
        state.apply_result(commit, result)
        if result.paused is not None:
            state.run = state.run._replace(paused=result.paused.reason, resume_at=result.paused.resume_at)
        self._go_on(state, fence, is_released=result.released)
        return True

    async def _commit_usual(self, state: RunState, commit: UsualCommit, parked: ParkedRun) -> bool:
        """Write a parked run's usual commit and go on with it; False, and nothing is written, where something is not as
        it was known."""
        try:
            step_ids = await self._store.submit(
                lambda session: apply_usual_commit(session, commit, parked), of_run=commit.run
            )
        except StoreCorrupt:  # the general way meets it too
            step_ids = None
        if step_ids is None:
            state.return_lines(begun.sent.line for begun in commit.begun)
            return False
        self._go_on(state, commit.fence, (commit, step_ids))
        return True

    def _go_on(
        self, state: RunState, fence: int, written: WrittenCommit | None = None, *, is_released: bool = False
    ) -> None:
        """Go on with a run of which a commit was written here: drive it, or park it where only open steps are left.

        `written`: a usual commit, which the state does not know of yet.
        """
        if written is not None and (written[0].outcome is not None or written[0].hands_out):
            state.apply_usual(*written)
            is_released = True
        if not is_released:
            worker = self._make_worker(state, fence, is_rebuilt=True)
            worker.is_current, worker.written = True, written
            self._launch(worker)
        elif not state.runner.finished:
            self._park(fence, state)
        if self._tracing is not None:
            self._tracing.follow(state.run, fence)
        self.change_signal.notify(state.run.id)

    async def force_cancel(self, run: RunRow, fence: int) -> None:
        """Cancel a run of this server that can't be rebuilt from its rows. Raises the store's errors."""
        summary = await self._summarize(run.n)
        await self._store.submit(force_cancel_job(run, fence, self._clock(), summary, {}))
        if self._tracing is not None:
            self._tracing.follow(run, fence)
        self.change_signal.notify(run.id)

    def nudge(self, n: int, *, interrupt: bool = False) -> bool:
        """Tell the worker here, if there is one, that something was written for its run."""
        moving = self._moving.get(n)
        if moving is not None:
            moving[0].nudge(interrupt=interrupt)
        return moving is not None

    def retry_run(self, n: int) -> None:
        """Go on with a run that an error stopped; answers that could not be committed are committed now."""
        worker = self._stalled.pop(n, None)
        if worker is not None:
            self._launch(worker)

    async def _summarize(self, n: int) -> str:
        team = await self.teams.find(await self._store.read(lambda session: queries.run_by_number(session, n)))
        if team is not None and team.tasks:
            return team.summarize()
        return transcript.summarize_run(await self._store.read(lambda session: queries.read_record(session, n)))

    def _make_worker(self, state: RunState, fence: int, *, is_rebuilt: bool = False) -> RunWorker:
        n, run_id = state.run.n, state.run.id
        if self._tracing is not None:
            self._tracing.follow(state.run, fence)
        return RunWorker(
            self._store,
            state,
            self._store.owner_number,
            fence,
            self._clock,
            lambda: self.change_signal.notify(run_id),
            lambda: self._summarize(n),
            self._daily_accounts,
            is_rebuilt,
        )

    def _launch(self, worker: RunWorker) -> None:
        self.watch()
        n = worker.state.run.n
        if n in self._moving and self._moving[n][0].fence >= worker.fence:
            self.nudge(n)  # it was found undriven, and is driven already
            return
        self._moving[n] = (worker, asyncio.create_task(self._run_worker(worker)))

    async def _run_worker(self, worker: RunWorker) -> None:
        n = worker.state.run.n
        try:
            await worker.drive()
        except Exception as bug:  # one run's bug must not stop the others; it is logged, and the run's report says so
            log.exception("a bug stopped run %s", worker.state.run.id)
            worker.is_rebuilt = False
            worker.error = StoreUnavailable(f"A bug stopped this run: {type(bug).__name__}.", "Please report it.")
        finally:
            if n in self._moving and self._moving[n][0] is worker:  # else another one has taken its place
                del self._moving[n]
        if worker.error is not None:
            self._stalled[n] = worker
        elif worker.is_rebuilt and not worker.state.runner.finished:
            self._park(worker.fence, worker.state)
        self.change_signal.notify(worker.state.run.id)

    def _park(self, fence: int, state: RunState) -> None:
        self._parked[state.run.n] = fence, state
        while len(self._parked) > MAX_PARKED:
            self._parked.popitem(last=False)

    # -- what other processes do -------------------------------------------------------------------------------

    async def pick_up_runs(self) -> None:
        """Take over the runs whose server has ended, whose pause is over, or whose approvals have expired, if this
        server can perform them."""
        if not self._store.exists:
            return
        at = self._clock()
        found = await self._store.read(lambda session: self._find_runs_to_take(session, at))
        if found.has_overdue:
            await self._store.submit(lambda session: decisions.expire_overdue(session, at))
            found = await self._store.read(lambda session: self._find_runs_to_take(session, at))
        for run in found.due:
            if self._free_slots > 0 and await self._factory.can_perform(run):
                await self._resume_due_run(run, found.dead)
        await self._take_left_behind(found.dead)

    @property
    def _free_slots(self) -> int:
        return PAGE_RUNS if self._mode.slots is None else self._mode.slots - len(self._moving)

    async def _take_left_behind(self, dead: list[int]) -> None:
        """Take over the runs that these servers left, as many as there are slots for, in few commits."""
        after = 0
        while dead and self._free_slots > 0:
            page = await self._store.read(partial(queries.runs_of_owners, owners=dead, after=after, limit=PAGE_RUNS))
            if not page:
                return
            after = page[-1].n
            if self._mode.slots is not None:
                random.shuffle(page)  # several workers look at the same runs just now
            free, chosen = self._free_slots, list[RunRow]()
            for run in page:
                if len(chosen) < free and await self._factory.can_perform(run):
                    chosen.append(run)
            await asyncio.gather(*(self.take_over(run, dead) for run in chosen))

    def _find_runs_to_take(self, session: Session, at: int) -> RunsToTake:
        if not queries.may_take_runs(session, self._store.owner_number, at):
            return NOTHING_TO_TAKE  # as nearly always, and every call looks
        dead = ownership.dead_owners(session, self._store.owners, self._store.owner_number)
        return RunsToTake(
            decisions.has_overdue(session, at),
            dead,
            queries.due_runs(session, at, dead),
        )

    async def _resume_due_run(self, run: RunRow, dead: list[int]) -> None:
        at, n = self._clock(), run.n
        mine = await self._store.register_owner(at)
        fence = await self._store.submit(lambda session: runs.take_due_run(session, n, mine, at, dead), of_run=n)
        if fence is not None:
            await self._start_taken(n, fence)

    async def _drive_undriven_runs(self) -> None:
        """Drive the runs that this server took and does not drive: the call that took them was given up just then.

        A run has to be found so twice, since a call that goes on drives it in a moment.
        """
        owned = await self._store.read(lambda session: queries.fences_of_owner(session, self._store.owner_number))
        found = {n: fence for n, fence in owned.items() if n not in self._moving and n not in self._stalled}
        undriven, self._undriven = found.items() & self._undriven.items(), found
        for n, fence in undriven:
            await self._start_taken(n, fence)

    async def take_over(self, run: RunRow, dead: list[int]) -> bool:
        """Own the run if no living server does, and drive it."""
        mine, n = await self._store.register_owner(self._clock()), run.n
        fence = await self._store.submit(lambda session: runs.take_run(session, n, mine, dead), of_run=n)
        if fence is None:
            return False
        if self._tracing is not None and run.owner:
            self._tracing.follow_takeover(run, fence, mine)
        await self._start_taken(n, fence)
        return True

    def watch(self) -> None:
        """Notice what other processes write from now on."""
        if self._watcher is None or self._watcher.done():
            self._watcher = asyncio.create_task(self._watch_store())

    def wake(self) -> None:
        """Pick up runs without an owner from now on, where this process drives runs: a tool was called."""
        self.picks_up_runs = self._mode.drives
        self.watch()

    async def _watch_store(self) -> None:
        is_away = False
        while True:
            busy = self._moving or self.change_signal.urgent_listeners
            await self._store.wait_for_news(POLL_S if busy else IDLE_POLL_S)
            try:
                await self._check_store()
            except (KairosError, OSError):
                is_away = True  # the store is busy or gone; the next request that needs it reports that
                continue
            if is_away:
                is_away = False
                for n in list(self._stalled):
                    self.retry_run(n)

    async def _pass_on(self, news: News) -> None:
        """Have the workers here, and whoever waits, look at the runs of which others may have committed something."""
        if any(map(news.concerns, (*self._moving, *self._stalled))):
            cancelled = await self._store.read(queries.runs_to_cancel)
            for n, (worker, _) in list(self._moving.items()):
                if news.concerns(n):
                    worker.nudge(interrupt=n in cancelled)
            for n in cancelled & self._stalled.keys():  # a cancel also ends a run that an error has stopped
                self.retry_run(n)
        if news.of_any:
            self.change_signal.notify_all()
        elif news.runs and self.change_signal.is_awaited:
            for run_id in await self._store.read(lambda session: queries.ids_of_runs(session, news.runs)):
                self.change_signal.notify(run_id)

    async def _check_store(self) -> None:
        if not self._store.is_open:
            return
        await self._pass_on(await self._store.take_news())
        await self._drive_undriven_runs()
        if self.picks_up_runs:
            await self.pick_up_runs()

    async def close(self) -> None:
        """Wait `finish_s` seconds for the running steps to end and be committed, then stop."""
        if self._watcher is not None:
            self._watcher.cancel()
        tasks = [task for _, task in self._moving.values()]
        for worker, _ in list(self._moving.values()):
            worker.stop()
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=self._mode.finish_s)
            for task in late:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
