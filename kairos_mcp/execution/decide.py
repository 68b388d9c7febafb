"""Decide a commit: what becomes of each planned step, and what its accounts hold afterwards. No I/O.

The decision depends on the plan and its facts alone. The facts may be read in the transaction that writes the decision,
or be known from earlier commits: that transaction then compares them first (`commit.py`). The result is the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from kairos_mcp.budget.ledger import NO_SHARED_ACCOUNTS, BegunBranch, Ledger, SharedAccountIds
from kairos_mcp.budget.more_rounds import BY_BUDGET, LoopRecord, answer_request
from kairos_mcp.budget.notes import (
    USED_UP_REASONS,
    AskedCompletion,
    exceeded_cap_notes,
    too_small_notes,
    unpriced_notes,
)
from kairos_mcp.budget.reservation import (
    NO_DAY,
    SHARED_SCOPES,
    Reservation,
    ReservationRequest,
    format_status_line,
)
from kairos_mcp.core.limits import NOTHING, counts_of, with_measured
from kairos_mcp.core.routes import SERVER_ROUTE
from kairos_mcp.core.steps import Refused, Sent, sort_key
from kairos_mcp.store.client_completions import RequestCharge, charge_requests
from kairos_mcp.store.commit import CommitPlan, Decided, DecidedStep, Facts, NewAttempt, NewStep, Paused

_NO_DAY = Refused("model_calls", 0, 0, NO_DAY)
_LOOPS_ARE_KNOWN = "what loops have done is known where one of them asks for more rounds"


def decide(plan: CommitPlan, facts: Facts) -> Decided:
    """Return what the commit writes. Answers and dropped steps are settled first, so that new reservations can use what
    these release."""
    ledger, loops, notes = Ledger(facts.accounts, plan.branches, facts.shared_accounts), facts.loops, list[str]()
    for answered in plan.answers:
        result = answered.result
        ledger.settle(answered.path, answered.held, result.spent, answered.shared_accounts)
        notes += result.notes
    notes += plan.notes
    charges = _drop_steps(plan, facts, ledger) if plan.dropped_steps else ()
    if loops is not None:
        loops = loops.copy()  # what is granted here counts for whoever asks next
    attempts = [_decide_attempt(plan, attempt, ledger, loops, facts) for attempt in plan.attempts]
    if plan.begun_branches:
        steps = _decide_steps_in_branches(plan, ledger, loops)
    else:
        steps = [_decide_step(plan, new, ledger, loops) for new in plan.new_steps]
    decided = [*attempts, *steps]
    paused, refusal = plan.pause, next((each.refusal for each in decided if each.refusal is not None), None)
    if paused is None and refusal is not None:
        paused = plan.charged.pause_when_used_up
        if paused is not None and refusal.scope != NO_DAY:
            paused = Paused(USED_UP_REASONS[refusal.scope], paused.resume_at)
    unpriced = [each.sent for each in decided if each.reservation is not None and each.sent.unpriced]
    notes += exceeded_cap_notes(ledger.exceeded_caps())
    notes += too_small_notes(_refused_completions(plan, attempts, steps, ledger))
    notes += unpriced_notes(unpriced)
    waits_outside = any(each.is_open and each.has_row for each in decided)
    releases = plan.may_release and plan.outcome is None and all(each.is_open for each in decided)
    return Decided(ledger, attempts, steps, charges, notes, paused, waits_outside, releases)


def _drop_steps(plan: CommitPlan, facts: Facts, ledger: Ledger) -> list[RequestCharge]:
    """Release what dropped steps hold, and charge the requests about them. One that was answered holds nothing."""
    charges: list[RequestCharge] = []
    for dropped in plan.dropped_steps:
        if (found := facts.dropped.get(dropped.path)) is not None:
            ledger.settle(dropped.path, dropped.held, NOTHING, dropped.shared_accounts)
            charges += charge_requests(ledger, *found)
    return charges


def _decide_steps_in_branches(plan: CommitPlan, ledger: Ledger, loops: LoopRecord | None) -> list[DecidedStep]:
    """Decide on new steps, some of which are in branches with limits of their own.

    A completion that its branch can't buy while a sibling runs waits as long as anything else of the run moves. If
    nothing moves, one is refused: the first by its path, since arrival may differ between servers.
    """
    decided = []
    for new in plan.new_steps:
        around = _branches_around(plan, new.path)
        if around and not _open_branches(ledger, around, new):
            decided.append(DecidedStep(new.sent, is_open=True))
        else:
            decided.append(_decide_step(plan, new, ledger, loops, around, may_wait=True))
    if not plan.others_move and all(not step.has_row and step.refusal is None for step in decided):
        for nth, new in sorted(enumerate(plan.new_steps), key=lambda each: sort_key(each[1].path)):
            around = _branches_around(plan, new.path)
            if all(branch.path in ledger.branches for branch in around):
                decided[nth] = _decide_step(plan, new, ledger, loops, around)
                break
    return decided


def _branches_around(plan: CommitPlan, path: str) -> list[BegunBranch]:
    return [branch for branch in plan.begun_branches if path.startswith(f"{branch.path}/")]


def _open_branches(ledger: Ledger, around: Sequence[BegunBranch], new: NewStep) -> bool:
    """Open the branches that begin with this step. Return False if it must wait for what a sibling leaves."""
    unopened = [branch for branch in around if branch.path not in ledger.branches]
    return ledger.open_branches(unopened, new.request if new.request.wanted_tokens else None)


def _decide_step(
    plan: CommitPlan,
    new: NewStep,
    ledger: Ledger,
    loops: LoopRecord | None,
    around: Sequence[BegunBranch] = (),
    *,
    may_wait: bool = False,
) -> DecidedStep:
    """Decide whether a step is begun, waits outside, is answered at once, or waits for a sibling's end (`may_wait`)."""
    request, path = new.request, new.path
    fitting = ledger.fit(path, request, around)
    # The status line of a round or a closing; other steps have no use for it.
    has_status = new.kind in ("round", "closing")
    status = format_status_line(ledger.nearest_account(path), closing=new.kind == "closing") if has_status else None
    shared, reserved = _hold(plan, ledger, path, request, fitting)
    if isinstance(reserved, Refused):
        if reserved.scope in SHARED_SCOPES:
            return DecidedStep(new.sent, is_open=True, refusal=reserved)
        if may_wait and request.wanted_tokens and ledger.may_get_more(around, reserved):
            return DecidedStep(new.sent, is_open=True)
        return DecidedStep(replace(new.sent, tail=status, line=None), answer=reserved)
    sent = _with_reservation(new.sent, reserved, status)
    answer, by_route, grant = new.answer, SERVER_ROUTE, None
    if answer is None and new.rounds_request is not None and new.approval_request is None:
        assert loops is not None, _LOOPS_ARE_KNOWN
        answer, grant = answer_request(ledger, loops, path, new.rounds_request)
        by_route = BY_BUDGET
    if answer is None:
        return DecidedStep(sent, reserved, None, request.counts_only, shared)
    spent = with_measured(reserved.held._replace(milliseconds=0), answer)
    ledger.settle(path, reserved.held, spent, shared)
    if loops is not None and new.kind == "call":
        loops.add_call(path, new.digest, answer, by_route)
    return DecidedStep(sent, reserved, answer, shared_accounts=shared, spent=spent, by_route=by_route, grant=grant)


