"""Plan the next commit of a run: what is answered, begun, begun again, asked, paused or ended with it.

Most commits of most runs are *usual*, of a team's branches too: answers are new, and all steps that come next are begun
or handed out; or the run ends. They need none of what `plan_commit` looks for (open steps, approvals, further attempts,
new branches, control requests), so `plan_usual_commit` takes a short way with the same rows. It says whether the next
one is usual and what it then writes, so that a run may change from one way to the other at any commit; it takes the
lines of a script, which are returned where the commit is not written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kairos_mcp.budget.reservation import Account, format_status_line, reserve
from kairos_mcp.core.effects import REPEATABLE_EFFECTS
from kairos_mcp.core.limits import NOTHING, counts_of
from kairos_mcp.core.messages import ToolResult
from kairos_mcp.core.routes import OUTSIDE_ROUTES, SERVER_ROUTE
from kairos_mcp.core.steps import CallTool, Refused, RequestCompletion, Step, enclosing_paths
from kairos_mcp.core.tool import ProbeResult
from kairos_mcp.execution.accounting import DailyAccounts
from kairos_mcp.execution.executor import SENT_TO_SERVER
from kairos_mcp.execution.pending_step import PendingStep, outage_pause
from kairos_mcp.execution.run_state import RunState
from kairos_mcp.execution.tool_calls import Allowed
from kairos_mcp.store.accounts import AccountChange, BegunBranch
from kairos_mcp.store.approvals import LAPSED, ApprovalRequest, ReusedApproval
from kairos_mcp.store.commit import (
    AccountsToCharge,
    AnsweredStep,
    EndedAttempt,
    NewAttempt,
    NewStep,
    Paused,
    RunCommit,
    StepResult,
    UsualCommit,
)
from kairos_mcp.store.more_rounds import RoundsRequest
from kairos_mcp.store.queries import WAITED
from kairos_mcp.store.reservations import exceeds_held
from kairos_mcp.store.rows import encode


def plan_commit(
    state: RunState,
    owner: int,
    fence: int,
    at: int,
    charged: AccountsToCharge,
    *,
    no_new_steps: bool,
    steps_running: bool,
) -> RunCommit:
    """Return what there is to commit now. `at`: milliseconds since 1970. `steps_running`: some still run."""
    pause = None if no_new_steps else _pause_at_rest(state, at, steps_running=steps_running)
    approvals_renewed = [] if no_new_steps else _renew_approvals(state)
    attempts = (
        _charge_ended_attempts(state, at) if no_new_steps else _plan_attempts(state, at, is_paused=pause is not None)
    )
    new_steps, some_left = ([], False) if no_new_steps or pause is not None else _plan_new_steps(state, at)
    run, outcome, notes = state.run, None, _failure_notes(state, attempts)
    if state.runner.finished:
        outcome, notes = encode(state.runner.outcome), (*notes, *state.runner.outcome.notes)
    return RunCommit(
        run.n,
        run.id,
        owner,
        fence,
        run.account,
        at,
        list(state.finished),
        new_steps,
        attempts,
        notes,
        outcome=outcome,
        # A step that an earlier commit reserved for may not have begun yet: that of a branch beside this one.
        may_release=not (steps_running or no_new_steps or some_left or state.startable_steps),
        open_step_ids=[step.id for step in state.pending.values() if step.is_open],
        branches=state.branches,
        begun_branches=_branches_around(state, [*attempts, *new_steps]) if state.runner.branches else (),
        others_move=bool(state.pending) or some_left,
        charged=charged if run.paused is None else charged._replace(pause_when_used_up=None),
        handled_requests=tuple(state.handled_requests),
        pause=pause,
        renewed_approvals=approvals_renewed,
    )


def _plan_new_steps(state: RunState, at: int) -> tuple[list[NewStep], bool]:
    """Plan the steps that have no row yet. True: some were left out, because they came to wait while others were
    authorized."""
    without_row = [
        (path, step)
        for path, step in state.runner.waiting.items()
        if path not in state.pending and state.runner.take(path)
    ]
    if len(without_row) > 1 and state.runner.branches:
        # What runs goes first. So what may be kept waiting is last, and a script's lines can be taken back.
        without_row.sort(key=lambda item: state.may_be_kept_waiting(item[0]))
    planned, shares = [], state.count_by_branch(without_row)
    for path, step in without_row:
        authorization = state.authorizations.pop(path, None)
        if authorization is None and step.kind == "tool_call" and state.executor.tool_access.needs_preview(path, step):
            continue
        branch = state.runner.branch_of(path)
        new = state.executor.plan(path, step, state.run.route, at, shares[branch], authorization)
        planned.append(new._replace(rounds_request=_rounds_request(state, path, step)))
        shares[branch] -= 1
    return planned, len(planned) < len(without_row)


def _rounds_request(state: RunState, path: str, step: Step) -> RoundsRequest | None:
    """What a loop that asks for more rounds asks for; None for any other step."""
    branch, branches = state.runner.branch_of(path), state.runner.branches
    return state.executor.rounds_request(step, branches[branch]() if branch else None, branches)


def _branches_around(state: RunState, steps: Sequence[NewAttempt | NewStep]) -> list[BegunBranch]:
    """The branches around these steps that have limits of their own, outer ones first."""
    around = {path for step in steps for path in enclosing_paths(step.path)}
    return [BegunBranch(path, share()) for path, share in state.runner.branches.items() if path in around]


def _renew_approvals(state: RunState) -> list[tuple[int, ApprovalRequest | ReusedApproval | None]]:
    """For calls whose approval expired: (id of the step, what a person is asked now).

    An earlier approval, or None: nothing has to be asked any more, and the call may be made. A call that may not be
    made any more is answered.
    """
    renewed: list[tuple[int, ApprovalRequest | ReusedApproval | None]] = []
    expired = [path for path, step in state.pending.items() if step.approval_expired and path in state.authorizations]
    for path in expired:
        step, authorization = state.pending[path], state.authorizations.pop(path)
        step.approval_expired = False
        match authorization:
            case ToolResult():
                state.finish_step(path, StepResult(authorization, counts_of("call")), SERVER_ROUTE)
            case ApprovalRequest():
                renewed.append((step.id, authorization))
            case Allowed(reused=reused):
                step.awaits_approval, step.may_begin_again = False, step.sent.route == SERVER_ROUTE
                step.approved_base = None if reused is None else reused.request.base_hashes
                renewed.append((step.id, reused))
    return renewed


def _pause_at_rest(state: RunState, at: int, *, steps_running: bool) -> Paused | None:
    """Return how the run is paused where all that it could do waits for the end of a provider's outage, or all that
    it waits for are approvals that expired.

    While another branch moves, a step that backs off is begun again at its `retry_at`; while another one moves or
    waits, a call whose approval expired is held alone.
    """
    steps = state.pending.values()
    if not any(step.is_backing_off or step.has_lapsed for step in steps):
        return None
    others_move = (
        steps_running
        or state.startable_steps
        or state.runner.waiting.keys() - state.pending.keys() - state.kept_waiting
        or any(state.needs_attempt(step) and not step.is_held_back(at) for step in steps)
    )
    if others_move:
        return None
    return Paused(LAPSED, None) if all(step.has_lapsed for step in steps) else outage_pause(steps, at)


def _failure_notes(state: RunState, attempts: Sequence[NewAttempt]) -> tuple[str, ...]:
    """Return the notes of the attempts that failed and are repeated: no answer keeps them."""
    failed = (state.pending[attempt.path].failed_result for attempt in attempts)
    return tuple(note for result in failed if result is not None for note in result.notes)


def _plan_attempts(state: RunState, at: int, is_paused: bool) -> list[NewAttempt]:
    """Plan further attempts at steps whose attempt ended without an answer. `is_paused`: with this commit the run
    is, until a provider's outage may be over."""
    if not state.pending:
        return []
    _finish_probed_calls(state, at)
    planned = []
    for path, step in state.pending.items():
        if state.needs_attempt(step) and (is_paused or not step.is_held_back(at)):
            step.is_backing_off = step.is_backing_off and is_paused
            planned.append(_new_attempt(state, path, step, at))
    return planned


