"""The state of a run in memory: its replayed flow, its pending steps, and answers that are not committed yet.

All of it can be thrown away and rebuilt from the rows, which are read here too. Nothing here performs a step, commits
or waits.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from kairos_mcp.budget.reservation import Account
from kairos_mcp.core.limits import NOTHING, Limits, counts_of
from kairos_mcp.core.outcomes import Outcome
from kairos_mcp.core.replay import Runner
from kairos_mcp.core.routes import SERVER_ROUTE
from kairos_mcp.core.steps import Answer, CallTool, Flow, Resumed, Step, enclosing_paths, task_of
from kairos_mcp.execution.executor import StepExecutor
from kairos_mcp.execution.pending_step import PendingStep, restore_step
from kairos_mcp.execution.tool_calls import Authorization, denial_result, settlement_result
from kairos_mcp.store import approvals, client_completions, queries
from kairos_mcp.store.accounts import BranchAccountIds, read_branch_accounts
from kairos_mcp.store.approvals import ApprovalRow
from kairos_mcp.store.client_completions import WithdrawnRequest
from kairos_mcp.store.commit import AnsweredStep, CommitResult, NewAttempt, RunCommit, StepResult, UsualCommit
from kairos_mcp.store.inbox import SubmittedAnswer
from kairos_mcp.store.joined_commit import ParkedRun
from kairos_mcp.store.queries import RunRow, StepRow
from kairos_mcp.store.rows import Session, decode_answer, read_together
from kairos_mcp.store.settlements import SettlementRequest


class StoredRun(NamedTuple):
    """The rows that a run is rebuilt from: its steps, its branch accounts by path, and the newest approvals of its
    unanswered steps by path."""

    record: Sequence[StepRow]
    branches: BranchAccountIds
    approvals: Mapping[str, ApprovalRow]


def read_stored_run(session: Session, run: RunRow) -> StoredRun:
    """Read what `RunState.rebuild` needs. Raises StoreCorrupt."""
    return StoredRun(
        *read_together(
            session,
            lambda session: queries.read_record(session, run.n),
            lambda session: read_branch_accounts(session, run.account),
            lambda session: approvals.newest_approvals(session, run.n),
        )
    )


class AwaitedSteps(NamedTuple):
    """What others may bring to run number `n`: answers of its open steps (paths by id), and verdicts."""

    n: int
    open_steps: Mapping[int, str]
    awaits_approval: bool


class Arrivals(NamedTuple):
    """What others have written for a run's open steps: withdrawn requests, answers (step's id, encoded answer), and
    the newest approvals by path."""

    withdrawals: Sequence[WithdrawnRequest]
    answers: Sequence[tuple[int, str]]
    approvals: Mapping[str, ApprovalRow]


def read_arrivals(session: Session, awaited: AwaitedSteps) -> Arrivals:
    """Read what has come for a run."""
    steps = list(awaited.open_steps)
    return Arrivals(
        *read_together(
            session,
            lambda session: client_completions.list_uncharged(session, awaited.n),
            lambda session: queries.read_answers(session, steps) if steps else [],
            lambda session: approvals.newest_approvals(session, awaited.n) if awaited.awaits_approval else {},
        )
    )


_RUN_ALONE = ("",)  # of a run without branches, each step is charged to its own account alone


@dataclass(slots=True)
class RunState:
    """One run in memory. `make_flow` starts its flow anew; `agent` is whose steps these are.

    `pending`: steps with a row and without an answer, by path. `finished`: answers to be committed next.
    `authorizations`: what is known of permission for calls that have no row yet, or must be asked about anew.
    `handled_requests`: control requests that the next commit acts on. `branches`: the run's branch accounts by path.
    `accounts`: as the last commit that changed each left it, the run's own under "", those of branches by path; none
    where they are to be read again. `failed`: steps whose newest attempt failed and is to be repeated, by path.
    `kept_waiting`: steps that begin once siblings of their branches have left more, as the newest general commit says;
    `room_seen`: what there was then that leaves room.
    `has_notes_of_tools`: tools may have stored something of this run. `fits_rows`: this is what the run's rows say;
    after an error it may not be, and is rebuilt before the next step.
    """

    run: RunRow
    executor: StepExecutor
    make_flow: Callable[[], Flow[Outcome]]
    agent: str | None = None
    runner: Runner = field(init=False)
    pending: dict[str, PendingStep] = field(default_factory=dict)
    finished: list[AnsweredStep] = field(default_factory=list)
    authorizations: dict[str, Authorization] = field(default_factory=dict)
    handled_requests: list[int] = field(default_factory=list)
    branches: BranchAccountIds = field(default_factory=dict)
    accounts: dict[str, Account] = field(default_factory=dict)
    failed: dict[str, PendingStep] = field(default_factory=dict)
    kept_waiting: set[str] = field(default_factory=set)
    room_seen: tuple[int, int] | None = None
    has_notes_of_tools: bool = True
    fits_rows: bool = False

    def rebuild(self, stored: StoredRun) -> None:
        """Start the flow anew and feed it the record, then the answers in `finished`.

        The outcome of steps that were begun is unknown, but for those whose attempt is known to have failed. Raises
        ReplayDiffers, StoreCorrupt.
        """
        self.runner = Runner(self.make_flow(), self.agent)
        self.pending, self.branches, self.accounts = {}, stored.branches, {}
        self.kept_waiting.clear()
        self.room_seen = None
        self.executor.reset()
        self.executor.tool_access.set_agent_lookup(self.runner.agent_of)
        calls_of_tasks: list[tuple[StepRow, CallTool]] = []
        with _without_garbage_collector():
            for row in stored.record:
                answer, sent = row.answer, row.sent
                step = self.runner.replay(row.path, row.digest, answer)
                self.executor.restore_step(step, sent, row.at)
                if isinstance(step, CallTool) and task_of(row.path):
                    calls_of_tasks.append((row, step))
                if answer is not None:
                    self.executor.record_answer(row.path, step, answer, sent)
                else:
                    self.pending[row.path] = restore_step(row, step)
        if calls_of_tasks:
            self.executor.tool_caller.restore_changes(calls_of_tasks)
        self._restore_approvals(stored.approvals)
        uncommitted, self.finished = self.finished, []
        for finished in uncommitted:
            if finished.path in self.pending:  # else the commit that seemed to fail had been written
                self.finish_step(finished.path, finished.result, finished.by_route)
        for path, failed in self.failed.items():
            pending = self.pending.get(path)
            if pending is not None and pending.attempts == failed.attempts - 1:  # it was not begun again since
                pending.copy_failure(failed)
        self._apply_verdicts(stored.approvals)
        self.fits_rows = True

    def take_row(self, run: RunRow) -> None:
        """Take over the run's row as it is now. What has not changed stays the same object: others hold it as well."""
        self.run = RunRow._make([known if known == now else now for known, now in zip(self.run, run, strict=True)])

    def begin(self, limits: Limits) -> None:
        """Start the flow of a run of which nothing is stored yet but its account, which has these limits."""
        self.rebuild(StoredRun((), {}, {}))
        self.accounts = {"": Account(self.run.account, limits, NOTHING, NOTHING)}
        self.has_notes_of_tools = False

    def finish_step(self, path: str, result: StepResult, by_route: str) -> None:
        """Feed an answer to the flow; the next commit writes it. `by_route`: the route, or who it came from."""
        step = self.pending.pop(path)
        result = step.with_comment(result)
        cost = self.executor.reported_cost(path, step.step, result.answer, step.sent)
        self.finished.append(step.with_result(path, result, by_route, cost))
        self._feed(path, step, result.answer)

    def _feed(self, path: str, step: PendingStep, answer: Answer) -> None:
        """Give the flow the answer of a step, and remember what it tells for later steps."""
        self.executor.record_answer(path, step.step, answer, step.sent)
        if isinstance(step.step, CallTool) and task_of(path):
            self.executor.tool_caller.record_change(path, step.step.call, answer)
        self.runner.answer(path, answer)

    def waits_only_for(self, paths: Set[str]) -> bool:
        """Whether the run is at rest, these open steps are among those that it waits for, and nothing else of it has
        to be seen to before what follows from their answers."""
        return (
            not self.finished
            and paths <= self.pending.keys()
            and all(
                step.is_open and not (step.outcome_unknown or step.awaits_approval or self.needs_attempt(step))
                for step in self.pending.values()
            )
        )

    def take_answers(self, answers: Iterable[SubmittedAnswer], by_route: str, nonce: str | None) -> ParkedRun:
        """Feed answers that somebody brings for open steps of this parked run to the flow; the next commit writes them,
        and takes the run. `nonce`: of the ask that they answer."""
        parked = ParkedRun(self.run, {}, {}, nonce)
        for each in answers:
            step = self.pending[each.path]
            parked.requests[step.id] = each.request
            if each.dialect not in (None, step.sent.dialect):
                parked.sent[step.id] = replace(step.sent, dialect=each.dialect)
            self.finish_step(each.path, each.as_result(step.kind), by_route)
        return parked

    def what_is_awaited(self) -> AwaitedSteps:
        """Return which of the pending steps others may have answered or decided."""
        return AwaitedSteps(
            self.run.n,
            {step.id: path for path, step in self.pending.items() if step.is_open},
            self._awaits_approval,
        )

    @property
    def _awaits_approval(self) -> bool:
        return any(step.awaits_approval and step.is_open for step in self.pending.values())

    def apply_arrivals(self, awaited: AwaitedSteps, arrived: Arrivals) -> None:
        """Go on with what others have written for open steps."""
        self._apply_withdrawals(arrived.withdrawals)
        for step_id, body in arrived.answers:
            path, answer = awaited.open_steps[step_id], decode_answer(body)
            self._feed(path, self.pending.pop(path), answer)
        self._apply_verdicts(arrived.approvals)

    def calls_to_probe(self) -> list[tuple[str, CallTool, PendingStep]]:
        """Calls of unknown outcome whose tool can find out what became of them, and end them: set their `probe_result`
        before the next commit."""
        return [
            (path, step.step, step)
            for path, step in self.pending.items()
            if step.outcome_unknown
            and step.probe_result is None
            and step.step.kind == "tool_call"
            and self.executor.tool_caller.can_probe(step.step)
        ]

    def apply_settlements(self, settlements: Iterable[tuple[int, SettlementRequest, str]]) -> None:
        """Go on with what people said of calls of unknown outcome: (number of the control request, what it says, what
        it came through)."""
        for request_id, settlement, via in settlements:
            step = self.pending.get(settlement.path)
            if step is None or not step.is_open:
                continue
            if request_id not in self.handled_requests:  # it is, where a commit failed after which all was rebuilt
                self.handled_requests.append(request_id)
            if settlement.settlement == "reattempt":
                step.may_begin_again = True
            else:
                self.finish_step(
                    settlement.path, StepResult(settlement_result(settlement, via), counts_of("call")), "person"
                )

    def _apply_withdrawals(self, withdrawals: Iterable[WithdrawnRequest]) -> None:
        """Charge the requests that a client's model left unanswered, before their steps are asked again."""
        for request in withdrawals:
            step = self.pending.get(request.path)
            if step is not None and step.is_open and request.request not in step.withdrawn_requests:
                step.add_withdrawal(request)

    def calls_to_authorize(self) -> list[tuple[str, CallTool]]:
        """Return the calls that are not authorized yet: put the results into `authorizations` before the commit."""
        return [
            (path, step)
            for path, step in self.runner.waiting.items()
            if path not in self.authorizations
            and step.kind == "tool_call"
            and (
                self.pending[path].approval_expired
                if path in self.pending
                else self.executor.tool_access.needs_preview(path, step) and self.runner.take(path)
            )
        ]

    def _restore_approvals(self, newest: Mapping[str, ApprovalRow]) -> None:
        """Set which of the pending steps wait for a person's approval, and which have it."""
        for path, row in newest.items():
            if (step := self.pending.get(path)) is not None:
                step.awaits_approval = True
                step.apply_approval(row)

    def _apply_verdicts(self, newest: Mapping[str, ApprovalRow]) -> None:
        """Apply what people decided: let an approved call of this server's tools begin, answer a denied one, and ask
        anew where an approval has expired and the run was resumed since."""
        if not self._awaits_approval:
            return
        for path, row in newest.items():
            step = self.pending.get(path)
            if step is None or not step.is_open or row.verdict is None:
                continue
            if row.verdict == "expired":
                step.has_lapsed, step.approval_expired = not row.is_renewable, row.is_renewable
                continue
            step.awaits_approval = False
            if row.verdict == "approve":
                step.apply_approval(row)
            else:
                self.finish_step(path, StepResult(denial_result(row), counts_of("call")), "person")

    def record_failure(self, path: str, step: PendingStep, result: StepResult, *, backs_off: bool = False) -> None:
        """Record a failed attempt that is repeated: by the next commit or, if its step backs off, at `retry_at` or when
        the run that was paused goes on. It is known after a rebuild too."""
        step.record_failure(result, backs_off=backs_off)
        self.failed[path] = step

    @property
    def has_more_to_do(self) -> bool:
        """Whether the next commit may have to do with more than answers, the steps that wait in the flow, and those
        that are under way."""
        return (
            bool(self.handled_requests or self.authorizations)
            or any(not step.is_under_way for step in self.pending.values())
            or (bool(self.runner.branches) and self._has_branches_to_open)
        )

    @property
    def _has_branches_to_open(self) -> bool:
        unopened = self.runner.branches.keys() - self.branches.keys()
        if unopened and self.kept_waiting:
            unopened -= {enclosing for path in self.kept_waiting for enclosing in enclosing_paths(path)}
        return bool(unopened)

    @property
    def has_new_room(self) -> bool:
        """Whether something may have left more for branches since the newest general commit: a branch has ended, or
        the cost of what others begin with is known."""
        return self.room_seen != self._room

    @property
    def _room(self) -> tuple[int, int]:
        return self.runner.branches_ended, self.executor.reports_learned

    def charged_accounts(self, path: str) -> Sequence[str]:
        """Return the accounts of this run that the step at this path is charged to, the nearest first: the paths of
        the branches that it stands in, and "" for the run's own."""
        if not self.branches:
            return _RUN_ALONE
        return [*(branch for branch in enclosing_paths(path) if branch in self.branches), ""]

    def may_be_kept_waiting(self, path: str) -> bool:
        """Whether a step waits for its siblings' end already, or a branch begins with it while siblings of it run."""
        if path in self.kept_waiting:
            return True
        begun = self.runner.branches
        unopened = [each for each in enclosing_paths(path) if each in begun and each not in self.branches]
        return bool(unopened) and any(each in self.branches for each in begun[unopened[-1]]().siblings)

    def count_by_branch(self, new: Iterable[tuple[str, Step]]) -> Counter[str]:
        """Count the steps of each branch: the time that is left of its account is divided among those that are
        planned together."""
        return Counter(self.runner.branch_of(path) for path, _ in new)

    def return_lines(self, lines: Iterable[int | None]) -> None:
        """Return a script's lines that were taken in this order, for steps that were not begun."""
        for line in reversed(list(lines)):
            self.executor.return_line(line)

    def apply_usual(self, commit: UsualCommit, step_ids: Iterable[int]) -> list[tuple[str, PendingStep]]:
        """Apply a usual commit that was written, and return the steps that it begins or hands out. `step_ids`: of their
        rows."""
        del self.finished[: len(commit.answered)]  # others may have come in the meantime
        for path, change in commit.accounts.items():
            self.accounts[path] = change.changed
        steps = []
        for step_id, new in zip(step_ids, commit.begun, strict=True):
            waiting, is_open = self.runner.waiting[new.path], new.request.counts_only
            reservation = None if is_open else new.reservation
            step = self.pending[new.path] = PendingStep(
                step_id, waiting, is_open, new.held, new.sent, reservation, new.shared
            )
            steps.append((new.path, step))
        return steps

    def resume_pauses(self, requests: Iterable[int]) -> None:
        """Apply these resume requests to the flow's pauses."""
        self.handled_requests += [request for request in requests if request not in self.handled_requests]
        for path in [path for path, step in self.pending.items() if step.kind == "pause"]:
            self.finish_step(path, StepResult(Resumed(), NOTHING), "person")

    @property
    def startable_steps(self) -> list[tuple[str, PendingStep]]:
        """Pending steps with an unused reservation: they may begin now."""
        return [(path, step) for path, step in self.pending.items() if step.reservation is not None]

    def apply_result(self, commit: RunCommit, result: CommitResult) -> None:
        """Apply a written commit: steps with a reservation may begin; refusals, and answers known at once, go to the
        flow."""
        del self.finished[: len(commit.answers)]  # others may have come in the meantime
        del self.handled_requests[: len(commit.handled_requests)]
        self.branches = result.branches
        self.accounts.update(result.accounts)
        self.kept_waiting.clear()
        self.room_seen = self._room
        for new in commit.new_steps:
            step = PendingStep(0, self.runner.waiting[new.path], new.request.counts_only, NOTHING, new.sent)
            step.awaits_approval = new.approval_request is not None
            step.approved_base = new.reused_approval.request.base_hashes if new.reused_approval is not None else None
            self.pending[new.path] = step
        paths = [attempt.path for attempt in commit.attempts] + [new.path for new in commit.new_steps]
        lines = [self._line_taken(attempt) for attempt in commit.attempts] + [new.sent.line for new in commit.new_steps]
        # Backwards: a script's lines are given back in the reverse of the order in which they were taken.
        for path, line, started in reversed(list(zip(paths, lines, result.started, strict=True))):
            step = self.pending[path]
            if started.answer is not None:
                self.executor.return_line(line if started.reservation is None else None)
                del self.pending[path]
                self._feed(path, step, started.answer)
            elif started.reservation is not None:
                step.apply_reservation(started, started.reservation)
                self.failed.pop(path, None)
            else:  # an account that runs share is used up, or its branch waits: the step gets its row later
                self.executor.return_line(line)
                del self.pending[path]
                if started.refusal is None:
                    self.kept_waiting.add(path)

    def _line_taken(self, attempt: NewAttempt) -> int | None:
        """Return the script's line that an attempt takes; None where its step has it from an attempt before."""
        before = self.pending[attempt.path].sent.line
        return None if attempt.sent.line == before else attempt.sent.line

    def needs_attempt(self, step: PendingStep) -> bool:
        """Whether to begin a step again: its attempt ended without an answer; it is an open completion that the new
        route performs, or that a shared limit had no room for; or it is an approved call."""
        if step.ended_attempt is not None or not step.is_open:
            return step.ended_attempt is not None
        if step.step.kind == "completion":
            return self.run.route in self.executor.models or not step.held.model_calls
        if step.needs_settlement:
            return step.may_begin_again
        return step.may_begin_again or (step.approved_base is not None and step.sent.route == SERVER_ROUTE)


@contextmanager
def _without_garbage_collector() -> Iterator[None]:
    """Turn the garbage collector off: what a rebuild makes stays, and scanning it again and again takes a quarter of
    its time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
