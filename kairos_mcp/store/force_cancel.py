"""Cancel a run whose rows can't be read, or whose account is not their sum, without replaying its flow.

Steps that can be read are settled as always. The others are charged with all that the run's account still holds, so
that nothing that may have been spent is spent again. What they hold in shared accounts is unknown, and stays held.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress

from kairos_mcp.budget.ledger import NO_SHARED_ACCOUNTS, SharedAccountIds
from kairos_mcp.budget.reservation import shared_part
from kairos_mcp.core.errors import FenceLost, Unreadable
from kairos_mcp.core.limits import NOTHING, Units
from kairos_mcp.core.messages import Exactness
from kairos_mcp.core.routes import SERVER_ROUTE
from kairos_mcp.core.steps import Answer
from kairos_mcp.store import approvals, tool_intents
from kairos_mcp.store.accounts import (
    read_account,
    read_branch_accounts,
    unit_columns,
)
from kairos_mcp.store.commit import AnsweredStep, DroppedStep, StepResult
from kairos_mcp.store.inbox import insert_answer
from kairos_mcp.store.queries import RunRow, StepRow, read_record
from kairos_mcp.store.rows import Session

_ADD_SPENT = ", ".join(f"{name} = {name} + ?" for name in unit_columns("spent"))
_END_ACCOUNT = (
    f"update account set {_ADD_SPENT}, {', '.join(f'{name} = 0' for name in unit_columns('held'))} where id = ?"
)
_SETTLE_SHARED = "update account set {} where id = :account".format(
    ", ".join(
        (
            *(f"{name} = {name} + :{name}" for name in unit_columns("spent")),
            *(f"{name} = case when {name} > :{name} then {name} - :{name} else 0 end" for name in unit_columns("held")),
        )
    )
)


def force_cancel(
    session: Session,
    run: RunRow,
    fence: int,
    at: int,
    outcome: str,
    answer_for: Callable[[str], Answer],
    known_answers: Mapping[int, AnsweredStep],
) -> None:
    """End the run with this outcome. Raises FenceLost.

    `answer_for`: gives the answer of a begun step of a kind. `known_answers`: those that have come and are not in rows
    yet, by the step's id.
    """
    if session.row("select 1 from run where n = ? and fence = ? and outcome is null", (run.n, fence)) is None:
        raise FenceLost(run.id)
    for step in (ended := list(_end_steps(session, run, answer_for, known_answers))):
        if isinstance(step, AnsweredStep):
            insert_answer(session, step.step_id, step.result, step.by_route, at)
    _settle_accounts(session, run, ended)
    tool_intents.forget_calls(session, run.n)
    end = "update run set outcome = ?, ended_at = ?, owner = null where n = ?"
    session.rows(end, (outcome, at, run.n))
    approvals.ask_queued(session, run.n, at)


def _end_steps(
    session: Session,
    run: RunRow,
    answer_for: Callable[[str], Answer],
    known_answers: Mapping[int, AnsweredStep],
) -> Iterator[AnsweredStep | DroppedStep]:
    """Answer the unanswered steps that were begun, and drop the open ones: first those that can be read, then the
    others, which hold what is left."""
    unreadable, left = [], NOTHING
    with suppress(Unreadable):  # it is gone
        left = read_account(session, run.account).held
    for step in read_record(session, run.n):
        if step.body is not None:
            continue
        held, shared = _read_hold(step)
        if (known := known_answers.get(step.id)) is not None:
            yield known
            left = left.minus(known.held)
        elif held is None:
            unreadable.append((step, shared))
        else:
            yield _end_step(step, held, shared, answer_for)
            left = left.minus(held)
    for step, shared in unreadable:
        yield _end_step(step, Units(*(max(0, amount) for amount in left)), shared, answer_for)
        left = NOTHING if not step.is_open else left


def _read_hold(step: StepRow) -> tuple[Units | None, SharedAccountIds]:
    try:
        shared = step.shared_accounts
    except Unreadable:
        shared = NO_SHARED_ACCOUNTS  # unknown, so it stays held there
    try:
        return step.held, shared
    except Unreadable:
        return None, shared


def _end_step(
    step: StepRow, held: Units, shared: SharedAccountIds, answer_for: Callable[[str], Answer]
) -> AnsweredStep | DroppedStep:
    if step.is_open:
        return DroppedStep(step.id, step.path, held, shared)
    exactness: Exactness | None = None if step.kind == "call" else "bounded"
    spent = held._replace(milliseconds=0)
    result = StepResult(answer_for(step.kind), spent, exactness=exactness)
    return AnsweredStep(step.id, step.path, result, held, SERVER_ROUTE, shared)


def _settle_accounts(session: Session, run: RunRow, ended: Sequence[AnsweredStep | DroppedStep]) -> None:
    """Release what the run and its branches hold, and what these steps held of shared accounts; charge what they cost.

    An account that is not there is skipped.
    """
    for prefix, number in {"": run.account, **read_branch_accounts(session, run.account)}.items():
        within = f"{prefix}/" if prefix else ""
        spent = NOTHING
        for step in ended:
            if isinstance(step, AnsweredStep) and step.path.startswith(within):
                spent = spent.plus(step.result.spent)
        session.rows(_END_ACCOUNT, (*spent, number))
    for step in ended:
        cost = shared_part(step.result.spent if isinstance(step, AnsweredStep) else NOTHING)
        for number in step.shared_accounts:
            amounts = zip(unit_columns("spent", "held"), (*cost, *shared_part(step.held)), strict=True)
            session.rows(_SETTLE_SHARED, {"account": number, **dict(amounts)})
