"""Drives one run that this server owns: commit what is known, perform what is not, until it waits or has ended.

No request drives a run: whoever wants something of it leaves a row and nudges. Stopping means finishing what is
being performed and committing it without a next mark.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field, replace

from kairos_mcp.budget.reservation import Reservation
from kairos_mcp.core.errors import (
    FenceLost,
    KairosError,
    ReplayDiffers,
    Stale,
    StoreCorrupt,
    StoreUnavailable,
    Unreadable,
)
from kairos_mcp.execution.cancellation import broken_off, last_turn
from kairos_mcp.execution.ending import LET_OUT_S
from kairos_mcp.execution.pending_step import FinishedStep, PendingStep
from kairos_mcp.execution.retry import is_outage, pause_before
from kairos_mcp.execution.run_state import ChargedAccounts, RunState
from kairos_mcp.execution.tool_memory import memory_of
from kairos_mcp.store import apply_commit, client_requests, integrity, naming, queries
from kairos_mcp.store.commit import CommitResult, RunCommit
from kairos_mcp.store.connection import one_state
from kairos_mcp.store.database import Store
from kairos_mcp.store.inbox import take_up
from kairos_mcp.store.queries import RunRow, StepRow
from kairos_mcp.store.settlements import said_in

TRY_AGAIN_S = (0.05, 0.2, 0.8)  # between tries of a commit that the store refuses for now


@dataclass(slots=True)
class RunWorker:
    """One run on the move. `rung` is called after each commit; `summarise` tells from the rows what was done."""

    store: Store
    standing: RunState
    owner: int
    fence: int
    clock: Callable[[], int]
    rung: Callable[[], None]
    summarise: Callable[[], str]
    charge: Callable[[RunRow, str | None, int], Awaitable[ChargedAccounts]]
    folded: bool = False
    trouble: KairosError | None = None
    _inflight: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    _nudged: asyncio.Event = field(default_factory=asyncio.Event)
    _task: asyncio.Task[object] | None = None
    _looks: bool = True
    _alone: bool = False
    _interrupted: bool = False
    _stopping: bool = False
    _unfit: list[StepRow] = field(default_factory=list)  # unanswered steps of a record that does not fit the flow
    _unreadable: bool = False  # cancelled, and its rows can't be read

    async def drive(self) -> None:
        """Go on until the run waits, is paused, has ended, or belongs to another.

        Raises nothing of the store's: `trouble` then says why the run stands still, and answers that could not be
        committed are kept in `standing.ready` for the next drive.
        """
        self._task, self.trouble, self._looks = asyncio.current_task(), None, True
        self._inflight.clear()  # what was under way when a bug ended the drive before is not any more
        run = self.standing.run
        self.standing.performer.memory = memory_of(self.store, run.n, run.id, self.owner, self.fence)
        with self.store.writer.moving():
            try:
                async with asyncio.TaskGroup() as group:
                    await self._drive(group)
            except* FenceLost:
                self.folded = False
            except* ReplayDiffers as differs:
                self.folded = False
                self.trouble = out_of_step(self.standing.run.id, next(_leaves(differs)))
        self.rung()

    def nudge(self, *, interrupt: bool = False) -> None:
        """Something came for this run: look at its rows. `interrupt` stops what is being performed."""
        self._looks = True
        self._nudged.set()
        if interrupt and self._alone and self._task is not None and not self._interrupted:
            self._interrupted = True  # once: a call that is let out of a change is not cut short by the same wish again
            self._task.cancel()

    def stop(self) -> None:
        """Commit what is being performed and begin nothing more."""
        self._stopping = True
        self._nudged.set()

    async def _drive(self, group: asyncio.TaskGroup) -> None:
        try:
            while not await self._step(group):
                pass
        except KairosError as error:
            self.trouble, self.folded = _of_run(self.standing.run, error), False
            await self._let_finish()
        finally:
            for task in self._inflight.values():
                task.cancel()

    async def _step(self, group: asyncio.TaskGroup) -> bool:
        """Look, commit, perform, once. True when nothing is left to do here."""
        if not self.folded:
            self._fold()
        if self._looks:
            self._looks = False
            if await self._look():
                return True
        still = self._stopping or self.standing.run.paused is not None
        if not still:
            for path, call, mark in self.standing.unprobed():
                mark.probed = await self.standing.performer.probe(path, call, mark.base)
            for path, call in self.standing.undecided():
                self.standing.considered[path] = await self.standing.performer.consider(path, call)
        at = self.clock()
        turn = self.standing.next_turn(
            self.owner,
            self.fence,
            at,
            await self.charge(self.standing.run, self.standing.performer.reach.mandate, at),
            still=still,
            performing=bool(self._inflight),
        )
        if turn.says_something and await self._make(turn):
            return True
        granted = self.standing.granted
        if turn.says_something and (self.standing.ready or not (granted or self._inflight)):
            return False
        return await self._perform_granted(group, turn, granted)

    def _fold(self) -> None:
        """Build the run from its rows. One that does not fit its flow any more, that can't be read, or whose account
        is not the sum of its rows, can still be cancelled, and nothing else."""
        run = self.standing.run
        came = queries.wishes(self.store.reader, run.n)
        cancelled = any(wish.kind == "cancel" for wish in came)
        try:
            with one_state(self.store.reader) as reader:
                self.standing.fold(reader, self._inflight)
                if not cancelled:
                    integrity.check(reader, run.n, run.account)
        except ReplayDiffers:
            if not cancelled:
                raise
            self.standing.marks.clear()
            self._unfit = [row for row in queries.record(self.store.reader, self.standing.run.n) if row.body is None]
        except StoreCorrupt:
            if not cancelled:
                raise
            self._unreadable = True
        self.folded = True

    async def _make(self, turn: RunCommit) -> bool:
        """Commit the turn. True when the run was let go of."""
        committed = await self._commit(turn)
        self.standing.learn(turn, committed)
        if committed.paused is not None:
            why, resume_at = committed.paused
            self.standing.run = replace(self.standing.run, paused=why, resume_at=resume_at)
        self._looks = self._looks or committed.came
        self.rung()
        return committed.parked

    async def _commit(self, turn: RunCommit) -> CommitResult:
        for pause in TRY_AGAIN_S:
            try:
                return await self.store.submit(lambda connection: apply_commit.apply(connection, turn))
            except KairosError as error:
                if not error.retryable:
                    raise
                await asyncio.sleep(pause)
        return await self.store.submit(lambda connection: apply_commit.apply(connection, turn))

    async def _look(self) -> bool:
        """Take up the wishes and answers that others left. True if the run ended by it."""
        reader, run = self.store.reader, self.standing.run
        if self._unreadable:
            await self._stop_all()
            await self._break_off()
            return True
        if came := queries.wishes(reader, run.n):
            owner, fence, at = self.owner, self.fence, self.clock()
            try:
                taken = await self.store.submit(lambda connection: take_up(connection, run, owner, fence, at))
            except Unreadable:
                if all(wish.kind != "cancel" for wish in came):
                    raise
                await self._cancel()
                return True
            self.standing.run = taken.run
            if taken.cancelled:
                await self._cancel()
                return True
            if taken.resumed:
                self.standing.resume_pauses()
            self.standing.take_settlements((wish.id, said_in(wish), wish.via) for wish in taken.settled)
        self.standing.take_withdrawn(client_requests.uncharged(reader, run.n))
        self.standing.collect(reader)
        self.standing.take_verdicts(reader)
        return False

    # -- performing --------------------------------------------------------------------------------------------

    async def _perform_granted(
        self, group: asyncio.TaskGroup, turn: RunCommit, granted: list[tuple[str, PendingStep]]
    ) -> bool:
        if self._looks:
            return False  # something came during the commit, perhaps the wish to stop
        if len(granted) == 1 and not self._inflight:
            await self._perform_alone(*granted[0])
            return False
        for path, mark in granted:
            self._inflight[path] = group.create_task(self._perform_beside(path, mark, mark.begin()))
        if self._inflight:
            await self._nudged.wait()
            self._nudged.clear()
            return False
        if self._stopping:
            return True  # still owned: whoever finds this server gone goes on with it
        let_go = await self.store.submit(lambda connection: apply_commit.let_go(connection, turn))
        self._looks = not let_go
        return let_go

    async def _perform_alone(self, path: str, mark: PendingStep) -> None:
        """Perform the only step there is in this task: a task of its own costs more than a commit."""
        self._alone = True
        try:
            await self._perform(path, mark, mark.begin())
        except asyncio.CancelledError:
            if not self._interrupted or self._task is None:
                raise
            self._interrupted = False
            self._task.uncancel()
        finally:
            self._alone = False

    async def _perform_beside(self, path: str, mark: PendingStep, granted: Reservation) -> None:
        await self._perform(path, mark, granted)
        self._nudged.set()

    async def _perform(self, path: str, mark: PendingStep, granted: Reservation) -> None:
        """One attempt, and the pause after it where another one follows."""
        performed = await self.standing.performer.perform(path, mark.step, mark.sent, granted, mark.base)
        pause = pause_before(mark, performed)
        sits_out = is_outage(mark, performed, self.standing.performer.paid)
        if pause is not None or sits_out:
            mark.failing = performed
        if pause:
            mark.again_at = self.clock() + int(pause * 1000)
            self.rung()  # whoever waits is told
            await asyncio.sleep(pause)
        self._inflight.pop(path, None)
        if (pause is not None or sits_out) and self.folded:
            self.standing.fail(path, performed, sits_out=sits_out)
        elif self.folded:
            self.standing.settle(path, performed, mark.sent.route or "house")
        else:
            self.standing.ready.append(FinishedStep(path, mark, performed, mark.sent.route or "house"))

    async def _let_finish(self) -> None:
        """What was begun is paid for: wait for it, so that its answer can be committed later."""
        if self._inflight:
            await asyncio.wait(self._inflight.values())

    async def _stop_all(self) -> None:
        """Stop what is performed side by side, and wait until it has ended: a change of files is let out of."""
        for task in self._inflight.values():
            task.cancel()
        if self._inflight:
            await asyncio.wait(list(self._inflight.values()), timeout=LET_OUT_S)

    async def _cancel(self) -> None:
        """End the run: stop what is performed, journal it as stopped, tell from the rows what was done."""
        await self._stop_all()
        try:
            await self._commit(
                last_turn(self.standing, self._unfit, self.owner, self.fence, self.clock(), self.summarise())
            )
        except (StoreCorrupt, StoreUnavailable, FenceLost):  # perhaps its account is gone, or not the sum of its rows
            await self._break_off()
        self.standing.ready = []
        self._inflight.clear()

    async def _break_off(self) -> None:
        """End the run from its rows alone, as far as they can be read."""
        known = {each.mark.id: each.settled() for each in self.standing.ready}
        job = broken_off(self.standing.run, self.fence, self.clock(), self.summarise(), known)
        await self.store.submit(job)
        self.folded = False


def _of_run(run: RunRow, error: KairosError) -> KairosError:
    return naming.named(run, error) if isinstance(error, Unreadable) else error


def out_of_step(run_id: str, differs: BaseException) -> Stale:
    """A run whose record and flow differ can't go on; what it has done can be gone on from."""
    go_on = f'planner_run continues="{run_id}" goes on from it.'
    return Stale(f"The record does not fit the flow: {differs}.", go_on, run_id=run_id)


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error