def _charge_ended_attempts(state: RunState, at: int) -> list[NewAttempt]:
    """While nothing is begun: charge what was withdrawn, or failed during an outage; its step goes on waiting."""
    return [
        _new_attempt(state, path, step, at, stays_open=True)
        for path, step in state.pending.items()
        if step.withdrawn_requests or step.is_backing_off
    ]


def _finish_probed_calls(state: RunState, at: int) -> None:
    """Answer the calls that a probe found to be done with what it found."""
    for path, step in [item for item in state.pending.items() if item[1].probe_result is not None]:
        match step.probe_result:
            case ProbeResult(state="done", result=found):
                answer = found or ToolResult("It was done before the server ended.")
                spent = step.held._replace(milliseconds=step.lost_ms(at))
                state.finish_step(path, StepResult(answer, spent), SERVER_ROUTE)
            case _:
                pass


def _must_ask_person(state: RunState, step: PendingStep) -> bool:
    """Whether a person has to settle the call: its outcome is unknown and it may have changed something, so that it
    is never repeated by itself."""
    if not step.outcome_unknown or step.may_begin_again:
        return False
    match step.step:
        case CallTool(call=call):
            spec = state.executor.tool_access.find_spec(call.name)
            repeatable = spec is not None and spec.effect in REPEATABLE_EFFECTS
            return not (repeatable or (step.probe_result is not None and step.probe_result.state == "not_done"))
        case _:
            return False


