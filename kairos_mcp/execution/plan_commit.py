"""Plan the next commit of a run: what is answered, begun, begun again, asked, paused or ended with it.

A plan says what is wanted; `decide` (`decide.py`) says how much of it the accounts allow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from kairos_mcp.budget.ledger import BegunBranch
from kairos_mcp.budget.more_rounds import RoundsRequest
from kairos_mcp.core.effects import REPEATABLE_EFFECTS
from kairos_mcp.core.limits import NOTHING, counts_of
from kairos_mcp.core.messages import ToolResult
from kairos_mcp.core.routes import OUTSIDE_ROUTES, SERVER_ROUTE
from kairos_mcp.core.steps import CallTool, enclosing_paths
from kairos_mcp.core.tool import ProbeResult
from kairos_mcp.execution.pending_step import PendingStep, outage_pause
from kairos_mcp.execution.run_state import RunState
from kairos_mcp.execution.tool_calls import Allowed
from kairos_mcp.store.approvals import LAPSED, ApprovalRequest, ReusedApproval
from kairos_mcp.store.commit import (
    AccountsToCharge,
    CommitPlan,
    EndedAttempt,
    NewAttempt,
    NewStep,
    Paused,
    StepResult,
)
from kairos_mcp.store.queries import WAITED
from kairos_mcp.store.rows import encode


def plan_commit(
    state: RunState,
    owner: int,
    fence: int,
    at: int,
    charged: AccountsToCharge,
    *,
    no_new_steps: bool = False,
    steps_running: bool = False,
) -> CommitPlan:
    """Return what there is to commit now. `at`: milliseconds since 1970. `steps_running`: some still run.

    It takes lines of a script for the steps that it plans; `RunState.apply` returns those of steps that are not begun.
    """
    run, runner, pause = state.run, state.runner, None
    attempts: list[NewAttempt] = []
    renewed: list[tuple[int, ApprovalRequest | ReusedApproval | None]] = []
    has_idle_steps = state.has_idle_steps
    if has_idle_steps:
        if no_new_steps:
            attempts = _charge_ended_attempts(state, at)
        else:
            pause = _pause_at_rest(state, at, steps_running=steps_running)
            renewed = _renew_approvals(state)
            attempts = _plan_attempts(state, at, is_paused=pause is not None)
    new_steps: list[NewStep] = []
    some_left = False
    if runner.waiting and not no_new_steps and pause is None:
        new_steps, some_left = _plan_new_steps(state, at)
    notes, outcome = _failure_notes(state, attempts) if attempts else (), None
    if runner.finished:
        outcome, notes = encode(runner.outcome), (*notes, *runner.outcome.notes)
    return CommitPlan(
        *(run.n, run.id, owner, fence, run.account, at, tuple(state.finished), new_steps, attempts, notes),
        outcome=outcome,
        # A step that an earlier commit reserved for may not have begun yet: that of a branch beside this one.
        may_release=not (steps_running or no_new_steps or some_left or state.startable),
        open_step_ids=[step.id for step in state.pending.values() if step.is_open] if has_idle_steps else (),
        branches=state.branches,
        begun_branches=_branches_around(state, [*attempts, *new_steps]) if runner.branches else (),
        others_move=some_left or bool(state.pending),
        charged=charged if run.paused is None else charged._replace(pause_when_used_up=None),
        handled_requests=tuple(state.handled_requests),
        pause=pause,
        renewed_approvals=renewed,
        may_have_intents=state.has_notes_of_tools,
    )


def _plan_new_steps(state: RunState, at: int) -> tuple[list[NewStep], bool]:
    """Plan the steps that have no row yet. Return also whether some were left out: those that the flow yielded while
    others were authorized, and those for which siblings of their branches have left nothing new."""
    runner, pending, kept, executor = state.runner, state.pending, state.kept_waiting, state.executor
    passed_by = kept if kept and not state.has_new_room else ()
    without_row = [
        (path, step)
        for path, step in runner.waiting.items()
        if path not in pending and path not in passed_by and (path in state.authorizations or runner.try_begin(path))
    ]
    if passed_by and not without_row:
        without_row, passed_by = [item for item in runner.waiting.items() if item[0] in kept], ()
    planned, shares = list[NewStep](), None
    if len(without_row) > 1:
        if runner.branches:
            # Steps that may be kept waiting come last, so that the lines of a script that they took can be given back.
            without_row.sort(key=lambda item: state.may_be_kept_waiting(item[0]))
        # Steps that are planned together share the time that their account has left.
        shares = Counter(runner.branch_of(path) for path, _ in without_row)
    for path, step in without_row:
        time_shares = 1
        if shares is not None:
            branch = runner.branch_of(path)
            time_shares, shares[branch] = shares[branch], shares[branch] - 1
        if step.kind == "completion":
            planned.append(executor.plan_completion(path, step, state.run.route, time_shares))
        elif step.kind == "pause":
            planned.append(executor.plan_pause(path, step))
        elif (authorization := state.take_authorization(path, step)) is not None:
            asks = _rounds_request(state, path, step) if executor.asks_for_rounds(step) else None
            new = executor.plan_call(path, step, at, time_shares, authorization)
            judged = executor.tool_caller.take_judgement(path)
            planned.append(new._replace(call=step.stored_call, rounds_request=asks, judged=judged))
    return planned, len(planned) < len(without_row) or bool(passed_by)


def _rounds_request(state: RunState, path: str, step: CallTool) -> RoundsRequest:
    """Return a loop's request for more rounds."""
    branch, branches = state.runner.branch_of(path), state.runner.branches
    return state.executor.rounds_request(step, branches[branch]() if branch else None, branches)


