"""Every run that moves in this server: its worker, what is kept of it while it rests, and who waits for its changes."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial

from kairos_mcp.app.drive_mode import RunHere
from kairos_mcp.app.run_factory import RunFactory
from kairos_mcp.app.teams import TeamViews
from kairos_mcp.core.errors import FenceLost, ReplayDiffers, StoreCorrupt, StoreUnavailable, Unreadable, replay_mismatch
from kairos_mcp.core.run_spec import Spec
from kairos_mcp.core.steps import Failure
from kairos_mcp.execution.accounting import DailyAccounts
from kairos_mcp.execution.cancellation import force_cancel_job
from kairos_mcp.execution.commit import commit, write_first, write_known
from kairos_mcp.execution.decide_at_once import decide_at_once
from kairos_mcp.execution.pending_step import MAX_ATTEMPTS
from kairos_mcp.execution.plan_commit import plan_commit
from kairos_mcp.execution.run_state import RunState, read_stored_run
from kairos_mcp.execution.worker import RunWorker
from kairos_mcp.store import ownership, queries, runs
from kairos_mcp.store.commit import CommitPlan, Committed, Decided, StepResult
from kairos_mcp.store.database import Store
from kairos_mcp.store.inbox import SubmittedAnswer
from kairos_mcp.store.joined_commit import ParkedRun
from kairos_mcp.store.queries import RunRow, with_run_id
from kairos_mcp.store.rows import Session
from kairos_mcp.store.runs import NewRun
from kairos_mcp.views import transcript
from kairos_mcp.views.run_facts import BackOff

EVERY_RUN = "*"  # whoever waits for a change of any run waits for this one


class ChangeSignal:
    """Notified of each commit, of this process or another; whoever waits for a change of some runs waits for the next
    one that concerns them, so that many calls side by side don't wake each other."""

    def __init__(self, on_commit: Callable[[str], None] | None = None) -> None:
        self._on_commit = on_commit
        self._waiting: dict[str, set[asyncio.Event]] = {}  # by run id
        self.urgent_listeners = 0  # waits for which a client's call waits

    @property
    def is_awaited(self) -> bool:
        """Whether anybody waits for a change."""
        return bool(self._waiting)

    def notify(self, run_id: str) -> None:
        """Wake everybody who waits for this run, or for any."""
        if self._on_commit is not None:
            self._on_commit(run_id)
        if not self._waiting:
            return
        for event in (*self._waiting.get(run_id, ()), *self._waiting.get(EVERY_RUN, ())):
            event.set()

    def notify_all(self) -> None:
        """Wake everybody: another process has written, perhaps of any run."""
        for run_id in self._waiting:
            self.notify(run_id)

    async def wait(self, run_ids: Collection[str], within_s: float, *, urgent: bool = True) -> None:
        """Return at the next notification for one of these runs, or after `within_s` seconds.

        `urgent`: a client's call waits, so that commits of other processes are checked for more often.
        """
        changed, concerned = asyncio.Event(), set(run_ids)
        for run_id in concerned:
            self._waiting.setdefault(run_id, set()).add(changed)
        self.urgent_listeners += urgent
        try:
            async with asyncio.timeout(within_s):
                await changed.wait()
        except TimeoutError:
            pass
        finally:
            self.urgent_listeners -= urgent
            for run_id in concerned:
                self._waiting[run_id].discard(changed)
                if not self._waiting[run_id]:
                    del self._waiting[run_id]


MAX_PARKED = 64  # runs at rest whose replayed flow is cached; others are replayed from their rows again

log = logging.getLogger(__name__)


