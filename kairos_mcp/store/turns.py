"""A turn: what one commit says of a run. Answers in, amounts settled, the next marks granted or refused, the outcome.

Everything here runs inside one transaction, in the order of ENGINE's figures: the fence first, refusals before writes,
so that turns of many runs can share a commit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import apsw

from kairos_mcp.budget import NOTHING, Account, Claim, Grant, Units, grant
from kairos_mcp.errors import FenceLost, StoreCorrupt
from kairos_mcp.messages import Exactness
from kairos_mcp.steps import Answer, Limits, Refused, Sent
from kairos_mcp.store.codec import encode, encode_answer, encode_units
from kairos_mcp.store.connection import Row, row, rows


@dataclass(frozen=True, slots=True)
class Settled:
    """The answer of a mark, what it held, and what it turned out to cost."""

    mark: int
    answer: Answer
    held: Units
    spent: Units
    by: str
    cached: int = 0
    exactness: Exactness | None = None


@dataclass(frozen=True, slots=True)
class NewMark:
    """A step to be marked. With an `answer` it is known already (a refused call): marked and answered at once."""

    path: str
    kind: str
    digest: bytes
    claim: Claim
    sent: Sent
    answer: Answer | None = None


@dataclass(frozen=True, slots=True)
class Retry:
    """A further attempt at a mark. The one before ended as `ended` and lets go of `freed`, a part of `held`; it
    stays charged with `lost`."""

    mark: int
    claim: Claim
    sent: Sent
    held: Units
    freed: Units
    lost: Units
    ended: str


@dataclass(frozen=True, slots=True)
class Turn:
    """What one commit says of a run. `park`: nothing runs any more, let go of it if all new marks are open and
    nobody has left a wish, or an answer for one of the marks in `waiting`, in the meantime. `released`: open marks,
    and what they hold, that nobody needs any more; one that was answered in the meantime holds nothing."""

    run: int
    run_id: str
    owner: int
    fence: int
    account: int
    at: int
    answers: tuple[Settled, ...] = ()
    marks: tuple[NewMark, ...] = ()
    retries: tuple[Retry, ...] = ()
    notes: tuple[str, ...] = ()
    texts: tuple[tuple[str, str], ...] = ()
    released: tuple[tuple[int, Units], ...] = ()
    outcome: str | None = None
    park: bool = False
    waiting: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Marked:
    """A mark as it was committed: its grant, or the answer that it got at once (a limit, or one that was known)."""

    mark: int
    grant: Grant | None
    answer: Answer | None
    sent: Sent


@dataclass(frozen=True, slots=True)
class Committed:
    """`marks` in the order of the turn, retries first; `parked`: the run was let go of; `account` as it is now."""

    marks: tuple[Marked, ...]
    parked: bool
    account: Account


_COLUMNS = ", ".join(f"{kind}_{unit}" for kind in ("cap", "held", "spent") for unit in Units._fields)
_READ_ACCOUNT = f"select {_COLUMNS} from account where id = ?"
_READ_OWNED = f"""
    select owner, fence, outcome is null, {_COLUMNS} from run join account on account.id = run.account where n = ?