def _hold(
    plan: CommitPlan, ledger: Ledger, path: str, request: ReservationRequest, fitting: Reservation | Refused
) -> tuple[SharedAccountIds, Reservation | Refused]:
    """Reserve for a step. Return also the shared accounts that it is charged to: only model calls have any."""
    if not request.counts.model_calls:
        return NO_SHARED_ACCOUNTS, ledger.hold(path, request, fitting, NO_SHARED_ACCOUNTS)
    if plan.charged.is_barred:
        return NO_SHARED_ACCOUNTS, _NO_DAY
    return plan.charged.shared_accounts, ledger.hold(path, request, fitting, plan.charged.shared_accounts)


def _with_reservation(sent: Sent, reservation: Reservation, tail: str | None) -> Sent:
    tokens = reservation.max_tokens or sent.max_tokens
    return sent if tokens == sent.max_tokens and tail == sent.tail else sent.with_grant(tokens, tail)


def _decide_attempt(
    plan: CommitPlan, attempt: NewAttempt, ledger: Ledger, loops: LoopRecord | None, facts: Facts
) -> DecidedStep:
    """Charge the attempt that ended, then reserve anew; if refused, the step is answered with the refusal.

    Where a shared account refuses, the ended attempt is charged all the same, and the step waits to be begun again.
    """
    path, request = attempt.path, attempt.request
    if (arrived := facts.arrived.get(path)) is not None:
        return DecidedStep(attempt.sent, answer=arrived, arrived=True)
    lost = attempt.previous.charge
    if attempt.withdrawn_requests:
        lost = ledger.cap_to_remaining(path, attempt.freed, lost, attempt.shared_accounts)
    ledger.settle(path, attempt.freed, lost, attempt.shared_accounts)
    fitting = ledger.fit(path, request, _branches_around(plan, path))
    shared, reserved = _hold(plan, ledger, path, request, fitting)
    refusal = reserved if isinstance(reserved, Refused) and reserved.scope in SHARED_SCOPES else None
    if refusal is not None:
        shared, reserved = NO_SHARED_ACCOUNTS, Reservation(NOTHING, 0, 0)
    if isinstance(reserved, Refused):
        ledger.settle(path, attempt.held.minus(attempt.freed), NOTHING, NO_SHARED_ACCOUNTS)
        return DecidedStep(attempt.sent, answer=reserved, lost=lost)
    sent = _with_reservation(attempt.sent, reserved, attempt.sent.tail)
    is_open = request.counts_only or refusal is not None
    begun = DecidedStep(sent, reserved, None, is_open, shared, refusal, lost=lost)
    if attempt.rounds_request is None or is_open:
        return begun
    assert loops is not None, _LOOPS_ARE_KNOWN
    answer, grant = answer_request(ledger, loops, path, attempt.rounds_request)
    spent = with_measured(counts_of("call"), answer)
    ledger.settle(path, attempt.held.minus(attempt.freed).plus(reserved.held), spent, shared)
    return begun._replace(answer=answer, spent=spent, by_route=BY_BUDGET, grant=grant)


def _refused_completions(
    plan: CommitPlan, attempts: Sequence[DecidedStep], steps: Sequence[DecidedStep], ledger: Ledger
) -> Iterator[AskedCompletion]:
    """Yield the attempts and the refused steps, each with whether it is the first that its account would pay for."""
    for attempt, decision in zip(plan.attempts, attempts, strict=True):
        yield AskedCompletion(attempt.path, attempt.request, decision.answer, is_first=False)
    for new, decision in zip(plan.new_steps, steps, strict=True):
        if isinstance(decision.answer, Refused):
            is_first = not ledger.nearest_account(new.path).spent.model_calls
            yield AskedCompletion(new.path, new.request, decision.answer, is_first)