class RunPool:
    """One worker for each run that moves here; the states of runs at rest are kept as a cache.

    `finish_s`: how long running steps may take to end when it is closed. `on_launch` is called when a run begins to
    move. `moving` and `stalled`: by the runs' numbers, the workers, and those that an error has stopped.
    """

    def __init__(
        self, store: Store, factory: RunFactory, clock: Callable[[], int], teams: TeamViews, finish_s: float
    ) -> None:
        self.on_launch: Callable[[], None] = lambda: None
        settings = factory.settings
        self.daily_accounts = DailyAccounts(store, settings.day_of, settings.time_zone, settings.group_caps_of)
        self._tracing = factory.tracing
        self.change_signal = ChangeSignal(None if self._tracing is None else self._tracing.note_commit)
        self._store = store
        self._factory = factory
        self._clock = clock
        self._teams = teams
        self._finish_s = finish_s
        self.moving: dict[int, tuple[RunWorker, asyncio.Task[None]]] = {}
        self._parked: OrderedDict[int, tuple[int, RunState]] = OrderedDict()  # each with the fence that it fits
        self.stalled: dict[int, RunWorker] = {}

    # -- what is asked of a run --------------------------------------------------------------------------------

    def is_moving(self, n: int) -> bool:
        return n in self.moving

    async def wait_until_stopped(self, ns: Sequence[int], within_s: float) -> bool:
        """Return when none of these runs moves here, or after `within_s` seconds; False at once where none did.

        Somebody who waits for the end of a run need not wake at each commit.
        """
        tasks = [self.moving[n][1] for n in ns if n in self.moving]
        if tasks:
            await asyncio.wait(tasks, timeout=within_s)
        return bool(tasks)

    def look(self, n: int) -> RunHere:
        """Return what there is of a run here."""
        moving, stalled = self.moving.get(n), self.stalled.get(n)
        backing_off = () if moving is None else tuple(_failed_attempts(moving[0]))
        return RunHere(moving is not None, None if stalled is None else stalled.error, backing_off)

    async def state_of(self, run: RunRow) -> RunState:
        """Return the in-memory state of a run, for reading: the cached one as long as it fits the rows.

        Raises Stale where the record does not fit the flow.
        """
        moving = self.moving.get(run.n)
        if moving is not None and moving[0].state.fits_rows:
            return moving[0].state
        parked = self.parked_state(run)
        if parked is not None:
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

    def parked_state(self, run: RunRow) -> RunState | None:
        """Return the state of a run at rest, if it is cached and fits the row."""
        fence, state = self._parked.get(run.n, (None, None))
        return state if fence == run.fence and run.owner is None else None

    # -- moving a run ------------------------------------------------------------------------------------------

    async def start(self, run: RunRow, fence: int) -> None:
        """Drive a run that this server has just taken, with this fencing number."""
        parked_fence, parked = self._parked.pop(run.n, (None, None))
        if parked is not None and parked_fence == fence - 1:
            parked.take_row(run)
            self._launch(self._make_worker(parked, fence))
        else:
            self._launch(self._make_worker(await self._factory.new_state(run), fence))

    async def continue_run(self, run: RunRow, mine: int, fence: int | None, *, interrupt: bool = False) -> None:
        """Go on with a run for which rows were written: drive it if they took it for this server (`fence`), else nudge
        its worker here."""
        if fence is None:
            self.retry_run(run.n)
            self.nudge(run.n, interrupt=interrupt)
        elif mine != ownership.ANY_SERVER:
            await self.start_taken(run.n, fence)
        self.change_signal.notify(run.id)

    async def start_taken(self, n: int, fence: int) -> None:
        """Drive the run with this number, whose row was changed when this server took it."""
        await self.start(await self._store.read(lambda session: queries.run_by_number(session, n)), fence)

    def go_on(self, state: RunState, fence: int, committed: Committed | None) -> None:
        """Go on with a run after a commit that was written here and that its state lacks yet: drive it, or park
        it where only open steps are left."""
        if committed is None or not committed.released:
            worker = self._make_worker(state, fence)
            worker.is_current, worker.committed = True, committed
            self._launch(worker)
        else:
            state.apply(committed)
            if not state.runner.finished:
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
        moving = self.moving.get(n)
        if moving is not None:
            moving[0].nudge(interrupt=interrupt)
        return moving is not None

    def retry_run(self, n: int) -> None:
        """Go on with a run that an error stopped; answers that could not be committed are committed now."""
        worker = self.stalled.pop(n, None)
        if worker is not None:
            self._launch(worker)

    async def _summarize(self, n: int) -> str:
        team = await self._teams.find(await self._store.read(lambda session: queries.run_by_number(session, n)))
        if team is not None and team.tasks:
            return team.summarize()
        return transcript.summarize_run(await self._store.read(lambda session: queries.read_record(session, n)))

    def _make_worker(self, state: RunState, fence: int) -> RunWorker:
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
            self.daily_accounts,
        )

    def _launch(self, worker: RunWorker) -> None:
        self.on_launch()
        n = worker.state.run.n
        if n in self.moving and self.moving[n][0].fence >= worker.fence:
            self.nudge(n)  # it was found undriven, and is driven already
            return
        self.moving[n] = (worker, asyncio.create_task(self._run_worker(worker)))

    async def _run_worker(self, worker: RunWorker) -> None:
        n = worker.state.run.n
        try:
            await worker.drive()
        except Exception as bug:  # one run's bug must not stop the others; it is logged, and the run's report says so
            log.exception("a bug stopped run %s", worker.state.run.id)
            worker.state.fits_rows = False
            worker.error = StoreUnavailable(f"A bug stopped this run: {type(bug).__name__}.", "Please report it.")
        finally:
            if n in self.moving and self.moving[n][0] is worker:  # else another one has taken its place
                del self.moving[n]
        if worker.error is not None:
            self.stalled[n] = worker
        elif worker.state.fits_rows and not worker.state.runner.finished:
            self._park(worker.fence, worker.state)
        self.change_signal.notify(worker.state.run.id)

    def _park(self, fence: int, state: RunState) -> None:
        self._parked[state.run.n] = fence, state
        while len(self._parked) > MAX_PARKED:
            self._parked.popitem(last=False)

    # -- commits that are one transaction with what caused them ---------------------------------------------------

    async def create_run(self, new: NewRun, spec: Spec, owner: int) -> RunRow | None:
        """Create a run together with its first commit, where that is decided at once, and drive it; or return the run
        that the same start has created before. Raises the store's errors."""
        draft = runs.draft_run(new, owner)
        try:
            loaded = await self._factory.specs.load_new(new, spec)
            await self._factory.read_content_key()
            await self._factory.read_known_costs(draft.principal)
            state = self._factory.make_state(draft, loaded)
            state.begin(new.limits)
            first = decide_at_once(state, self.daily_accounts, owner, draft.fence, new.at)
        except Exception:  # a damaged text of an earlier run, a bug of the flow: the run's worker meets it
            loaded, state, first = None, None, None

        def create(session: Session) -> tuple[RunRow, Committed | None] | RunRow:
            before = runs.find_same_start(session, new)
            if before is not None:
                return before
            run = runs.insert_run(session, new, draft)
            return run, None if first is None else write_first(session, *first, run)

        created = await self._store.submit(create)
        if isinstance(created, RunRow):
            return created
        run, committed = created
        if loaded is None or state is None:
            await self.start(run, run.fence)
            return None
        self._factory.bind_state(state, run, loaded)
        if committed is None:
            state.begin(new.limits)
        self.go_on(state, run.fence, committed)
        return None

    async def commit_answers(
        self, run: RunRow, answers: Sequence[SubmittedAnswer], by_route: str, mine: int, *, nonce: str | None = None
    ) -> bool:
        """Write answers for a run that is parked here together with its next commit, and go on with it.

        `nonce`: of the ask that is answered. False where that can't be, and nothing was written: the answers are then
        to be recorded by themselves. Raises the store's errors.
        """
        state, fence, at = self.parked_state(run), run.fence + 1, self._clock()
        if not answers or mine == ownership.ANY_SERVER or state is None or run.paused is not None:
            return False
        if not state.waits_only_for({each.path for each in answers}):
            return False
        accounts = await self.daily_accounts.find_accounts(run, state.executor.tool_access.mandate, at)
        if self.parked_state(run) is not state:
            return False
        del self._parked[run.n]
        # From here on the state is given up, unless all of this is written.
        state.take_row(run)
        try:
            parked_run = state.take_answers(answers, by_route, nonce)
            state.run = state.run._replace(owner=mine, fence=fence)
            found = decide_at_once(state, self.daily_accounts, mine, fence, at)
        except Exception:  # a bug of the flow: the answer is recorded all the same, and the run's worker meets the bug
            return False
        committed = None if found is None else await self._write_known(state, *found, parked_run)
        if committed is None:
            try:
                plan = plan_commit(state, mine, fence, at, accounts)
            except Exception:
                return False
            job = partial(commit, plan=plan, known=state.known_facts(plan), parked=parked_run)
            try:
                committed = await self._store.submit(job, of_run=run.n)
            except (FenceLost, StoreCorrupt):
                return False
        self.go_on(state, fence, committed)
        return True

    async def _write_known(
        self, state: RunState, plan: CommitPlan, decided: Decided, parked: ParkedRun
    ) -> Committed | None:
        """Write a parked run's commit that was decided at once; None, and nothing is written, where something is not as
        it was known."""
        try:
            committed = await self._store.submit(
                lambda session: write_known(session, plan, decided, parked), of_run=plan.run
            )
        except StoreCorrupt:  # whoever reads what the commit rests on meets it too
            committed = None
        if committed is None:
            state.withdraw(plan)
        return committed

    async def close(self) -> None:
        """Wait for the running steps to end and be committed, then stop."""
        tasks = [task for _, task in self.moving.values()]
        for worker, _ in list(self.moving.values()):
            worker.stop()
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=self._finish_s)
            for task in late:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def _failed_attempts(worker: RunWorker) -> Iterator[BackOff]:
    """Yield the attempts of a run that failed here and are repeated after a pause."""
    for path, step in worker.state.pending.items():
        match step.failed_result:
            case StepResult(answer=Failure(code=code)) if step.retry_at is not None:
                yield BackOff(path, code, step.retry_at, step.attempts % MAX_ATTEMPTS + 1, MAX_ATTEMPTS)
            case _:
                pass
