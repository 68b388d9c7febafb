"""The state of a run in memory: its replayed flow, its pending steps, and answers that are not committed yet.

All of it can be thrown away and rebuilt from the rows. Nothing here performs a step, commits or waits.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from kairos_mcp.budget.units import NOTHING, Account, counts_of
from kairos_mcp.core.messages import ToolResult
from kairos_mcp.core.outcome import Outcome
from kairos_mcp.core.replay import Runner
from kairos_mcp.core.routes import CLIENT_ROUTES, SERVER_ROUTE
from kairos_mcp.core.step_path import task_of
from kairos_mcp.core.steps import Answer, CallTool, Failure, Flow, Resumed, Step
from kairos_mcp.execution.authorization import Allowed, Authorization, denial_result, settlement_result
from kairos_mcp.execution.executor import StepExecutor
from kairos_mcp.execution.pending_step import EndedAttempt, PendingStep, outage_pause, restore_step
from kairos_mcp.execution.stored_rows import Arrivals, AwaitedSteps, StoredRun
from kairos_mcp.store.accounts import (
    NO_SHARED_ACCOUNTS,
    BranchAccountIds,
    NewBranch,
    SharedAccountIds,
)
from kairos_mcp.store.approvals import LAPSED, ApprovalRequest, ApprovalRow, ReusedApproval
from kairos_mcp.store.client_requests import WithdrawnRequest
from kairos_mcp.store.codec import decode_answer, encode
from kairos_mcp.store.commit import AnsweredStep, CommitResult, NewAttempt, NewStep, Paused, RunCommit, StepResult
from kairos_mcp.store.inbox import SubmittedAnswer
from kairos_mcp.store.more_rounds import RoundsRequest
from kairos_mcp.store.queries import WAITED, RunRow, StepRow
from kairos_mcp.store.settlements import SettlementRequest
from kairos_mcp.store.usual_commit import UsualCommit
from kairos_mcp.tools.tool import ProbeResult

REPEATABLE_EFFECTS = ("read", "idempotent")  # calls of tools with these effects may be repeated after a crash


class ChargedAccounts(NamedTuple):
    """The accounts that model calls are charged to besides the run's own.

    `pause_when_used_up`: how the run is paused where these have nothing left. `is_barred`: it is paused so before any
    model call.
    """

    shared: SharedAccountIds = NO_SHARED_ACCOUNTS
    pause_when_used_up: Paused | None = None
    is_barred: bool = False


@dataclass(slots=True)
class RunState:
    """One run in memory. `make_flow` starts its flow anew; `agent` is whose steps these are.

    `pending`: steps with a row and without an answer, by path. `finished`: answers to be committed next.
    `authorizations`: what is known of permission for calls that have no row yet, or must be asked about anew.
    `handled_requests`: control requests that the next commit acts on. `branches`: the run's branch accounts by path.
    `account`: the run's own account as the last commit left it; None where it is to be read again.
    `has_notes_of_tools`: tools may have stored something of this run.
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
    account: Account | None = None
    has_notes_of_tools: bool = True

    def rebuild(self, stored: StoredRun, running: Iterable[str] = ()) -> None:
        """Start the flow anew and feed it the record, then the answers in `finished`.

        The outcome of steps that were begun, and are not in `running`, is unknown. Raises ReplayDiffers, StoreCorrupt.
        """
        still_running = {path: self.pending[path] for path in running}
        self.runner = Runner(self.make_flow(), self.agent)
        self.pending, self.branches, self.account = {}, stored.branches, None
        self.executor.reset()
        self.executor.tool_access.agent_of = self.runner.agent_of
        calls_of_tasks: list[tuple[StepRow, CallTool]] = []
        with _without_garbage_collector():
            for row in stored.record:
                answer, sent = row.answer, row.sent
                step = self.runner.replay(row.path, row.digest, answer)
                self.executor.restore_step(step, sent, row.at)
                if isinstance(step, CallTool) and task_of(row.path):
                    calls_of_tasks.append((row, step))
                if answer is not None:
                    self.executor.record_answer(row.path, step, answer, sent.route)
                else:
                    self.pending[row.path] = still_running.get(row.path) or restore_step(row, step)
        self.executor.sibling_changes.rebuild(calls_of_tasks)
        self._restore_approvals(stored.approvals)
        uncommitted, self.finished = self.finished, []
        for finished in uncommitted:
            if finished.path in self.pending:  # else the commit that seemed to fail had been written
                self.finish_step(finished.path, finished.result, finished.by_route)
        self._apply_verdicts(stored.approvals)

    def finish_step(self, path: str, result: StepResult, by_route: str) -> None:
        """Feed an answer to the flow; the next commit writes it. `by_route`: the route, or who it came from."""
        step = self.pending.pop(path)
        result = step.with_comment(result)
        self.finished.append(step.with_result(path, result, by_route))
        self._feed(path, step.step, result.answer)

    def _feed(self, path: str, step: Step, answer: Answer) -> None:
        """Give the flow the answer of a step."""
        if isinstance(step, CallTool):
            self.executor.sibling_changes.end(path, step.call, answer)
        self.runner.answer(path, answer)

    def waits_only_for(self, paths: Set[str]) -> bool:
        """Whether the run is at rest, these open steps are among those that it waits for, and nothing else of it has
        to be seen to before what follows from their answers."""
        return (
            not self.finished
            and paths <= self.pending.keys()
            and all(
                step.is_open and not (step.outcome_unknown or step.awaits_approval or self._needs_attempt(step))
                for step in self.pending.values()
            )
        )

    def take_answers(self, answers: Iterable[SubmittedAnswer], by_route: str) -> dict[str, SubmittedAnswer]:
        """Feed answers that somebody brings for open steps to the flow; the next commit writes them.

        Returns them by path, each with its dialect only if the step's row does not say the same.
        """
        taken = {}
        for each in answers:
            step = self.pending[each.path]
            taken[each.path] = replace(each, dialect=None) if each.dialect == step.sent.dialect else each
            self.executor.record_answer(each.path, step.step, each.answer, step.sent.route)
            self.finish_step(each.path, each.as_result(step.kind), by_route)
        return taken

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
            step = self.pending.pop(path)
            self.executor.record_answer(path, step.step, answer, step.sent.route)
            self.runner.answer(path, answer)
        self._apply_verdicts(arrived.approvals)

    def calls_to_probe(self) -> list[tuple[str, CallTool, PendingStep]]:
        """Calls of unknown outcome whose tool can tell whether they were carried out: set their `probe_result` before
        the next commit."""
        return [
            (path, step.step, step)
            for path, step in self.pending.items()
            if step.outcome_unknown
            and step.probe_result is None
            and step.step.kind == "tool_call"
            and self.executor.can_probe(step.step)
        ]

    def apply_settlements(self, settlements: Iterable[tuple[int, SettlementRequest, str]]) -> None:
        """Go on with what people said of calls of unknown outcome: (number of the control request, what it says, what
        it came through)."""
        for request_id, settlement, via in settlements:
            step = self.pending.get(settlement.path)
            if step is None or not step.is_open or request_id in self.handled_requests:
                continue
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
        """Apply what people decided: start an approved call of this server's tools, answer a denied one, and ask anew
        where an approval has expired and the run was resumed since."""
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

    def record_failure(self, path: str, result: StepResult, *, backs_off: bool = False) -> None:
        """Record a failed attempt that is repeated: by the next commit or, if its step backs off, at `retry_at` or when
        the run that was paused goes on."""
        step = self.pending[path]
        step.is_backing_off = backs_off
        match result.answer:
            case Failure(code=code):
                # The round itself goes on, so a failed attempt does not count as one.
                step.ended_attempt = EndedAttempt(code, result.spent._replace(rounds=0))
                step.tries += 1
            case _:
                raise AssertionError("only a failed completion is begun again")

    @property
    def has_more_to_do(self) -> bool:
        """Whether the next commit may have to do with more than an answer and the steps that wait in the flow."""
        return bool(
            self.pending or self.handled_requests or self.authorizations or self.branches or self.runner.branches
        )

    def apply_usual(self, commit: UsualCommit, mark: int) -> PendingStep | None:
        """Apply a usual commit that was written, and return the step, whose row is `mark`, that it begins."""
        self.finished.clear()
        self.account, begun = commit.account, commit.begun
        if begun is None:
            return None
        path, grant = begun.path, begun.grant
        step = self.pending[path] = PendingStep(
            mark, self.runner.waiting[path], False, grant.held, begun.sent, grant, shared=begun.shared
        )
        return step

    def resume_pauses(self) -> None:
        for path in [path for path, step in self.pending.items() if step.kind == "pause"]:
            self.finish_step(path, StepResult(Resumed(), NOTHING), "person")

    @property
    def startable_steps(self) -> list[tuple[str, PendingStep]]:
        """Pending steps with an unused grant: they may begin now."""
        return [(path, step) for path, step in self.pending.items() if step.grant is not None]

    def next_commit(
        self, owner: int, fence: int, at: int, accounts: ChargedAccounts, *, no_new_steps: bool, steps_running: bool
    ) -> RunCommit:
        """Return what there is to commit now. `at`: milliseconds since 1970. `steps_running`: some still run."""
        pause = None if no_new_steps else self._pause_at_rest(at, steps_running=steps_running)
        approvals_renewed = [] if no_new_steps else self._renew_approvals()
        attempts = (
            self._charge_ended_attempts(at) if no_new_steps else self._plan_attempts(at, is_paused=pause is not None)
        )
        new_steps, some_left = ([], False) if no_new_steps else self._plan_new_steps(at)
        run, outcome, notes = self.run, None, ()
        if self.runner.finished:
            outcome, notes = encode(self.runner.outcome), self.runner.outcome.notes
        return RunCommit(
            run.n,
            run.id,
            owner,
            fence,
            run.account,
            at,
            list(self.finished),
            new_steps,
            attempts,
            notes,
            outcome=outcome,
            # A step that an earlier commit granted may not have begun yet: that of a branch beside this one.
            may_release=not (steps_running or no_new_steps or some_left or self.startable_steps),
            open_marks=[step.id for step in self.pending.values() if step.is_open],
            branches=self.branches,
            new_branches=self._new_branches() if new_steps and self.runner.branches else (),
            shared=accounts.shared,
            handled_requests=tuple(self.handled_requests),
            pause=pause,
            pause_when_used_up=accounts.pause_when_used_up if run.paused is None else None,
            is_barred=accounts.is_barred,
            renewed_approvals=approvals_renewed,
        )

    def apply_result(self, commit: RunCommit, result: CommitResult) -> None:
        """Apply a written commit: granted steps may start; refusals, and answers known at once, go to the flow."""
        del self.finished[: len(commit.answers)]  # others may have come in the meantime
        del self.handled_requests[: len(commit.handled_requests)]
        self.branches, self.account = result.branches, result.account
        for new in commit.new_steps:
            step = PendingStep(0, self.runner.waiting[new.path], new.request.external, NOTHING, new.sent)
            step.awaits_approval = new.approval_request is not None
            step.approved_base = new.reused_approval.request.base_hashes if new.reused_approval is not None else None
            self.pending[new.path] = step
        paths = [attempt.path for attempt in commit.attempts] + [new.path for new in commit.new_steps]
        # Backwards: a script's lines are given back in the reverse of the order in which they were taken.
        for path, started in zip(reversed(paths), reversed(result.started), strict=True):
            step = self.pending[path]
            if started.answer is not None:
                self.executor.return_line(step.sent.line if started.grant is None else None)
                del self.pending[path]
                self._feed(path, step.step, started.answer)
            elif started.grant is not None:
                step.apply_grant(started, started.grant)
            else:  # an account that runs share is used up: the step gets its row when the run goes on
                self.executor.return_line(step.sent.line)
                del self.pending[path]

    def _plan_new_steps(self, at: int) -> tuple[list[NewStep], bool]:
        """Plan the steps that have no row yet. True: some were left out, because they came to wait while others were
        authorized."""
        without_row = [
            (path, step)
            for path, step in self.runner.waiting.items()
            if path not in self.pending and self.runner.take(path)
        ]
        planned, shares, branch_of = [], dict[str, int](), self.runner.branch_of
        for path, _ in without_row:
            shares[branch_of(path)] = shares.get(branch_of(path), 0) + 1
        for path, step in without_row:
            authorization = self.authorizations.pop(path, None)
            if (
                authorization is None
                and step.kind == "tool_call"
                and self.executor.tool_access.needs_preview(path, step)
            ):
                continue
            # What is left of an account is divided among the steps of its branch that are planned together.
            new = self.executor.plan(path, step, self.run.route, at, shares[branch_of(path)], authorization)
            planned.append(new._replace(rounds_request=self._rounds_request(path, step)))
            shares[branch_of(path)] -= 1
        return planned, len(planned) < len(without_row)

    def _rounds_request(self, path: str, step: Step) -> RoundsRequest | None:
        """What a loop that asks for more rounds asks for; None for any other step."""
        branch, branches = self.runner.branch_of(path), self.runner.branches
        return self.executor.rounds_request(step, branches[branch]() if branch else None, branches)

    def _new_branches(self) -> list[NewBranch]:
        """The branches that have begun with limits of their own, and have no account yet."""
        begun = self.runner.branches.items()
        return [NewBranch(path, share()) for path, share in begun if path not in self.branches]

    def _renew_approvals(self) -> list[tuple[int, ApprovalRequest | ReusedApproval | None]]:
        """For calls whose approval expired: (id of the step, what a person is asked now).

        An earlier approval, or None: nothing has to be asked any more, and the call may be made. A call that may not be
        made any more is answered.
        """
        renewed: list[tuple[int, ApprovalRequest | ReusedApproval | None]] = []
        expired = [path for path, step in self.pending.items() if step.approval_expired and path in self.authorizations]
        for path in expired:
            step, authorization = self.pending[path], self.authorizations.pop(path)
            step.approval_expired = False
            match authorization:
                case ToolResult():
                    self.finish_step(path, StepResult(authorization, counts_of("call")), SERVER_ROUTE)
                case ApprovalRequest():
                    renewed.append((step.id, authorization))
                case Allowed(reused=reused):
                    step.awaits_approval, step.may_begin_again = False, step.sent.route == SERVER_ROUTE
                    step.approved_base = None if reused is None else reused.request.base_hashes
                    renewed.append((step.id, reused))
        return renewed

    def _pause_at_rest(self, at: int, *, steps_running: bool) -> Paused | None:
        """Return how the run is paused where all that it could do waits for the end of a provider's outage, or all that
        it waits for are approvals that expired.

        While another branch moves, a step that backs off is begun again at its `retry_at`; while another one moves or
        waits, a call whose approval expired is held alone.
        """
        steps = self.pending.values()
        if not any(step.is_backing_off or step.has_lapsed for step in steps):
            return None
        others_move = (
            steps_running
            or self.startable_steps
            or self.runner.waiting.keys() - self.pending.keys()
            or any(self._needs_attempt(step) and not step.is_held_back(at) for step in steps)
        )
        if others_move:
            return None
        return Paused(LAPSED, None) if all(step.has_lapsed for step in steps) else outage_pause(steps, at)

    def _plan_attempts(self, at: int, is_paused: bool) -> list[NewAttempt]:
        """Plan further attempts at steps whose attempt ended without an answer. `is_paused`: with this commit the run
        is, until a provider's outage may be over."""
        if not self.pending:
            return []
        self._finish_probed_calls(at)
        planned = []
        for path, step in self.pending.items():
            if self._needs_attempt(step) and (is_paused or not step.is_held_back(at)):
                step.is_backing_off = step.is_backing_off and is_paused
                planned.append(self._new_attempt(path, step, at))
        return planned

    def _charge_ended_attempts(self, at: int) -> list[NewAttempt]:
        """While nothing is begun: charge what was withdrawn, or failed during an outage; its step goes on waiting."""
        return [
            self._new_attempt(path, step, at, stays_open=True)
            for path, step in self.pending.items()
            if step.withdrawn_requests or step.is_backing_off
        ]

    def _needs_attempt(self, step: PendingStep) -> bool:
        """Whether to begin a step again: its attempt ended without an answer; it is an open completion that the new
        route performs, or that a shared limit had no room for; or it is an approved call."""
        if step.ended_attempt is not None or not step.is_open:
            return step.ended_attempt is not None
        if step.step.kind == "completion":
            return self.run.route in self.executor.models or not step.held.model_calls
        if step.needs_settlement:
            return step.may_begin_again
        return step.may_begin_again or (step.approved_base is not None and step.sent.route == SERVER_ROUTE)

    def _finish_probed_calls(self, at: int) -> None:
        """Answer the calls that a probe found to be done with what it found."""
        for path, step in [item for item in self.pending.items() if item[1].probe_result is not None]:
            match step.probe_result:
                case ProbeResult(state="done", result=found):
                    answer = found or ToolResult("It was done before the server ended.")
                    spent = step.held._replace(milliseconds=step.lost_ms(at))
                    self.finish_step(path, StepResult(answer, spent), SERVER_ROUTE)
                case _:
                    pass

    def _must_ask_person(self, step: PendingStep) -> bool:
        """Whether a person has to settle the call: its outcome is unknown and it may have changed something, so that it
        is never repeated by itself."""
        if not step.outcome_unknown or step.may_begin_again:
            return False
        match step.step:
            case CallTool(call=call):
                spec = self.executor.tool_access.find_spec(call.name)
                repeatable = spec is not None and spec.effect in REPEATABLE_EFFECTS
                return not (repeatable or (step.probe_result is not None and step.probe_result.state == "not_done"))
            case _:
                return False

    def _is_unavailable(self, route: str) -> bool:
        """Whether a server has to perform this route, and this one can't."""
        return route not in CLIENT_ROUTES and route not in self.executor.models

    def _new_attempt(self, path: str, step: PendingStep, at: int, *, stays_open: bool = False) -> NewAttempt:
        route = step.sent.route
        follows_reroute = step.is_open or not self._is_unavailable(self.run.route)
        if step.step.kind == "completion" and follows_reroute and not stays_open:
            route = self.run.route  # a reroute counts from the next attempt; a call has no other route
        counts = counts_of(step.kind)._replace(rounds=0, tool_calls=0)
        request = self.executor.reservation_request(path, step.step, route or "", counts)
        is_same_route = route == step.sent.route
        sent = step.sent if is_same_route else self.executor.completion_sent(path, route or "", step.sent.tail)
        if step.is_backing_off or stays_open or self._must_ask_person(step):
            request = request._replace(external=True)
        never_begun = WAITED if is_same_route else f"rerouted to {route}"  # it was open, or waited for an approval
        ended = step.end_of_attempt(at) or EndedAttempt(never_begun, NOTHING)
        return NewAttempt(
            path,
            step.id,
            request,
            sent,
            step.held,
            step.releasable,
            ended.charge,
            ended.reason,
            step.shared,
            step.withdrawn_requests,
            self._rounds_request(path, step.step),
        )


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
