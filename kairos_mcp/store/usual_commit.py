"""Write the usual commit of a run in the fewest statements: answers, and the rows of next steps or the run's end.

What it writes was decided before its transaction, on the run's accounts as this process last wrote them. So the first
statements say what that relied on: each account's row has still those amounts, and the run still this owner and fence
(or is parked still, where it is taken with the commit); for a run that is let go of, also that nothing has come for it.
Where that, or the room in a shared account, does not hold, nothing is written, and `apply_run_commit` decides on what
it reads. Both leave the same rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache, lru_cache
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
from kairos_mcp.store.joined_commit import ParkedRun
from kairos_mcp.store.queries import RunRow
from kairos_mcp.store.reservations import NO_CHANGE, UPDATE_AMOUNTS, SharedChange, exceeds_held
from kairos_mcp.store.session import Session

_UPDATE_IF_KNOWN = f"{UPDATE_AMOUNTS} and {' and '.join(f'{name} = ?' for name in unit_columns('held', 'spent'))}"
_OWNED = "select 1 from run where n = ? and owner = ? and fence = ? and outcome is null"
_NOTHING_CAME = "not exists (select 1 from deposit where deposit.run = run.n and taken is null)"
_RELEASE = "update run set owner = null, news_seq = seq where n = ?"  # what is handed out is news
_TOKENS_AND_MONEY = Units(input_tokens=1, output_tokens=1, total_tokens=1, nano_usd=1)
_LIMITS_HANDED_OUT = Units(model_calls=1, input_tokens=1, output_tokens=1, total_tokens=1)


class AccountChange(NamedTuple):
    """An account as this process last wrote it, and as it is to be after a commit."""

    known: Account
    changed: Account


class BegunStep(NamedTuple):
    """A step that is begun with its row: its grant, and the shared accounts that it is charged to. `is_open`: it is
    handed out."""

    path: str
    kind: str
    digest: bytes
    sent: Sent
    grant: Reservation
    shared: SharedAccountIds
    is_open: bool = False


class UsualCommit(NamedTuple):
    """The answers of steps, and the steps that are begun now or the encoded outcome of the run.

    `at` in milliseconds since 1970. `accounts`: the run's own first, and those of its branches that change, by path.
    `forgets`: tools may have kept what they were about to change. `begun`: all of them are handed out, or none.
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

    @property
    def hands_out(self) -> bool:
        """Whether its steps are handed out, and the run is let go of."""
        return bool(self.begun) and self.begun[0].is_open


WrittenTurn = tuple[UsualCommit, list[int]]
"""A usual commit that was written, and the ids of the rows of the steps that it begins."""


def apply_usual_commit(session: Session, commit: UsualCommit, parked: ParkedRun | None = None) -> list[int] | None:
    """Write the commit and return the ids of the rows of begun steps. None: nothing was written, since something is
    not as it was known.

    `parked`: the run, which is taken in this transaction.
    """
    run, fence, at = commit.run, commit.fence, commit.at
    condition, bindings = (_OWNED, (run, commit.owner, fence)) if parked is None else parked.condition
    update = _update_while(f"{condition} and {_NOTHING_CAME}" if commit.hands_out else condition)
    written: list[AccountChange] = []
    for change in commit.accounts.values():
        known, changed = change
        amounts = *changed.held, *changed.spent, changed.id, *known.held, *known.spent
        if not session.change(update, (*amounts, *bindings)):
            _restore(session, written)
            return None
        written.append(change)
    if not _charge_shared(session, commit):
        _restore(session, written)
        return None
    if parked is not None:
        parked.take(session, commit.owner, at)
    for answered in commit.answered:
        insert_answer(session, answered.mark, answered.result, answered.by_route, at)
        if commit.forgets and isinstance(answered.result.answer, ToolResult):
            tool_memory.forget_call(session, run, answered.path)
    if commit.outcome is not None:
        end_run(session, run, commit.outcome, at, forgets=commit.forgets)
    marks = []
    for path, kind, digest, sent, grant, shared, is_open in commit.begun:
        held = None if is_open else encode_units(grant.held)
        step = run, path, kind, digest, fence, at, held, _encode_sent(sent)
        marks.append(session.insert(INSERT_MARK, (*step, encode_shared(shared))))
    if commit.hands_out:
        session.rows(_RELEASE, (run,))
    return marks


def apply_first_turn(session: Session, run: RunRow, first: UsualCommit) -> WrittenTurn | None:
    """Write the first turn of a run that was inserted in this transaction: it was planned before the run and its
    account had their numbers. None: nothing was written, since a shared account has no room."""
    known, changed = first.accounts[""]
    own = AccountChange(known._replace(id=run.account), changed._replace(id=run.account))
    commit = first._replace(run=run.n, accounts={"": own})
    marks = apply_usual_commit(session, commit)
    return None if marks is None else (commit, marks)


@cache
def _update_while(condition: str) -> str:
    """SQL that writes an account which is as it was known, while the run is as `condition` says."""
    return f"{_UPDATE_IF_KNOWN} and exists ({condition})"


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
    limited: dict[int, Units] = {}
    for answered in commit.answered:
        held, spent = answered.held, answered.result.spent
        for number in answered.shared:
            changes[number] = changes.get(number, NO_CHANGE).plus(SharedChange(NOTHING.minus(held), spent))
            if exceeds_held(held, spent):
                limited[number] = limited.get(number, NOTHING).plus(_TOKENS_AND_MONEY)
    for begun in commit.begun:
        held = begun.grant.held
        for number in begun.shared:
            changes[number] = changes.get(number, NO_CHANGE).plus(SharedChange(held))
            limits = _LIMITS_HANDED_OUT if begun.is_open else held
            limited[number] = limited.get(number, NOTHING).plus(limits)
    spare = 1 if commit.hands_out else 0  # what is handed out holds no tokens, but needs that some are left
    written: list[tuple[int, SharedChange]] = []
    for number, change in sorted(changes.items()):
        if number not in limited:
            change.write(session, number)
        elif not change.write_if_room(session, number, limited[number], spare=spare):
            for earlier, done in written:
                done.undone().write(session, earlier)
            return False
        written.append((number, change))
    return True
