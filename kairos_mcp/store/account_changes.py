"""Write what a ledger says of accounts: those of a run and its branches, and what is due in those that runs share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from operator import attrgetter
from typing import NamedTuple

from kairos_mcp.budget.ledger import Ledger, SharedChange
from kairos_mcp.budget.reservation import Account
from kairos_mcp.core.errors import StoreCorrupt
from kairos_mcp.core.limits import NOTHING, UNITS, Units
from kairos_mcp.store.accounts import (
    NO_BRANCHES,
    BranchAccountIds,
    insert_branch_account,
    read_account,
    unit_columns,
)
from kairos_mcp.store.rows import CorruptRows, Row, Session

UPDATE_AMOUNTS = f"update account set {', '.join(f'{name} = ?' for name in unit_columns('held', 'spent'))} where id = ?"
_RAISE = f"update account set {', '.join(f'{name} = ?' for name in unit_columns('cap', 'held', 'spent'))} where id = ?"
_AS_KNOWN = " and ".join(f"{name} = ?" for name in unit_columns("held", "spent"))
_SHARED_UNITS = [field for field, unit in UNITS.items() if unit.shared]
_shared_amounts: Callable[[Units], tuple[int, ...]] = attrgetter(*_SHARED_UNITS)
_SHARED_COLUMNS = [f"{kind}_{unit}" for kind in ("held", "spent") for unit in _SHARED_UNITS]
_ADD_TO_SHARED = f"update account set {', '.join(f'{name} = {name} + ?' for name in _SHARED_COLUMNS)} where id = ?"
_ADD_IF_ROOM = f"{_ADD_TO_SHARED} and " + " and ".join(
    f"(cap_{unit} is null or held_{unit} + spent_{unit} + ?{n} <= cap_{unit} or ?{n} is null)"
    for n, unit in enumerate(_SHARED_UNITS, len(_SHARED_COLUMNS) + 2)
)

NO_CHANGE = SharedChange()
_NO_CAPS: Row = ()
Condition = tuple[str, Row]
"""What has to hold of a run while its accounts are written: SQL that finds a row then, with its bindings."""


class SharedAccounts(dict[int, Account]):
    """Shared accounts by id, each read when it is looked up first."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def __missing__(self, number: int) -> Account:
        self._session.require_alone()
        try:
            account = self[number] = read_account(self._session, number)
        except StoreCorrupt as gone:
            raise CorruptRows(gone.message) from gone
        return account


def write_accounts(session: Session, ledger: Ledger, condition: Condition | None = None) -> BranchAccountIds | None:
    """Write what is held and spent now, what is due in shared accounts, what caps have risen, and the branches that
    begin; return the ids of the accounts of these.

    None, and nothing is written: a shared account that was not read has no room, or the `condition` fails. With it the
    run's own account, and each that changes, must be unchanged in the rows.
    """
    written: list[tuple[str, Row]] = []
    for path, known in ledger.known.items():
        account = ledger.accounts[path]
        if account == known and (path or condition is None):
            continue
        # Caps rise in the same statement, so that no row ever holds more than its caps.
        statement, caps, before = UPDATE_AMOUNTS, _NO_CAPS, _NO_CAPS
        if path in ledger.raised:
            statement, caps, before = _RAISE, account.caps, known.caps
        columns = *caps, *account.held, *account.spent, account.id
        if condition is None:
            session.rows(statement, columns)
        elif not session.change(
            _update_while(statement, condition[0]), (*columns, *known.held, *known.spent, *condition[1])
        ):
            _write_back(session, written)
            return None
        written.append((statement, (*before, *known.held, *known.spent, known.id)))
    if ledger.due and not _write_due(session, ledger):
        _write_back(session, written)
        return None
    return _open_branches(session, ledger) if ledger.opened else NO_BRANCHES


@cache
def _update_while(statement: str, condition: str) -> str:
    """Return SQL for an update of an account which has still these amounts, as long as `condition` finds a row."""
    return f"{statement} and {_AS_KNOWN} and exists ({condition})"


def _write_back(session: Session, written: Iterable[tuple[str, Row]]) -> None:
    """Write accounts as they were, within the transaction that changed them."""
    for statement, before in written:
        session.rows(statement, before)


def _write_due(session: Session, ledger: Ledger) -> bool:
    """Write what is due in shared accounts. False: one of them has no room, and all are as they were."""
    written: list[tuple[int, SharedChange]] = []
    for number, due in sorted(ledger.due.items()):
        # Decided on the accounts as they were read: there is room.
        change = due if ledger.shared_accounts is None else SharedChange(due.held, due.spent)
        if change == NO_CHANGE:
            continue
        if not write_shared(session, number, change):
            for earlier, done in written:
                write_shared(session, earlier, done.undone())
            return False
        written.append((number, change))
    return True


def write_shared(session: Session, account: int, change: SharedChange) -> bool:
    """Change a shared account, if it has room; return whether it has. Raises CorruptRows where it is not there.

    Where other servers write beside this one (`last_writes`) it returns True; without room the commit fails.
    """
    if session.last_writes is not None:
        session.last_writes.add("account", account, _LastCharge(account, change))
        return True
    held, spent, limited = change.held, change.spent, change.limited
    amounts = *_shared_amounts(held), *_shared_amounts(spent), account
    if limited is NOTHING:
        if not session.change(_ADD_TO_SHARED, amounts):
            raise CorruptRows(f"account {account} is not there")
        return True
    units = zip(_shared_amounts(held), _shared_amounts(spent), _shared_amounts(limited), strict=True)
    room = [more + used + change.spare if counts else None for more, used, counts in units]
    return bool(session.change(_ADD_IF_ROOM, (*amounts, *room)))


class _LastCharge(NamedTuple):
    """What is due in a shared account, as a transaction writes it last."""

    account: int
    change: SharedChange

    def plus(self, other: _LastCharge) -> _LastCharge:
        return _LastCharge(self.account, self.change.plus(other.change))

    def write(self, session: Session) -> None:
        write_shared(session, self.account, self.change)


def _open_branches(session: Session, ledger: Ledger) -> BranchAccountIds:
    """Insert the accounts of the branches that begin, outer ones first; return their ids by path."""
    opened: dict[str, int] = {}
    for path in ledger.opened:
        account, around = ledger.accounts[path], ledger.charged_paths(path)[0]
        number = opened[path] = insert_branch_account(
            session, path, opened.get(around) or ledger.accounts[around].id, account.caps
        )
        if account.held != NOTHING or account.spent != NOTHING:
            session.rows(UPDATE_AMOUNTS, (*account.held, *account.spent, number))
    return opened
