"""Write the usual commit of a run in the fewest statements: one answer, and the next step's row or the run's end.

What it writes was decided before its transaction, on the run's account as this process last wrote it. So the first
statement says what that relied on: the account's row has still those amounts, and the run still this owner and fence.
Where that, or the room in a shared account, does not hold, nothing is written, and `apply_run_commit` decides on what
it reads. Both leave the same rows.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from kairos_mcp.budget.reservation import Reservation
from kairos_mcp.budget.units import NOTHING, Account
from kairos_mcp.core.messages import ToolResult
from kairos_mcp.core.steps import Sent
from kairos_mcp.store import tool_memory
from kairos_mcp.store.accounts import NO_SHARED_ACCOUNTS, SharedAccountIds, encode_shared, unit_columns
from kairos_mcp.store.apply_commit import INSERT_MARK, end_run, insert_answer
from kairos_mcp.store.codec import encode, encode_units
from kairos_mcp.store.commit import AnsweredStep
from kairos_mcp.store.reservations import UPDATE_AMOUNTS, SharedChange
from kairos_mcp.store.session import Session

_UPDATE_IF_KNOWN = f"""
    {UPDATE_AMOUNTS} and {" and ".join(f"{name} = ?" for name in unit_columns("held", "spent"))}
        and exists (select 1 from run where n = ? and owner = ? and fence = ? and outcome is null)
"""


class BegunStep(NamedTuple):
    """A step that is begun with its row: its grant, and the shared accounts that it is charged to."""

    path: str
    kind: str
    digest: bytes
    sent: Sent
    grant: Reservation
    shared: SharedAccountIds


class UsualCommit(NamedTuple):
    """The answer of the step before, if there is one, and the step that is begun now or the encoded outcome of the run.

    `at` in milliseconds since 1970. `known`: the run's account as this process last wrote it. `account`: after this
    commit. `forgets`: tools may have kept what they were about to change.
    """

    run: int
    owner: int
    fence: int
    at: int
    known: Account
    account: Account
    answered: AnsweredStep | None
    forgets: bool
    begun: BegunStep | None
    outcome: str | None = None


NOTHING_BEGUN = 0


def apply_usual_commit(session: Session, commit: UsualCommit) -> int | None:
    """Write the commit and return the id of the begun step's row, or NOTHING_BEGUN. None: nothing was written, since
    something is not as it was known."""
    known, account, answered, begun = commit.known, commit.account, commit.answered, commit.begun
    run, fence, at = commit.run, commit.fence, commit.at
    amounts = *account.held, *account.spent, account.id, *known.held, *known.spent
    if not session.change(_UPDATE_IF_KNOWN, (*amounts, run, commit.owner, fence)):
        return None
    shared = begun.shared if begun is not None else NO_SHARED_ACCOUNTS
    if (shared or (answered is not None and answered.shared)) and not _charge_shared(session, answered, begun):
        session.rows(UPDATE_AMOUNTS, (*known.held, *known.spent, known.id))
        return None
    if answered is not None:
        insert_answer(session, answered.mark, answered.result, answered.by_route, at)
        if commit.forgets and isinstance(answered.result.answer, ToolResult):
            tool_memory.forget_call(session, run, answered.path)
    if begun is None:
        end_run(session, run, commit.outcome, at, forgets=commit.forgets)
        return NOTHING_BEGUN
    held, sent = encode_units(begun.grant.held), _encode_sent(begun.sent)
    step = run, begun.path, begun.kind, begun.digest, fence, at, held, sent
    return session.insert(INSERT_MARK, (*step, encode_shared(shared)))


@lru_cache(maxsize=16)  # those of calls are all alike
def _encode_sent(sent: Sent) -> str:
    return encode(sent)


def _charge_shared(session: Session, answered: AnsweredStep | None, begun: BegunStep | None) -> bool:
    """Settle the answered step in the accounts that runs share, and reserve in them for the begun one. False: one of
    them has no room, and all are as they were."""
    written: list[tuple[int, SharedChange]] = []
    settled = answered.shared if answered is not None else ()
    charged = begun.shared if begun is not None else ()
    for number in sorted({*settled, *charged}):
        reserved = begun.grant.held if begun is not None and number in charged else NOTHING
        change = SharedChange(reserved)
        if answered is not None and number in settled:
            change = SharedChange(reserved.minus(answered.held), answered.result.spent)
        if not reserved.model_calls:
            change.write(session, number)
        elif not change.write_if_room(session, number, reserved):
            for earlier, done in written:
                done.undone().write(session, earlier)
            return False
        written.append((number, change))
    return True
