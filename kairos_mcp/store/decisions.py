"""The jobs by which an approval gets its one verdict: a person's, or the clock's.

The verdict is set by a conditional update, so that of several decisions one is first. With it goes a deposit of kind
`verdict`, by which the run's owner learns of it, or whoever goes on with the run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import apsw

from kairos_mcp.core.errors import AlreadyAnswered, ApprovalExpired, ApprovalMismatch, NotWaiting
from kairos_mcp.store import approvals, settlements
from kairos_mcp.store.approvals import LAPSED, at_key
from kairos_mcp.store.connection import row, rows
from kairos_mcp.store.inbox import AnswerDeposit, deposit_answers
from kairos_mcp.store.queries import RunRow, run_by_number
from kairos_mcp.store.runs import take
from kairos_mcp.store.settlements import SettlementRequest

Said = Literal["approve", "deny"]
NOBODY_SAID = ("", "", "")


@dataclass(frozen=True, slots=True)
class Decision:
    """What somebody decided: about which key, having seen what (its digest), and who they are: principal, through
    what, with which client."""

    key: str
    said: Said
    digest: str
    who: tuple[str, str, str]
    feedback: str | None = None


def decide(
    connection: apsw.Connection,
    run: RunRow,
    decisions: Sequence[Decision],
    owner: int,
    at: int,
    *,
    dead: Sequence[int] = (),
) -> int | None:
    """Record the decisions, all or none; own the run if nobody living does, and give the fence then.

    The same decision again is no error. Raises NotWaiting, ApprovalMismatch, ApprovalExpired, AlreadyAnswered.
    """
    fresh = check(connection, run, decisions, at)
    record(connection, run, fresh, at)
    return take(connection, run.n, owner, dead) if fresh else None


def leave(
    connection: apsw.Connection,
    run: RunRow,
    deposits: Sequence[AnswerDeposit],
    decisions: Sequence[Decision],
    by: str,
    owner: int,
    at: int,
    *,
    dead: Sequence[int] = (),
    settled: Sequence[SettlementRequest] = (),
    who: tuple[str, str, str] = NOBODY_SAID,
) -> int | None:
    """Record answers of steps, decisions, and what `who` said of lost calls together, all or none. Raises as `deposit`,
    `decide` and `settling.check` do."""
    fresh = check(connection, run, decisions, at)
    unsettled = [each for each in settled if settlements.must_record(connection, run, each, who[0])]
    fence = deposit_answers(connection, run, deposits, by, owner, at, dead=dead)
    record(connection, run, fresh, at)
    for each in unsettled:
        settlements.record_settlement(connection, run, each, who, at)
    return take(connection, run.n, owner, dead) if (fresh or unsettled) and fence is None else fence


def check(connection: apsw.Connection, run: RunRow, decisions: Sequence[Decision], at: int) -> list[Decision]:
    """The decisions that are still to be recorded; writes nothing. Raises as `decide` does."""
    return [each for each in decisions if _is_fresh(connection, run, each, at)]


def record(connection: apsw.Connection, run: RunRow, decisions: Sequence[Decision], at: int) -> None:
    """Write decisions that were checked in this transaction."""
    for each in decisions:
        _settle(connection, run.n, each.key, each.said, each.who, each.feedback, at)


def still_open(connection: apsw.Connection, run: RunRow, decisions: Sequence[Decision], at: int) -> list[Decision]:
    """Those that still count; what came too late, or twice, is passed over. Writes nothing."""

    def counts(each: Decision) -> bool:
        try:
            return _is_fresh(connection, run, each, at)
        except (NotWaiting, ApprovalMismatch, ApprovalExpired, AlreadyAnswered):
            return False

    return [each for each in decisions if counts(each)]


def _is_fresh(connection: apsw.Connection, run: RunRow, given: Decision, at: int) -> bool:
    """Whether the decision is to be recorded; False where the same one was."""
    now, found = run_by_number(connection, run.n), at_key(connection, run.n, given.key)
    if found is None or now.principal != given.who[0]:
        raise _not_waiting(run, given.key)
    if found.digest != given.digest:
        raise ApprovalMismatch(
            "The decision is about something else than what waits under this key.",
            "Look at its preview again, and send the digest that stands beside it.",
            run_id=run.id,
        )
    if found.unasked and found.verdict is None:
        raise _not_waiting(run, given.key)  # nobody was shown it
    if found.verdict == given.said:
        return False
    if found.verdict == "expired" or (found.verdict is None and found.expires_at <= at):
        late = "The approval has expired; the call was not made."
        raise ApprovalExpired(late, "run_status shows where the run stands.", run_id=run.id)
    if found.verdict is not None:
        other = f"{given.key!r} was decided before, otherwise."
        raise AlreadyAnswered(other, "run_status shows where the run stands.", run_id=run.id)
    answered = row(connection, "select 1 from answer where mark = ?", (found.mark,))
    if now.outcome is not None or answered is not None:
        raise _not_waiting(run, given.key)
    return True


def _not_waiting(run: RunRow, key: str) -> NotWaiting:
    return NotWaiting(f"No approval waits under {key[:120]!r}.", "run_status shows what waits now.", run_id=run.id)


def due(connection: apsw.Connection, at: int) -> bool:
    """Whether there is an approval that nobody decided about in time."""
    return next(_late(connection, at), None) is not None


def expire(connection: apsw.Connection, at: int) -> int:
    """Give the verdict `expired` where the time is over, and pause each run: its step stays open, and is asked about
    anew when the run is resumed. Gives their number."""
    late = list(_late(connection, at))
    for n, key in late:
        _settle(connection, n, key, "expired", ("", "clock", ""), None, at)
        rows(connection, "update run set paused = ?, resume_at = null where n = ?", (LAPSED, n))
    return len(late)


def _late(connection: apsw.Connection, at: int) -> Iterator[tuple[int, str]]:
    found = rows(
        connection,
        "select approval.run, approval.key from approval join run on run.n = approval.run"
        " where verdict is null and not unasked and expires_at <= ? and outcome is null order by expires_at",
        (at,),
    )
    return ((n, key) for n, key in found)


def _settle(
    connection: apsw.Connection,
    n: int,
    key: str,
    verdict: str,
    who: tuple[str, str, str],
    feedback: str | None,
    at: int,
) -> None:
    principal, via, client = who
    first = rows(
        connection,
        "update approval set verdict = ?, by = ?, through = ?, client = ?, feedback = ?, decided_at = ?"
        " where run = ? and key = ? and verdict is null returning mark",
        (verdict, principal, via, client, feedback, at, n, key),
    )
    if first:
        rows(
            connection,
            "insert into deposit(run, kind, body, principal, via, client, at) values (?, 'verdict', ?, ?, ?, ?, ?)",
            (n, key, principal, via, client, at),
        )
        approvals.give_places(connection, n, at)
