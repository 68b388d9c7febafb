"""Write the usual commit of a run in the fewest statements: answers, and the rows of next steps or the run's end.

What it writes was decided before its transaction, on the run's accounts as this process last wrote them. So the first
statements say what that relied on: each account's row has still those amounts, and the run still this owner and fence.
Where that, or the room in a shared account, does not hold, nothing is written, and `apply_run_commit` decides on what
it reads. Both leave the same rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

from kairos_mcp.budget.reservation import Reservation
from kairos_mcp.budget.units import NOTHING, Account, Units
from kairos_mcp.core.messages import ToolResult
from kairos_mcp.core.steps import Sent
from kairos_mcp.store import tool_memory
from kairos_mcp.store.accounts import SharedAccountIds, encode_shared, unit_columns
from kairos_mcp.store.apply_commit import INSERT_MARK, end_run, insert_answer
from kairos_mcp.store.codec import encode, encode_units
from kairos_mcp.store.commit import AnsweredStep
from kairos_mcp.store.reservations import UPDATE_AMOUNTS, SharedChange
from kairos_mcp.store.session import Session

_UPDATE_IF_KNOWN = f"""
    {UPDATE_AMOUNTS} and {" and ".join(f"{name} = ?" for name in unit_columns("held", "spent"))}
        and exists (select 1 from run where n = ? and owner = ? and fence = ? and outcome is null)
"""


class AccountChange(NamedTuple):
    """An account as this process last wrote it, and as it is to be after a commit."""

    known: Account
    changed: Account


class BegunStep(NamedTuple):
    """A step that is begun with its row: its grant, and the shared accounts that it is charged to."""

    path: str
    kind: str
    digest: bytes
    sent: Sent
    grant: Reservation
    shared: SharedAccountIds


class UsualCommit(NamedTuple):
    """The answers of steps, and the steps that are begun now or the encoded outcome of the run.

    `at` in milliseconds since 1970. `accounts`: the run's own first, and those of its branches that change, by path.
    `forgets`: tools may have kept what they were about to change.
    """

    run: int
    owner: int
    fence: int
    at: int
    accounts: dict[str, AccountChange]
    answered: Sequence[AnsweredStep]
    forgets: bool
    begun: Sequence[BegunStep]
    outcome: str | None = None


def apply_usual_commit(session: Session, commit: UsualCommit) -> list[int] | None:
    """Write the commit and return the ids of the rows of begun steps. None: nothing was written, since something is
    not as it was known."""
    run, fence, at = commit.run, commit.fence, commit.at
    written: list[AccountChange] = []
    for change in commit.accounts.values():
        known, changed = change
        amounts = *changed.held, *changed.spent, changed.id, *known.held, *known.spent
        if not session.change(_UPDATE_IF_KNOWN, (*amounts, run, commit.owner, fence)):
            _restore(session, written)
            return None
        written.append(change)
    if not _charge_shared(session, commit):
        _restore(session, written)
        return None
    for answered in commit.answered:
        insert_answer(session, answered.mark, answered.result, answered.by_route, at)
        if commit.forgets and isinstance(answered.result.answer, ToolResult):
            tool_memory.forget_call(session, run, answered.path)
    if commit.outcome is not None:
        end_run(session, run, commit.outcome, at, forgets=commit.forgets)
    marks = []
    for path, kind, digest, sent, grant, shared in commit.begun:
        step = run, path, kind, digest, fence, at, encode_units(grant.held), _encode_sent(sent)
        marks.append(session.insert(INSERT_MARK, (*step, encode_shared(shared))))
    return marks


def _restore(session: Session, written: Iterable[AccountChange]) -> None:
    """Write the amounts of these accounts back, within the transaction that changed them."""
    for known, _ in written:
        session.rows(UPDATE_AMOUNTS, (*known.held, *known.spent, known.id))


@lru_cache(maxsize=16)  # those of calls are all alike
def _encode_sent(sent: Sent) -> str:
    return encode(sent)


def _charge_shared(session: Session, commit: UsualCommit) -> bool:
    """Settle and reserve in the accounts that runs share. False: one of them has no room, and all are as they were."""
    changes: dict[int, SharedChange] = {}
    reserved: dict[int, Units] = {}
    for answered in commit.answered:
        for number in answered.shared:
            settled = SharedChange(NOTHING.minus(answered.held), answered.result.spent)
            changes[number] = changes[number].plus(settled) if number in changes else settled
    for begun in commit.begun:
        for number in begun.shared:
            held = begun.grant.held
            reserved[number] = reserved[number].plus(held) if number in reserved else held
            changes[number] = changes[number].plus(SharedChange(held)) if number in changes else SharedChange(held)
    written: list[tuple[int, SharedChange]] = []
    for number, change in sorted(changes.items()):
        if number not in reserved:
            change.write(session, number)
        elif not change.write_if_room(session, number, reserved[number]):
            for earlier, done in written:
                done.undone().write(session, earlier)
            return False
        written.append((number, change))
    return True