def _is_unavailable(state: RunState, route: str) -> bool:
    """Whether a server has to perform this route, and this one can't."""
    return route not in OUTSIDE_ROUTES and route not in state.executor.models


def _new_attempt(state: RunState, path: str, step: PendingStep, at: int, *, stays_open: bool = False) -> NewAttempt:
    route = step.sent.route
    follows_reroute = step.is_open or not _is_unavailable(state, state.run.route)
    if step.step.kind == "completion" and follows_reroute and not stays_open:
        route = state.run.route  # a reroute counts from the next attempt; a call has no other route
    counts = counts_of(step.kind)._replace(rounds=0, tool_calls=0)
    request = state.executor.reservation_request(path, step.step, route or "", counts)
    is_same_route = route == step.sent.route
    sent = step.sent if is_same_route else state.executor.completion_sent(path, route or "", step.sent.tail)
    if step.is_backing_off or stays_open or _must_ask_person(state, step):
        request = request._replace(counts_only=True)
    never_begun = WAITED if is_same_route else f"rerouted to {route}"  # it was open, or waited for an approval
    ended = step.end_of_attempt(at) or EndedAttempt(never_begun, NOTHING)
    return NewAttempt(
        path,
        step.id,
        request,
        sent,
        step.held,
        step.releasable,
        ended,
        step.shared,
        step.withdrawn_requests,
        _rounds_request(state, path, step.step),
    )


def plan_usual_commit(
    state: RunState, daily_accounts: DailyAccounts, owner: int, fence: int, at: int
) -> UsualCommit | None:
    """Return the next commit where it is a usual one; None where it is any other. `at`: milliseconds since 1970.

    It takes lines of a script, which are to be returned (`RunState.return_lines`) if the commit is not written.
    """
    runner, pending, kept = state.runner, state.pending, state.kept_waiting
    if kept and state.has_new_room:
        return None
    # `take` comes first: it counts the branches that begin with such a step, and `has_more_to_do` then sees those whose
    # accounts have to be opened.
    new = [
        (path, step)
        for path, step in runner.waiting.items()
        if path not in pending and path not in kept and runner.take(path)
    ]
    if not (new or runner.finished) or not state.accounts or state.has_more_to_do:
        return None
    outcome = None
    if runner.finished:
        if runner.outcome.notes:
            return None
        outcome = encode(runner.outcome)
    plan = _Plan(state, daily_accounts, at, dict(state.accounts))
    answered = tuple(state.finished)
    for each in answered:
        if not plan.settle(each):
            return None
    begun = plan.begin(new)
    if begun is None:
        return None
    changes = {
        path: AccountChange(before, plan.accounts[path])
        for path, before in state.accounts.items()
        if plan.accounts[path] is not before or not path
    }
    waits_outside = bool(begun) and begun[0].request.counts_only
    return UsualCommit(
        state.run.n, owner, fence, at, changes, answered, state.has_notes_of_tools, begun, waits_outside, outcome
    )


