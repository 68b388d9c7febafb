"""Ends a run whose rows can't be read, or don't fit its account: no flow is folded, no amount is believed twice.

What can be read is settled as ever. What can't is charged with all that the run's account held beyond it, so that
nothing that may have been spent is spent again; whatever nobody can tell stays held in the accounts that runs share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import apsw

from kairos_mcp.budget.units import NOTHING, Units, shared_part
from kairos_mcp.core.errors import FenceLost, Unreadable
from kairos_mcp.core.messages import Exactness
from kairos_mcp.core.routes import SERVER_ROUTE
from kairos_mcp.core.steps import Answer
from kairos_mcp.store import approvals, branches, tool_memory
from kairos_mcp.store.accounts import NOT_SHARED, Shared, amounts, read_account
from kairos_mcp.store.apply_commit import insert_answer
from kairos_mcp.store.commit import AnsweredStep
from kairos_mcp.store.connection import row, rows
from kairos_mcp.store.queries import RunRow, StepRow, read_record

_SPENT = ", ".join(f"{name} = {name} + ?" for name in amounts("spent"))
_END = f"update account set {_SPENT}, {', '.join(f'{name} = 0' for name in amounts('held'))} where id = ?"
_SHARE = f"update account set {_SPENT}, {', '.join(f'{name} = max(0, {name} - ?)' for name in amounts('held'))}"


class AbandonedStep(NamedTuple):
    """A step that nobody goes on with: what it held, as far as its row tells, and its answer if it was begun."""

    path: str
    held: Units
    shared: Shared
    settled: AnsweredStep | None = None


def break_off(
    connection: apsw.Connection,
    run: RunRow,
    fence: int,
    at: int,
    outcome: str,
    stopped: Callable[[str], Answer],
    known: Mapping[int, AnsweredStep],
) -> None:
    """End the run with this outcome. `stopped` answers a begun step by its kind; `known`: answers that have come and
    are not in the rows, by mark. Raises FenceLost."""
    if row(connection, "select 1 from run where n = ? and fence = ? and outcome is null", (run.n, fence)) is None:
        raise FenceLost(run.id)
    for each in (ended := list(_ended(connection, run, stopped, known))):
        if each.settled is not None:
            insert_answer(connection, each.settled, at)
    _settle(connection, run, ended)
    tool_memory.forget_calls(connection, run.n)
    end = "update run set outcome = ?, ended_at = ?, owner = null where n = ?"
    rows(connection, end, (outcome, at, run.n))
    approvals.give_places(connection, run.n, at)


def _ended(
    connection: apsw.Connection, run: RunRow, stopped: Callable[[str], Answer], known: Mapping[int, AnsweredStep]
) -> Iterator[AbandonedStep]:
    """The steps without an answer: those that say what they hold first, then the others, which hold the rest."""
    untold, left = [], _held_by(connection, run)
    for step in read_record(connection, run.n):
        if step.body is not None:
            continue
        held, shared = _told(step)
        if (came := known.get(step.id)) is not None:
            yield AbandonedStep(step.path, came.held, came.shared, came)
            left = left.minus(came.held)
        elif held is None:
            untold.append((step, shared))
        else:
            yield _stopped(step, held, shared, stopped)
            left = left.minus(held)
    for step, shared in untold:
        yield _stopped(step, Units(*(max(0, amount) for amount in left)), shared, stopped)
        left = NOTHING if not step.is_open else left


def _told(step: StepRow) -> tuple[Units | None, Shared]:
    try:
        shared = step.shared
    except Unreadable:
        shared = NOT_SHARED  # nobody knows where it is held: there it stays held
    try:
        return step.held, shared
    except Unreadable:
        return None, shared


def _stopped(step: StepRow, held: Units, shared: Shared, stopped: Callable[[str], Answer]) -> AbandonedStep:
    if step.is_open:
        return AbandonedStep(step.path, held, shared)
    exactness: Exactness | None = None if step.kind == "call" else "bounded"
    spent = held._replace(milliseconds=0)
    settled = AnsweredStep(step.id, step.path, stopped(step.kind), held, spent, SERVER_ROUTE, 0, exactness, shared)
    return AbandonedStep(step.path, held, shared, settled)


def _held_by(connection: apsw.Connection, run: RunRow) -> Units:
    try:
        return read_account(connection, run.account).held
    except Unreadable:
        return NOTHING  # it is gone


def _settle(connection: apsw.Connection, run: RunRow, ended: list[AbandonedStep]) -> None:
    """The run and its branches hold nothing any more; shared accounts let go of what these steps held. An account that
    is gone is told nothing."""
    for prefix, number in {"": run.account, **branches.of_run(connection, run.account)}.items():
        within = f"{prefix}/" if prefix else ""
        spent = NOTHING
        for each in ended:
            if each.settled is not None and each.path.startswith(within):
                spent = spent.plus(each.settled.spent)
        rows(connection, _END, (*spent, number))
    for each in ended:
        cost = shared_part(each.settled.spent if each.settled is not None else NOTHING)
        for number in each.shared:
            rows(connection, f"{_SHARE} where id = ?", (*cost, *shared_part(each.held), number))