def _branches_around(state: RunState, steps: Sequence[NewAttempt | NewStep]) -> list[BegunBranch]:
    """The branches around these steps that have limits of their own, outer ones first."""
    around = {path for step in steps for path in enclosing_paths(step.path)}
    return [BegunBranch(path, share()) for path, share in state.runner.branches.items() if path in around]


def _renew_approvals(state: RunState) -> list[tuple[int, ApprovalRequest | ReusedApproval | None]]:
    """Return, for each call whose approval expired, its step's id and what a person is asked now.

    An earlier approval, or None, lets the call be made unasked. A call that may no longer be made is answered here.
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
    """Return the pause of a run in which nothing can move until a provider's outage ends or a person resumes it, since
    all approvals that it waits for have expired.

    Return None if another step can move: then a step that backs off is begun again at its `retry_at`, and a call whose
    approval expired waits alone.
    """
    # A call behind another one can't begin, whatever is decided about it.
    steps = [step for path, step in state.pending.items() if state.runner.may_begin(path)]
    if not any(step.is_backing_off or step.has_lapsed for step in steps):
        return None
    others_move = (
        steps_running
        or state.startable
        or any(map(state.runner.may_begin, state.runner.waiting.keys() - state.pending.keys() - state.kept_waiting))
        or any(state.needs_attempt(step) and not step.is_held_back(at) for step in steps)
    )
    if others_move:
        return None
    return Paused(LAPSED, None) if all(step.has_lapsed for step in steps) else outage_pause(steps, at)


def _failure_notes(state: RunState, attempts: Sequence[NewAttempt]) -> tuple[str, ...]:
    """Return the notes of failed attempts that are repeated: no answer will contain them."""
    failed = (state.pending[attempt.path].failed_result for attempt in attempts)
    return tuple(note for result in failed if result is not None for note in result.notes)


def _plan_attempts(state: RunState, at: int, is_paused: bool) -> list[NewAttempt]:
    """Plan further attempts at steps whose attempt ended without an answer. `is_paused`: this commit pauses the run
    until a provider's outage may be over."""
    _finish_probed_calls(state, at)
    planned = []
    for path, step in state.pending.items():
        if state.needs_attempt(step) and (is_paused or not step.is_held_back(at)) and state.runner.try_begin(path):
            step.is_backing_off = step.is_backing_off and is_paused
            planned.append(_new_attempt(state, path, step, at))
    return planned


def _charge_ended_attempts(state: RunState, at: int) -> list[NewAttempt]:
    """Charge attempts that were withdrawn, or failed during an outage, while nothing may begin; their steps wait on."""
    return [
        _new_attempt(state, path, step, at, stays_open=True)
        for path, step in state.pending.items()
        if step.withdrawn_requests or step.is_backing_off
    ]


def _finish_probed_calls(state: RunState, at: int) -> None:
    """Answer the calls that a probe found to be done with what it found."""
    for path, step in [item for item in state.pending.items() if item[1].probe_result is not None]:
        match step.probe_result:
            case ProbeResult(state="resolved", result=found):
                answer = found or ToolResult("It was done before the server ended.")
                spent = step.held._replace(milliseconds=step.lost_ms(at))
                call = step.step
                assert isinstance(call, CallTool), "no other step is probed"
                foreign = state.executor.tool_caller.foreign_files(call, answer)
                state.finish_step(path, StepResult(answer, spent, foreign_files=foreign), SERVER_ROUTE)
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
            tool = state.executor.tool_access.find_tool(call.name)  # with the effect that is stated by now
            specs = (spec, spec if tool is None else tool.spec)
            repeatable = all(each is not None and each.effect in REPEATABLE_EFFECTS for each in specs)
            return not (repeatable or (step.probe_result is not None and step.probe_result.state == "not_done"))
        case _:
            return False


def _new_attempt(state: RunState, path: str, step: PendingStep, at: int, *, stays_open: bool = False) -> NewAttempt:
    route = step.sent.route
    is_available = state.run.route in OUTSIDE_ROUTES or state.run.route in state.executor.models
    follows_reroute = step.is_open or is_available
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
    asks = isinstance(step.step, CallTool) and state.executor.asks_for_rounds(step.step)
    return NewAttempt(
        *(path, step.id, request, sent, step.held, step.releasable, ended),
        *(step.shared_accounts, step.withdrawn_requests),
        _rounds_request(state, path, step.step) if isinstance(step.step, CallTool) and asks else None,
    )