@dataclass(slots=True)
class _Plan:
    """A commit as it is planned. `accounts`: as they are by now, the run's own under "", those of branches by path."""

    state: RunState
    daily_accounts: DailyAccounts
    at: int
    accounts: dict[str, Account]

    def settle(self, answered: AnsweredStep) -> bool:
        """Settle a step that was answered. False: more than its answer is to be written: a long text, a note, or a
        note on a limit that it has exceeded."""
        if answered.result.text is not None or answered.result.notes:
            return False
        held, spent = answered.held, answered.result.spent
        for path in self.state.charged_accounts(answered.path):
            account = self.accounts.get(path)
            if account is None:
                return False
            self.accounts[path] = account = account.settle(held, spent)
            if exceeds_held(held, spent) and _is_over_cap(account):
                return False
        return True

    def begin(self, new: Sequence[tuple[str, Step]]) -> list[NewStep] | None:
        """Begin these steps. None: one of them can't be begun in a usual commit."""
        begun: list[NewStep] = []
        shares = self.state.count_by_branch(new) if len(new) > 1 else None
        waits_outside = 0
        for path, step in new:
            time_shares = 1
            if shares is not None:
                branch = self.state.runner.branch_of(path)
                time_shares, shares[branch] = shares[branch], shares[branch] - 1
            found = self._begin_step(path, step, time_shares)
            if found is None:
                self.state.return_lines(each.sent.line for each in begun)
                return None
            begun.append(found)
            waits_outside += found.request.counts_only
        if waits_outside and (waits_outside < len(begun) or self.state.pending):
            return None  # the run is not let go of; and of a script, which is not handed out, it took no lines
        return begun

    def _begin_step(self, path: str, step: Step, time_shares: int) -> NewStep | None:
        """Begin a step, and hold what it reserves. None: it can't be begun in a usual commit."""
        charged = self.state.charged_accounts(path)
        own = [account for each in charged if (account := self.accounts.get(each)) is not None]
        if len(own) < len(charged):
            return None
        if step.kind == "completion":
            found = self._begin_completion(path, step, own, time_shares)
        elif step.kind == "tool_call":
            found = self._begin_call(path, step, own, time_shares)
        else:
            return None
        if found is not None:
            held = found.held
            for each, account in zip(charged, own, strict=True):
                self.accounts[each] = account.hold(held)
        return found

    def _begin_completion(
        self, path: str, step: RequestCompletion, own: list[Account], time_shares: int
    ) -> NewStep | None:
        """Begin a completion that this server performs, or hand it out; its price and its day are known."""
        state, executor, purpose = self.state, self.state.executor, step.purpose
        route = state.run.route
        if route not in executor.models and (route not in OUTSIDE_ROUTES or purpose == "compact"):
            return None
        charged = self.daily_accounts.known_accounts(state.run, executor.tool_access.mandate, self.at)
        if charged is None:
            return None
        request = executor.reservation_request(path, step, route, counts_of(purpose), time_shares)
        nearest, *enclosing = own
        reservation = reserve(nearest, request, (), enclosing)
        if request.price is None or isinstance(reservation, Refused):
            return None
        if enclosing and reservation.max_tokens < request.wanted_tokens and state.has_new_room:
            return None  # its branch may get more
        status = format_status_line(nearest, closing=purpose == "closing") if purpose in ("round", "closing") else None
        sent = executor.completion_sent(path, route, status, reservation.max_tokens)
        return NewStep(path, purpose, step.digest, request, sent, reservation=reservation, shared=charged.shared)

    def _begin_call(self, path: str, step: CallTool, own: list[Account], time_shares: int) -> NewStep | None:
        """Begin a call of this server's tools which only reads and which the gate allows without a look at files."""
        executor, call = self.state.executor, step.call
        access = executor.tool_access
        spec = access.find_offered(path, call.name)
        if (
            spec is None
            or spec.is_caller_tool
            or spec.effect != "read"
            or access.check_call(path, call, spec, self.at) is not None
        ):
            return None
        if not access.allows_at_once(path, step, spec):
            return None
        nearest, *enclosing = own
        request = executor.reservation_request(path, step, SERVER_ROUTE, counts_of("call"), time_shares)
        reservation = reserve(nearest, request, (), enclosing)
        if isinstance(reservation, Refused):
            return None
        return NewStep(path, "call", step.digest, request, SENT_TO_SERVER, asked=step.asked, reservation=reservation)


def _is_over_cap(account: Account) -> bool:
    """Whether more is used than a cap allows."""
    held, spent = account.held, account.spent
    return any(held[cap.place] + spent[cap.place] > cap.most for cap in account.caps.caps)
