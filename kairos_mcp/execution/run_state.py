"""The state of a run in memory: its replayed flow, its pending steps, and answers that are not committed yet.

All of it can be thrown away and rebuilt from the rows, which are read here too. Nothing here performs a step, commits
or waits.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import field, replace
from typing import NamedTuple

from kairos_mcp.budget.reservation import Account, Reservation
from kairos_mcp.core.decision_results import denial_result, settlement_result, withdrawn_result
from kairos_mcp.core.limit_question import refusal_of
from kairos_mcp.core.limits import NOTHING, Limits, counts_of
from kairos_mcp.core.messages import ToolResult
from kairos_mcp.core.outcomes import Outcome
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.replay import Runner
from kairos_mcp.core.routes import SERVER_ROUTE
from kairos_mcp.core.steps import Answer, CallTool, Flow, Pause, Refused, Resumed, enclosing_paths, task_of, turn_of
from kairos_mcp.execution.executor import StepExecutor
from kairos_mcp.execution.pending_step import PendingStep, pending_from_row
from kairos_mcp.execution.tool_calls import Authorization
from kairos_mcp.store import approvals, client_completions, queries
from kairos_mcp.store.accounts import BranchAccountIds, read_branch_accounts
from kairos_mcp.store.approvals import ApprovalRow
from kairos_mcp.store.client_completions import RequestRow
from kairos_mcp.store.commit import (
    AnsweredStep,
    CommitPlan,
    Committed,
    DecidedStep,
    Facts,
    NewAttempt,
    NewStep,
    StepResult,
)
from kairos_mcp.store.commit_rows import branches_in_view
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


class Arrivals(NamedTuple):
    """What others have written for a run's open steps: withdrawn requests and encoded answers, each with its step's
    path, and the newest approvals by path."""

    withdrawals: Sequence[tuple[str, RequestRow]]
    answers: Sequence[tuple[str, str]]
    approvals: Mapping[str, ApprovalRow]


@dataclass(slots=True)
class RunState:
    """One run in memory. `make_flow` starts its flow anew; `agent` is whose steps these are.

    `pending`: steps with a row and without an answer, by path; `startable`: those with a reservation that
    is not used yet: they may begin now. `finished`: answers to be committed next.
    `authorizations`: what is known of permission for calls that have no row yet, or must be asked about anew.
    `handled_requests`: control requests that the next commit acts on. `branches`: the run's branch accounts by path.
    `accounts`: as the last commit that changed each left it, the run's own under "", those of branches by path; none
    where they are to be read again. `failed`: steps whose newest attempt failed and is to be repeated, by path.
    `kept_waiting`: steps that begin once siblings of their branches have left more; `room_seen`: `_room` when they
    were tried last.
    `has_notes_of_tools`: tools may have stored something of this run. `fits_rows`: this is what the run's rows say;
    after an error it may not be, and is rebuilt before the next step.
    """

    run: RunRow
    executor: StepExecutor
    make_flow: Callable[[], Flow[Outcome]]
    agent: str | None = None
    runner: Runner = field(init=False)
    pending: dict[str, PendingStep] = field(default_factory=dict)
    startable: list[tuple[str, PendingStep]] = field(default_factory=list)
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
        self.pending, self.startable, self.branches, self.accounts = {}, [], stored.branches, {}
        self.kept_waiting.clear()
        self.room_seen = None
        self.executor.reset()
        self.executor.tool_access.set_agent_lookup(self.runner.agent_of)
        calls_of_tasks: list[tuple[StepRow, CallTool]] = []
        with _without_garbage_collector():
            for row in stored.record:
                answer, sent = row.answer, row.sent
                step = self.runner.replay(row.path, row.digest, answer)
                self.executor.restore_counts(step, sent, row.at)
                if isinstance(step, CallTool) and task_of(row.path):
                    calls_of_tasks.append((row, step))
                if answer is not None:
                    self.executor.record_answer(row.path, step, answer, sent)
                else:
                    self.pending[row.path] = pending_from_row(row, step)
        if calls_of_tasks:
            self.executor.tool_caller.restore_changes(calls_of_tasks)
        for path, approval in stored.approvals.items():
            if (waiting := self.pending.get(path)) is not None:
                waiting.awaits_approval = True
                waiting.apply_approval(approval)
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
        """Take over the run's row as it is now. Unchanged values stay the same objects, which others share."""
        self.run = RunRow._make([known if known == now else now for known, now in zip(self.run, run, strict=True)])

    def begin(self, limits: Limits) -> None:
        """Start the flow of a new run: only its account is stored yet, with these limits."""
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
        has_failed = isinstance(answer, Refused) or (isinstance(answer, ToolResult) and answer.is_error)
        if has_failed and step.was_decided:
            # A person was asked about these calls together with it, and what was shown of them rests on it.
            for later in self._steps_behind(path):
                if (asked := self.pending.get(later)) is not None and asked.is_open:
                    asked.is_withdrawn = True
                    self.finish_step(later, StepResult(withdrawn_result(path), counts_of("call")), SERVER_ROUTE)

    def _steps_behind(self, path: str) -> list[str]:
        turn, number = turn_of(path)
        behind = [each for each in self.runner.waiting if number and turn_of(each)[0] == turn]
        return [each for each in behind if turn_of(each)[1] > number]

    def waits_only_for(self, paths: Set[str]) -> bool:
        """Whether the run is at rest, waits for these open steps, and has nothing else to do before what follows from
        their answers."""
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

    def arrivals_reader(self) -> Callable[[Session], Arrivals]:
        """Return a function that reads what others have written for the steps that are open now."""
        n, steps = self.run.n, {step.id: path for path, step in self.pending.items() if step.is_open}
        awaits_approval = self._awaits_approval

        def read(session: Session) -> Arrivals:
            withdrawals, answers, newest = read_together(
                session,
                lambda session: client_completions.list_uncharged(session, n),
                lambda session: queries.read_answers(session, list(steps)) if steps else [],
                lambda session: approvals.newest_approvals(session, n) if awaits_approval else {},
            )
            return Arrivals(withdrawals, [(steps[step_id], body) for step_id, body in answers], newest)

        return read

    @property
    def _awaits_approval(self) -> bool:
        return any(step.awaits_approval and step.is_open for step in self.pending.values())

    def apply_arrivals(self, arrived: Arrivals) -> None:
        """Go on with what others have written for open steps."""
        for path, request in arrived.withdrawals:
            step = self.pending.get(path)
            if step is not None and step.is_open and request.id not in step.withdrawn_requests:
                step.add_withdrawal(request)
        for path, body in arrived.answers:
            answer = decode_answer(body)
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
                    settlement.path, StepResult(settlement_result(via, settlement.note), counts_of("call")), "person"
                )

    def calls_to_authorize(self) -> list[tuple[str, CallTool]]:
        """Return the calls that files have to be read for, and that may be begun: put the results into `authorizations`
        before the commit."""
        return [
            (path, step)
            for path, step in self.runner.waiting.items()
            if path not in self.authorizations
            and step.kind == "tool_call"
            and (
                self.pending[path].approval_expired
                if path in self.pending
                else self._authorize_at_once(path, step) is None and self.runner.try_begin(path)
            )
        ]

    def calls_behind(self, path: str) -> list[tuple[str, CallTool]]:
        """Return the later calls of the same turn that a person may be asked about together with the one at this path.
        Not of the caller's own tools: once approved, a call of these waits outside."""
        find = self.executor.tool_access.find_offered
        return [
            (later, step)
            for later in self._steps_behind(path)
            if isinstance(step := self.runner.waiting[later], CallTool)
            and (later not in self.pending or self.pending[later].approval_expired)
            and not ((spec := find(later, step.call.name)) is None or spec.is_caller_tool)
            and self._authorize_at_once(later, step) is None
        ]

    def take_authorization(self, path: str, call: CallTool) -> Authorization | None:
        """Return what is known of permission for a call that is planned now; None: files have to be read for it."""
        return self.authorizations.pop(path, None) or self._authorize_at_once(path, call)

    def _authorize_at_once(self, path: str, call: CallTool) -> Authorization | None:
        access = self.executor.tool_access
        return access.authorize_at_once(path, call, access.find_offered(path, call.call.name))

    def _apply_verdicts(self, newest: Mapping[str, ApprovalRow]) -> None:
        """Apply what people decided: let an approved call of this server's tools begin, answer a denied one, and ask
        anew where an approval has expired and the run was resumed since."""
        if not self._awaits_approval:
            return
        # Backwards, so that a call which was denied says so, also where one before it was denied as well.
        for path, row in reversed(list(newest.items())):
            step = self.pending.get(path)
            if step is None or not step.is_open or row.verdict is None:
                continue
            if row.verdict != "expired" and isinstance(step.step, Pause):
                answer = Resumed() if row.verdict == "approve" else refusal_of(step.step)
                self.finish_step(path, StepResult(answer, NOTHING), "person")
                continue
            if row.verdict == "expired":
                step.has_lapsed, step.approval_expired = not row.is_renewable, row.is_renewable
                continue
            step.awaits_approval, step.was_decided = False, True
            if row.verdict == "approve":
                step.apply_approval(row)
            else:
                self.finish_step(path, StepResult(denial_result(row.tool, row.feedback), counts_of("call")), "person")

    def record_failure(self, path: str, step: PendingStep, result: StepResult, *, backs_off: bool = False) -> None:
        """Record a failed attempt that is repeated: by the next commit or, if its step backs off, at `retry_at` or when
        the run that was paused goes on. It is known after a rebuild too."""
        step.record_failure(result, backs_off=backs_off)
        self.failed[path] = step

    @property
    def has_idle_steps(self) -> bool:
        """Whether any pending step is not under way, so that the next commit may be about it."""
        return any(not step.is_under_way for step in self.pending.values())

    @property
    def has_more_to_do(self) -> bool:
        """Whether the next commit may concern more than answers, steps that wait in the flow, and steps under way."""
        return (
            bool(self.handled_requests or self.authorizations)
            or (bool(self.pending) and self.has_idle_steps)
            or (bool(self.runner.branches) and self._has_branches_to_open)
        )

    @property
    def _has_branches_to_open(self) -> bool:
        unopened = self.runner.branches.keys() - self.branches.keys()
        if unopened and self.kept_waiting:
            unopened -= {enclosing for path in self.kept_waiting for enclosing in enclosing_paths(path)}
        return bool(unopened)

    def known_facts(self, plan: CommitPlan) -> Facts | None:
        """Return the facts for a decision on this plan if memory has all of them; None: they have to be read."""
        accounts = self.accounts
        if not accounts or plan.attempts:
            return None
        if plan.open_step_ids and plan.may_release:
            return None  # an answer of one of these may have come
        for new in plan.new_steps:
            if new.rounds_request is not None or new.request.price is None:
                return None
        if len(accounts) <= len(plan.branches) and not accounts.keys() >= set(branches_in_view(plan)):
            return None
        return Facts(accounts)

    @property
    def has_new_room(self) -> bool:
        """Whether something may have left more for the steps that are kept waiting since they were tried last: a branch
        has ended, or the cost of what others begin with is known."""
        return self.room_seen != self._room

    @property
    def _room(self) -> tuple[int, int]:
        return self.runner.branches_ended, self.executor.reports_learned

    def may_be_kept_waiting(self, path: str) -> bool:
        """Whether a step waits for its siblings' end already, or a branch begins with it while siblings of it run."""
        if path in self.kept_waiting:
            return True
        begun = self.runner.branches
        unopened = [each for each in enclosing_paths(path) if each in begun and each not in self.branches]
        return bool(unopened) and any(each in self.branches for each in begun[unopened[-1]]().siblings)

    def return_lines(self, steps: Iterable[NewStep]) -> None:
        """Return the script's lines that were taken for these steps, in this order, and that are not begun."""
        for new in reversed(list(steps)):
            self.executor.return_line(new.sent.line)

    def withdraw(self, plan: CommitPlan) -> None:
        """Take back a plan that was decided at once and not written, since rows differ from what is known here."""
        self.return_lines(plan.new_steps)
        self.accounts = {}

    def resume_pauses(self, requests: Iterable[int]) -> None:
        """Apply these resume requests to the flow's pauses."""
        self.handled_requests += [request for request in requests if request not in self.handled_requests]
        for path in [path for path, step in self.pending.items() if step.kind == "pause"]:
            self.finish_step(path, StepResult(Resumed(), NOTHING), "person")

    def apply(self, committed: Committed) -> None:
        """Apply a written commit: steps with a reservation may begin; refusals, and answers known at once, go to the
        flow."""
        plan, decided, step_ids, opened, _, _ = committed
        del self.finished[: len(plan.answers)]  # others may have come in the meantime
        if plan.handled_requests:
            del self.handled_requests[: len(plan.handled_requests)]
        self.accounts.update(decided.ledger.accounts)
        if opened:
            self.branches = {**self.branches, **opened}
            self.accounts.update({each: self.accounts[each]._replace(id=n) for each, n in opened.items()})
        if decided.paused is not None:
            self.run = self.run._replace(paused=decided.paused.reason, resume_at=decided.paused.resume_at)
        if self.kept_waiting:
            self.kept_waiting.difference_update([new.path for new in plan.new_steps])
        all_pending = not plan.attempts
        for new, decision, step_id in zip(plan.new_steps, decided.steps, step_ids, strict=True):
            if decision.reservation is None or decision.answer is not None:
                all_pending = False
            else:
                self._add_pending(new, decision, step_id, decision.reservation)
        if not all_pending:  # backwards: a script's lines are given back in the reverse of the order of their taking
            for new, decision in reversed(list(zip(plan.new_steps, decided.steps, strict=True))):
                self._apply_unbegun(new, decision)
            for attempt, decision in reversed(list(zip(plan.attempts, decided.attempts, strict=True))):
                self._apply_attempt(attempt, decision)

    def _add_pending(self, new: NewStep, decision: DecidedStep, step_id: int, reservation: Reservation) -> None:
        """Add a step that may begin, or that is open."""
        path, asked, is_open = new.path, self.runner.waiting[new.path], decision.is_open
        unused = None if is_open else reservation
        step = PendingStep(step_id, asked, is_open, reservation.held, decision.sent, unused, decision.shared_accounts)
        self.pending[path] = step
        if not is_open:
            self.startable.append((path, step))
        if new.approval_request is not None:
            step.awaits_approval = True
        elif new.reused_approval is not None:
            step.approved_base = new.reused_approval.request.base_hashes

    def _apply_unbegun(self, new: NewStep, decision: DecidedStep) -> None:
        """Apply what became of a step that is neither begun nor open."""
        if decision.answer is not None:
            self.executor.return_line(new.sent.line if decision.reservation is None else None)
            step = PendingStep(0, self.runner.waiting[new.path], False, NOTHING, new.sent)
            self._feed(new.path, step, decision.answer)
        elif decision.reservation is None:  # an account that runs share is used up, or its branch waits
            self.executor.return_line(new.sent.line)
            if decision.refusal is None:
                self.kept_waiting.add(new.path)
                self.room_seen = self._room

    def _apply_attempt(self, attempt: NewAttempt, decision: DecidedStep) -> None:
        """Apply what became of a further attempt."""
        step = self.pending[attempt.path]
        if decision.answer is not None:
            takes_line = decision.reservation is None and attempt.sent.line != step.sent.line
            self.executor.return_line(attempt.sent.line if takes_line else None)
            del self.pending[attempt.path]
            self._feed(attempt.path, step, decision.answer)
        elif decision.reservation is not None:
            step.apply_reservation(decision, decision.reservation)
            if step.reservation is not None:
                self.startable.append((attempt.path, step))
            self.failed.pop(attempt.path, None)

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
