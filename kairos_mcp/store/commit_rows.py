"""Read what the decision on a commit rests on, and write what was decided, in one transaction.

A decision from memory is written only if nothing has changed since, and one that ignored shared accounts only if these
have room; else nothing is written. Nothing raises after a write, so that the commits of many runs can share one
transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial

from kairos_mcp.budget.ledger import RUN
from kairos_mcp.budget.reservation import Account
from kairos_mcp.core.errors import FenceLost
from kairos_mcp.core.messages import ToolResult
from kairos_mcp.core.routes import SERVER_ROUTE
from kairos_mcp.core.steps import Sent, enclosing_paths
from kairos_mcp.store import approvals, client_completions, queries, rows, tool_intents
from kairos_mcp.store.account_changes import Condition, SharedAccounts, write_accounts
from kairos_mcp.store.accounts import SELECT_ACCOUNT, account_from_row, encode_shared, read_branches_at
from kairos_mcp.store.client_completions import RequestRow
from kairos_mcp.store.commit import (
    AnsweredStep,
    CommitPlan,
    Committed,
    Decided,
    DecidedStep,
    DroppedStep,
    Facts,
    NewAttempt,
    NewStep,
    StepResult,
)
from kairos_mcp.store.inbox import insert_answer, mark_handled
from kairos_mcp.store.joined_commit import ParkedRun
from kairos_mcp.store.more_rounds import insert_grant, read_loops
from kairos_mcp.store.prefixes import insert_cost
from kairos_mcp.store.queries import StepRow
from kairos_mcp.store.report_queries import insert_note
from kairos_mcp.store.rows import Session, decode_answer, encode, encode_units, read_each, read_together

# -- reading ----------------------------------------------------------------------------------------------------

_OWNED_RUN = "(select account from run where n = ? and owner = ? and fence = ? and outcome is null)"
_READ_OWNED = SELECT_ACCOUNT + _OWNED_RUN  # a join would take eight times as long


def read_facts(session: Session, plan: CommitPlan) -> Facts:
    """Read the facts of a commit; accounts that runs share only if the plan needs them.

    Raises FenceLost if another server took the run, or it has ended; Unreadable.
    """
    branches = branches_in_view(plan)
    again = [attempt.path for attempt in plan.attempts]
    account, above, arrived = read_together(
        session,
        lambda session: read_owned_account(session, plan),
        lambda session: read_branches_at(session, plan.branches, branches),
        lambda session: queries.answer_bodies_at(session, plan.run, again),
    )
    dropped = _read_dropped(session, plan.run, plan.dropped_steps)
    loops = None
    if plan.rounds_requests:
        answered = {each.step_id: (each.result.answer, each.by_route) for each in plan.answers}
        loops = read_loops(session, plan.run, answered)
    facts = Facts(
        {RUN: account, **above},
        arrived={path: decode_answer(body) for path, body in arrived.items()},
        dropped=dropped,
        loops=loops,
    )
    if plan.needs_shared or any(requests for _, requests in dropped.values()):
        return add_shared(session, plan, facts)
    return facts


def add_shared(session: Session, plan: CommitPlan, facts: Facts) -> Facts:
    """Add the accounts that runs share. Raises CorruptRows if one is missing."""
    charged = [each.shared_accounts for steps in (plan.answers, plan.attempts, plan.dropped_steps) for each in steps]
    shared = SharedAccounts(session)
    for number in {number for each in (plan.charged.shared_accounts, *charged) for number in each}:
        shared[number]
    return facts._replace(shared_accounts=shared)


def branches_in_view(plan: CommitPlan) -> Sequence[str]:
    """Return the paths of the branches whose accounts a decision uses: those around each step, their begun siblings,
    and those beside a loop that asks for more rounds."""
    if not plan.branches:
        return ()
    seen = {around for path in plan.paths for around in enclosing_paths(path)}
    seen.update(sibling for branch in plan.begun_branches for sibling in branch.share.siblings)
    seen.update(branch for request in plan.rounds_requests for branch in request.open_branches)
    return sorted(seen & plan.branches.keys())


def read_owned_account(session: Session, plan: CommitPlan) -> Account:
    """Read the account of a run that this server owns. Raises FenceLost if another server took it, or it has ended."""
    found = session.row(_READ_OWNED, (plan.run, plan.owner, plan.fence))
    if found is None:
        raise FenceLost(plan.run_id)
    return account_from_row(plan.account, found)


def _read_dropped(
    session: Session, run: int, dropped: Iterable[DroppedStep]
) -> dict[str, tuple[StepRow, Sequence[RequestRow]]]:
    """Read the dropped steps that have no answer yet, each with the requests to a client's model about it."""
    found = read_each(session, lambda session, each: queries.step_at(session, run, each.path), dropped)
    steps = [step for step in found if step is not None and step.body is None]
    requests = read_each(session, lambda session, step: client_completions.requests_of_step(session, step.id), steps)
    return {step.path: (step, asked) for step, asked in zip(steps, requests, strict=True)}