"""
_CHANGES = ", ".join(f"{kind}_{unit} = {kind}_{unit} + ?" for kind in ("held", "spent") for unit in Units._fields)
_CHANGE_ACCOUNT = f"update account set {_CHANGES} where id = ?"
_N = len(Units._fields)


def read_account(connection: apsw.Connection, account: int) -> Account:
    found = row(connection, _READ_ACCOUNT, (account,))
    if found is None:
        raise StoreCorrupt("A run has no account.", "Run `kairos-mcp doctor`.")
    return _account(account, found)


def _account(number: int, columns: Row) -> Account:
    return Account(number, Limits(*columns[:_N]), Units(*columns[_N : 2 * _N]), Units(*columns[2 * _N :]))


def change_account(connection: apsw.Connection, account: int, held: Units, spent: Units) -> None:
    """Add to what is held and spent; amounts may be negative."""
    if any(held) or any(spent):
        rows(connection, _CHANGE_ACCOUNT, (*held, *spent, account))


def owned_account(connection: apsw.Connection, turn: Turn) -> Account:
    """The account of a run that is still ours. Raises FenceLost where another server has taken it, or it has ended."""
    found = row(connection, _READ_OWNED, (turn.run,))
    if found is None or found[:3] != (turn.owner, turn.fence, 1):
        raise FenceLost(turn.run_id)
    return _account(turn.account, found[3:])


def apply(connection: apsw.Connection, turn: Turn) -> Committed:
    """Write the turn. Raises FenceLost before anything is written."""
    ledger = _Ledger(owned_account(connection, turn))
    for settled in turn.answers:
        insert_answer(connection, settled, turn.at)
        ledger.settle(settled.held, settled.spent)
    for mark, held in turn.released:
        if not _is_answered(connection, mark):
            ledger.settle(held, NOTHING)
    marked = [_retry(connection, turn, retry, ledger) for retry in turn.retries]
    marked += [_mark(connection, turn, new, ledger) for new in turn.marks]
    for text in turn.texts:
        rows(connection, "insert or ignore into text(hash, body) values (?, ?)", text)
    for note in turn.notes:
        rows(connection, "insert or ignore into note(run, text) values (?, ?)", (turn.run, note))
    change_account(connection, turn.account, *ledger.changes)
    quiet = turn.park and all(each.answer is None for each in marked)
    parked = quiet and not somebody_came(connection, turn.run, turn.waiting)
    if turn.outcome is not None:
        end = "update run set outcome = ?, ended_at = ?, owner = null where n = ?"
        rows(connection, end, (turn.outcome, turn.at, turn.run))
    elif parked:
        rows(connection, "update run set owner = null where n = ?", (turn.run,))
    return Committed(tuple(marked), parked or turn.outcome is not None, ledger.account)


def somebody_came(connection: apsw.Connection, run: int, waiting: Sequence[int]) -> bool:
    """Whether a wish, or an answer for one of these open marks, was left that the owner has not seen."""
    if row(connection, "select 1 from deposit where run = ? and taken is null limit 1", (run,)):
        return True
    return any(_is_answered(connection, mark) for mark in waiting)


def _is_answered(connection: apsw.Connection, mark: int) -> bool:
    return row(connection, "select 1 from answer where mark = ?", (mark,)) is not None


def let_go(connection: apsw.Connection, turn: Turn) -> bool:
    """Own the run no longer, unless somebody came; what it waits for is in its rows. Raises FenceLost."""
    owned_account(connection, turn)
    if somebody_came(connection, turn.run, turn.waiting):
        return False
    rows(connection, "update run set owner = null where n = ?", (turn.run,))
    return True


def insert_answer(connection: apsw.Connection, settled: Settled, at: int) -> None:
    rows(
        connection,
        "insert into answer(mark, at, body, spent, cached, exactness, by_route) values (?, ?, ?, ?, ?, ?, ?)",
        (
            settled.mark,
            at,
            encode_answer(settled.answer),
            encode_units(settled.spent),
            settled.cached,
            settled.exactness,
            settled.by,
        ),
    )


class _Ledger:
    """The account as this turn leaves it: grants see what the turn itself has settled and held."""

    def __init__(self, account: Account) -> None:
        self._before = account
        self._held, self._spent = account.held, account.spent

    @property
    def account(self) -> Account:
        return Account(self._before.id, self._before.caps, self._held, self._spent)

    @property
    def changes(self) -> tuple[Units, Units]:
        """What the turn adds to held and to spent."""
        return self._held.minus(self._before.held), self._spent.minus(self._before.spent)

    def settle(self, held: Units, spent: Units) -> None:
        self._held, self._spent = self._held.minus(held), self._spent.plus(spent)

    def hold(self, claim: Claim) -> Grant | Refused:
        leave = grant(self.account, claim)
        if isinstance(leave, Grant):
            self._held = self._held.plus(leave.held)
        return leave


def _mark(connection: apsw.Connection, turn: Turn, new: NewMark, ledger: _Ledger) -> Marked:
    leave = ledger.hold(new.claim)
    granted = leave if isinstance(leave, Grant) else None
    answer = new.answer if granted else leave
    begun = granted is not None and not new.claim.open_step and answer is None
    sent = _with_grant(new.sent, granted) if granted else replace(new.sent, line=None)
    rows(
        connection,
        "insert into mark(run, path, kind, digest, fence, at, held, sent) values (?, ?, ?, ?, ?, ?, ?, ?)",
        (
            turn.run,
            new.path,
            new.kind,
            new.digest,
            turn.fence,
            turn.at,
            encode_units(granted.held) if begun and granted else None,
            encode(sent),
        ),
    )
    mark = connection.last_insert_rowid()
    if answer is not None and not isinstance(answer, Grant):
        spent = granted.held._replace(milliseconds=0) if granted else NOTHING
        insert_answer(connection, Settled(mark, answer, NOTHING, spent, "house"), turn.at)
        if granted:
            ledger.settle(granted.held, spent)
        return Marked(mark, granted, answer, sent)
    return Marked(mark, granted, None, sent)


def _retry(connection: apsw.Connection, turn: Turn, retry: Retry, ledger: _Ledger) -> Marked:
    """Charge the lost attempt, then hold anew; refused, the mark is answered with the refusal."""
    ledger.settle(retry.freed, retry.lost)
    leave = ledger.hold(retry.claim)
    if isinstance(leave, Refused):
        kept = retry.held.minus(retry.freed)
        insert_answer(
            connection, Settled(retry.mark, leave, NOTHING, retry.lost, "house", exactness="bounded"), turn.at
        )
        ledger.settle(kept, NOTHING)
        return Marked(retry.mark, None, leave, retry.sent)
    sent = _with_grant(retry.sent, leave)
    rows(
        connection,
        "insert into attempt(mark, fence, at, held, sent, lost, ended, handed_out) values (?, ?, ?, ?, ?, ?, ?, ?)",
        (
            retry.mark,
            turn.fence,
            turn.at,
            encode_units(leave.held),
            encode(sent),
            encode_units(retry.lost),
            retry.ended,
            retry.claim.open_step,
        ),
    )
    return Marked(retry.mark, leave, None, sent)


def _with_grant(sent: Sent, granted: Grant | None) -> Sent:
    if granted is None or not granted.max_tokens:
        return sent
    return Sent(sent.route, sent.model, granted.max_tokens, sent.tail, sent.line, sent.temperature)
