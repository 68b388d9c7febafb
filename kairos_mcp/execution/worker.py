"""Drive one run that this server owns: commit what is known, perform what is not, until the run waits or has ended.

Requests never drive a run. Whoever wants something of it writes a row and nudges its worker. To stop a worker means to
finish the steps under way, commit their answers, and begin nothing new.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import field
from functools import partial
from typing import TypeVar

from kairos_mcp.core.errors import (
    FenceLost,
    KairosError,
    ReplayDiffers,
    StoreCorrupt,
    StoreUnavailable,
    Unreadable,
    replay_mismatch,
)
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.tool import NO_MEMORY
from kairos_mcp.execution.accounting import DailyAccounts
from kairos_mcp.execution.cancellation import final_commit, force_cancel_job
from kairos_mcp.execution.commit import commit, write_known
from kairos_mcp.execution.decide_at_once import decide_at_once
from kairos_mcp.execution.plan_commit import plan_commit
from kairos_mcp.execution.run_state import RunState, StoredRun, read_stored_run
from kairos_mcp.execution.running_steps import RunningSteps, memory_in_rows
from kairos_mcp.store import integrity, queries
from kairos_mcp.store.commit import CommitPlan, Committed
from kairos_mcp.store.commit_rows import release_run
from kairos_mcp.store.database import Job, Store
from kairos_mcp.store.inbox import drain_inbox
from kairos_mcp.store.queries import StepRow
from kairos_mcp.store.rows import Session, decode, read_together
from kairos_mcp.store.settlements import SettlementRequest

T = TypeVar("T")

COMMIT_RETRY_S = (0.05, 0.2, 0.8)  # pauses before further attempts at a commit that the store refuses for now
KEEPS_LOOP_S = 0.001  # a run lets others have the event loop at least so often


@dataclass(slots=True)
class RunWorker:
    """The worker of one run, which this server owns under `fence`.

    `on_change` is called after each commit. `summarize` reads from the rows what the run has done. `daily_accounts`:
    those that new model calls are charged to.

    `error`: why the run is stalled. `is_current`: a transaction of this process took the run just now, and nobody else
    has written for it since. `committed`: the first commit, if it was written with the run or with an answer from
    outside; `drive` applies it before anything else.
    """

    store: Store
    state: RunState
    owner: int
    fence: int
    clock: Callable[[], int]
    on_change: Callable[[], None]
    summarize: Callable[[], Awaitable[str]]
    daily_accounts: DailyAccounts
    is_current: bool = False
    committed: Committed | None = None
    error: KairosError | None = None
    _steps: RunningSteps = field(init=False)
    _inbox_changed: bool = False
    _is_stopping: bool = False
    _is_released: bool = False
    _yields_at: float = 0.0
    _mismatched_steps: list[StepRow] = field(default_factory=list)  # unanswered, of a record that the flow can't replay
    _is_unreadable: bool = False  # cancelled, and its rows can't be read

    def __post_init__(self) -> None:
        self._steps = RunningSteps(self.store, self.state, self.clock, self.on_change)

    async def drive(self) -> None:
        """Go on until the run waits, is paused, has ended, or belongs to another server.

        Raises none of the store's errors: `error` is then why the run is stalled, and answers that could not be
        committed stay in `state.finished` for the next call.
        """
        self.error = None
        if not self.is_current:
            # Others may have written, and rules may have changed, while the run was at rest.
            self._inbox_changed, self.state.accounts, self.state.authorizations = True, {}, {}
        self.is_current = False
        self._yields_at = time.monotonic() + KEEPS_LOOP_S
        self.state.executor.tool_caller.memory = memory_in_rows(self.store, self.state, self.owner, self.fence)
        with self.store.writer.active_run():
            try:
                async with asyncio.TaskGroup() as group:
                    self._steps.open(group)
                    await self._drive_until_idle()
            except* FenceLost:
                self.state.fits_rows = False
            except* ReplayDiffers as mismatch:
                self.state.fits_rows = False
                self.error = replay_mismatch(self.state.run.id, next(_flatten_errors(mismatch)))
        self.state.executor.tool_caller.memory = NO_MEMORY  # of many runs at rest the memories take room
        self.on_change()

    def nudge(self, *, interrupt: bool = False) -> None:
        """Have the worker read its inbox. `interrupt` also stops the step that is being performed."""
        self._inbox_changed = True
        self._steps.nudge.set()
        if interrupt:
            self._steps.interrupt()

    def stop(self) -> None:
        """Commit what is being performed and begin nothing more."""
        self._is_stopping = True
        self._steps.nudge.set()

    async def _drive_until_idle(self) -> None:
        try:
            if self.committed is not None:
                committed, self.committed = self.committed, None
                self._apply(committed)
                if (waits_for := self._steps.begin()) is not None:
                    await waits_for
            while not await self._advance():
                pass
        except KairosError as error:
            self.error = queries.with_run_id(self.state.run, error) if isinstance(error, Unreadable) else error
            self.state.fits_rows = False
            await self._steps.finish()
        finally:
            self._steps.cancel_soon()

    async def _advance(self) -> bool:
        """Read the inbox, commit, perform: once each, or as often as nothing has to be awaited. Returns True when
        nothing is left to do here."""
        if time.monotonic() > self._yields_at:
            await asyncio.sleep(0)  # a model and tools that answer at once let others have the event loop all the same
            self._yields_at = time.monotonic() + KEEPS_LOOP_S
        # Whatever went wrong before, the rows are right: memory is rebuilt from them, never repaired.
        if not self.state.fits_rows:
            await self._rebuild()
        # The inbox comes first, so that a cancel or a pause is obeyed before anything more is begun or paid for. The
        # flag is cleared before the rows are read: what comes while they are read sets it again.
        if self._inbox_changed:
            self._inbox_changed = False
            if await self._read_inbox():
                return True
        at = self.clock()
        charged = await self.daily_accounts.find_accounts(self.state.run, self.state.executor.tool_access.mandate, at)
        no_new_steps = self._is_stopping or self.state.run.paused is not None
        if not no_new_steps:
            if (waits_for := self._commit_at_once()) is not None:
                await waits_for
                self._yields_at = time.monotonic() + KEEPS_LOOP_S
                return self._is_released
            if self._is_released:
                return True
            await self._prepare_calls()
            no_new_steps = self._is_stopping  # perhaps since then
        plan = plan_commit(
            *(self.state, self.owner, self.fence, self.clock(), charged),
            no_new_steps=no_new_steps,
            steps_running=bool(self._steps.tasks),
        )
        # Reserve before performing: a step begins only once its row and what it may cost are committed, so that a
        # crash at any moment leaves a row that says what may have been done.
        if plan.has_changes:
            known = self.state.known_facts(plan)
            self._apply(await self._submit(partial(commit, plan=plan, known=known)))
            if self._is_released:
                return True
        # Answers that came during the commit, or that the commit itself gave (a refusal), have moved the flow on: go
        # round again before waiting for anything.
        if plan.has_changes and (self.state.finished or not self._has_steps):
            return False
        return await self._perform_steps(plan)

    @property
    def _has_steps(self) -> bool:
        """Whether steps may begin, or are under way."""
        return bool(self.state.startable or self._steps.tasks)

    def _commit_at_once(self) -> Awaitable[None] | None:
        """Commit what is decided at once and begin its steps, until something has to be awaited. Return that; None: the
        next commit can't be decided at once."""
        while True:
            found = decide_at_once(self.state, self.daily_accounts, self.owner, self.fence, self.clock())
            if found is None:
                return None
            plan, decided = found
            job = partial(write_known, plan=plan, decided=decided)
            try:
                done = self.store.writer.commit_at_once(job)
            except KairosError as error:
                if not error.retryable:
                    raise
                done = None
            if done is None:
                return self._submit_known(plan, job)
            if (waits_for := self._go_on(plan, done[0])) is not None:
                return waits_for
            if self._is_released or not self.state.accounts:
                return None
            if time.monotonic() > self._yields_at:
                return asyncio.sleep(0)

    async def _submit_known(self, plan: CommitPlan, job: Job[Committed | None]) -> None:
        """Write a commit together with those of other runs, and begin what follows."""
        if (waits_for := self._go_on(plan, await self._submit(job))) is not None:
            await waits_for

    def _go_on(self, plan: CommitPlan, committed: Committed | None) -> Awaitable[None] | None:
        """Begin the steps of a commit that was decided at once; return what has to be awaited for them. If it was not
        written, take its plan back."""
        if committed is None:
            self.state.withdraw(plan)
            return None
        self._apply(committed)
        if self._is_released or self._inbox_changed:
            return None  # in the second case something came during the commit, perhaps a cancel
        return self._steps.begin()

    async def _prepare_calls(self) -> None:
        """Find out what became of calls of unknown outcome, and whether new ones may be made.

        The first may finish an edit that a crash interrupted, the second only reads, both in worker threads. They come
        before the commit because a transaction must not wait for a disk, and because the commit records what they
        found.
        """
        caller = self.state.executor.tool_caller
        for path, call, step in self.state.calls_to_probe():
            begun_ms_ago = self.clock() - step.first_begun_at
            step.probe_result = await caller.probe(path, call, step.approved_base, begun_ms_ago)
        for path, call in self.state.calls_to_authorize():
            if path not in self.state.authorizations:  # it is, if it stands behind one that a person is asked about
                self.state.authorizations |= await caller.authorize(path, call, self.state.calls_behind(path))

    async def _rebuild(self) -> None:
        """Rebuild the state from the run's rows.

        A run can still be cancelled, though nothing else, where its record no longer fits its flow, its rows can't be
        read, or its account is not the sum of its rows: then no error is raised if a cancel waits in the inbox.
        """
        run = self.state.run
        inbox = await self.store.read(lambda session: queries.pending_requests(session, run.n))
        is_cancelled = any(request.kind == "cancel" for request in inbox)

        def read_checked(session: Session) -> StoredRun:
            if is_cancelled:
                return read_stored_run(session, run)
            stored, _ = read_together(
                session,
                lambda session: read_stored_run(session, run),
                lambda session: integrity.check_run_account(session, run.n, run.account),
            )
            return stored

        try:
            stored = await self.store.read(read_checked, one_state=True)
            try:
                self.state.rebuild(stored)
            except ReplayDiffers:
                if not is_cancelled:
                    raise
                self.state.pending.clear()
                self._mismatched_steps = [row for row in stored.record if row.body is None]
        except StoreCorrupt:
            if not is_cancelled:
                raise
            self._is_unreadable = True
        self.state.fits_rows = True

    def _apply(self, committed: Committed) -> None:
        """Take over what was committed."""
        self.state.apply(committed)
        self._is_released = committed.released
        if committed.has_arrivals:
            self._inbox_changed = True
        self.on_change()

    async def _submit(self, job: Job[T]) -> T:
        for pause in COMMIT_RETRY_S:
            try:
                return await self.store.submit(job, of_run=self.state.run.n)
            except KairosError as error:
                if not error.retryable:
                    raise
                await asyncio.sleep(pause)
        return await self.store.submit(job, of_run=self.state.run.n)

    async def _read_inbox(self) -> bool:
        """Carry out the requests and take over the answers that others left. Returns True if that ended the run."""
        run = self.state.run
        if self._is_unreadable:
            await self._steps.cancel()
            await self._force_cancel()
            return True
        read_arrivals = self.state.arrivals_reader()
        inbox, arrivals = await self.store.read(
            lambda session: read_together(
                session,
                lambda session: queries.pending_requests(session, run.n),
                read_arrivals,
            )
        )
        if inbox:
            owner, fence, at = self.owner, self.fence, self.clock()
            try:
                drained = await self.store.submit(
                    lambda session: drain_inbox(session, run, owner, fence, at), of_run=run.n
                )
            except Unreadable:
                # One request can't be read. A cancel among the others counts all the same.
                if all(request.kind != "cancel" for request in inbox):
                    raise
                await self._cancel_run()
                return True
            self.state.run, self.state.accounts = drained.run, {}  # a limit may have been extended
            if drained.is_cancelled:
                await self._cancel_run()
                return True
            if drained.resumes:
                self.state.resume_pauses(drained.resumes)
            self.state.apply_settlements(
                (request.id, decode(SettlementRequest, request.body), request.via) for request in drained.settlements
            )
            arrivals = await self.store.read(self.state.arrivals_reader())
        self.state.apply_arrivals(arrivals)
        return False

    async def _perform_steps(self, plan: CommitPlan) -> bool:
        """Begin the steps that may begin; with none, wait for those under way; with none of these, release the run.
        Returns True when nothing is left to do here."""
        if self._inbox_changed:
            return False  # something came during the commit, perhaps a cancel
        if self._has_steps:
            if (waits_for := self._steps.begin()) is not None:
                await waits_for
            return False
        if self._is_stopping:
            return True  # still owned: the server that finds this one gone takes the run over
        is_released = await self.store.submit(lambda session: release_run(session, plan), of_run=plan.run)
        # A run is not released where something came for it meanwhile, in the same transaction: no row is overlooked.
        self._inbox_changed = not is_released
        return is_released

    async def _cancel_run(self) -> None:
        """End the run: stop what is performed, record it as stopped, and summarize from the rows what was done."""
        await self._steps.cancel()
        summary = await self.summarize()
        try:
            plan = final_commit(self.state, self._mismatched_steps, self.owner, self.fence, self.clock(), summary)
            await self._submit(partial(commit, plan=plan))
        except (StoreCorrupt, StoreUnavailable, FenceLost):  # its account may be gone, or not the sum of its rows
            await self._force_cancel()
        self.state.finished = []
        self._steps.tasks.clear()

    async def _force_cancel(self) -> None:
        """End the run from its rows alone, as far as they can be read."""
        summary = await self.summarize()
        known = {answered.step_id: answered for answered in self.state.finished}
        job = force_cancel_job(self.state.run, self.fence, self.clock(), summary, known)
        await self.store.submit(job)
        self.state.fits_rows = False


def _flatten_errors(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _flatten_errors(error)
        else:
            yield error