# -- writing ----------------------------------------------------------------------------------------------------

_INSERT_STEP = (
    "insert into step(run, path, kind, digest, fence, at, call, judged, held, sent, shared, seq)"
    " values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, (select seq + 1 from run where n = ?))"
)
_INSERT_ATTEMPT = (
    "insert into attempt(step, fence, at, held, sent, lost, ended, waits_outside, shared)"
    " values (?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_OWNED = "select 1 from run where n = ? and owner = ? and fence = ? and outcome is null"
_NOTHING_CAME = "not exists (select 1 from inbox where inbox.run = run.n and taken is null)"
# An open step is news for those who wait. Triggers record all other news (migrations/1.sql).
_ANNOUNCE = "update run set news_seq = seq where n = ?"
_RELEASE = "update run set owner = null where n = ?"
_ANNOUNCE_AND_RELEASE = "update run set owner = null, news_seq = seq where n = ?"


def condition_of(plan: CommitPlan, decided: Decided, parked: ParkedRun | None) -> Condition:
    """Return the condition for writing a decision from memory: the run is still this owner's, or `parked` is unchanged;
    if the run is released, nothing has come for it."""
    statement, bindings = (_OWNED, (plan.run, plan.owner, plan.fence)) if parked is None else parked.condition
    return (f"{statement} and {_NOTHING_CAME}" if decided.releases else statement), bindings


def write_commit(
    session: Session,
    plan: CommitPlan,
    decided: Decided,
    condition: Condition | None = None,
    parked: ParkedRun | None = None,
) -> Committed | None:
    """Write what was decided. Return None, having written nothing, if `write_accounts` finds that it no longer holds.

    `condition`: of a decision from memory (`condition_of`). `parked`: the run, if this commit also takes it.
    """
    run, at = plan.run, plan.at
    opened = write_accounts(session, decided.ledger, condition)
    if opened is None:
        return None
    if parked is not None:
        parked.take(session, plan.owner, at)
    for answered in plan.answers:
        _write_answer(session, plan, answered)
    if decided.attempts or decided.charges:
        client_completions.write_charges(session, decided.charges, plan.fence, at)
        for attempt, decision in zip(plan.attempts, decided.attempts, strict=True):
            _write_attempt(session, plan, attempt, decision)
    step_ids = []
    for new, decision in zip(plan.new_steps, decided.steps, strict=True):
        step_ids.append(_write_step(session, plan, new, decision) if decision.has_row else 0)
    for note in decided.notes:
        insert_note(session, run, note)
    if plan.renewed_approvals or plan.handled_requests:
        approvals.renew_approvals(session, run, plan.renewed_approvals, at)
        mark_handled(session, plan.handled_requests, at)
    if decided.paused is not None:
        session.rows("update run set paused = ?, resume_at = ? where n = ?", (*decided.paused, run))
    if plan.outcome is not None:
        session.rows("update run set outcome = ?, ended_at = ?, owner = null where n = ?", (plan.outcome, at, run))
        if plan.may_have_intents:
            tool_intents.forget_calls(session, run)
        approvals.ask_queued(session, run, at)
        return Committed(plan, decided, step_ids, opened, released=True)
    if decided.waits_outside or decided.releases:
        return Committed(plan, decided, step_ids, opened, *_release(session, plan, decided, condition))
    return _committed((plan, decided, step_ids, opened, False, False))


_committed: Callable[[tuple[object, ...]], Committed] = partial(tuple.__new__, Committed)


def _release(session: Session, plan: CommitPlan, decided: Decided, condition: Condition | None) -> tuple[bool, bool]:
    """Announce open steps and release the run. Return whether it was released, and whether something came for it.

    The transaction that releases it also finds that nothing came: who writes something for it later sees that no server
    owns the run, and takes it over.
    """
    arrived = decided.releases and condition is None and has_arrivals(session, plan.run, plan.open_step_ids)
    released = decided.releases and not arrived
    if decided.waits_outside:
        session.rows(_ANNOUNCE_AND_RELEASE if released else _ANNOUNCE, (plan.run,))
    elif released:
        session.rows(_RELEASE, (plan.run,))
    return released, arrived


def _write_answer(session: Session, plan: CommitPlan, answered: AnsweredStep) -> None:
    """Insert an answer, take back what was asked about the call, and forget what it was about to change."""
    result = answered.result
    insert_answer(session, answered.step_id, result, answered.by_route, plan.at)
    if answered.is_withdrawn:
        approvals.withdraw_question(session, plan.run, answered.step_id, plan.at)
    if answered.cost is not None:
        insert_cost(session, plan.run, answered.step_id, answered.cost)
    if plan.may_have_intents and isinstance(result.answer, ToolResult):
        tool_intents.forget_call(session, plan.run, answered.path)
    if result.text is not None:
        rows.keep_texts(session, (result.text,))


def _write_step(session: Session, plan: CommitPlan, new: NewStep, decision: DecidedStep) -> int:
    """Insert the row of a step that is begun, open, or answered at once, and return its id."""
    if decision.grant is not None:
        insert_grant(session, plan.run, decision.grant, plan.at)
    reservation, answer = decision.reservation, decision.answer
    begun = None if answer is not None or decision.is_open or reservation is None else encode_units(reservation.held)
    sent = _encode_sent(decision.sent) if new.kind == "call" else encode(decision.sent)
    call = None if new.call is None else encode(new.call)
    step = plan.run, new.path, new.kind, new.digest, plan.fence, plan.at, call, new.judged
    step_id = session.insert(_INSERT_STEP, (*step, begun, sent, encode_shared(decision.shared_accounts), plan.run))
    if new.approval_request is not None:
        approvals.add_approval(session, plan.run, step_id, new.approval_request, plan.at)
    elif new.reused_approval is not None:
        approvals.record_reused(session, plan.run, step_id, new.reused_approval, plan.at)
    if answer is not None:
        insert_answer(session, step_id, StepResult(answer, decision.spent), decision.by_route, plan.at)
    return step_id


@lru_cache(maxsize=16)  # those of calls are all alike
def _encode_sent(sent: Sent) -> str:
    return encode(sent)


def _write_attempt(session: Session, plan: CommitPlan, attempt: NewAttempt, decision: DecidedStep) -> None:
    """Write how the attempt before ended, and the row of the further one; or the refusal with which the step ends."""
    if decision.arrived:
        return
    if not attempt.request.counts_only:
        tool_intents.forget_call(session, plan.run, attempt.path)
    if decision.reservation is None:
        assert decision.answer is not None, "a limit refuses it"
        result = StepResult(decision.answer, decision.lost, exactness="bounded")
        insert_answer(session, attempt.step_id, result, SERVER_ROUTE, plan.at)
        client_completions.record_charge(session, attempt.withdrawn_requests, client_completions.CHARGED_TO_ANSWER)
        return
    bindings = (
        *(attempt.step_id, plan.fence, plan.at, encode_units(decision.reservation.held), encode(decision.sent)),
        *(encode_units(decision.lost), attempt.previous.reason),
        *(decision.is_open, encode_shared(decision.shared_accounts)),
    )
    if not attempt.withdrawn_requests:
        session.rows(_INSERT_ATTEMPT, bindings)  # nobody waits for its number
    else:
        number = session.insert(_INSERT_ATTEMPT, bindings)
        client_completions.record_charge(session, attempt.withdrawn_requests, number)
    if decision.grant is not None:
        insert_grant(session, plan.run, decision.grant, plan.at)
    if decision.answer is not None:
        result = StepResult(decision.answer, decision.spent)
        insert_answer(session, attempt.step_id, result, decision.by_route, plan.at)


def has_arrivals(session: Session, run: int, waiting: Sequence[int]) -> bool:
    """Whether something came that the owner has not seen.

    That is a control request, an answer for one of these open steps, or a withdrawn request that is to be charged.
    """
    if session.row("select 1 from inbox where run = ? and taken is null limit 1", (run,)):
        return True
    return bool(client_completions.list_uncharged(session, run)) or any(
        session.row("select 1 from answer where step = ?", (step_id,)) is not None for step_id in waiting
    )


def release_run(session: Session, plan: CommitPlan) -> bool:
    """Release the run, unless something came for it; return whether it was released. Raises FenceLost."""
    read_owned_account(session, plan)
    if has_arrivals(session, plan.run, plan.open_step_ids):
        return False
    session.rows(_RELEASE, (plan.run,))
    return True
