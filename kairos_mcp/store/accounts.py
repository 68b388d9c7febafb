"""The accounts as rows: a run's own, and those that runs share, as a principal's day; what a transaction does to them.

An account is read once in a transaction and written once, with one point update.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import lru_cache

import apsw

from kairos_mcp.budget import Account, Claim, Grant, Units, grant, shared_part
from kairos_mcp.errors import StoreCorrupt
from kairos_mcp.steps import Limits, Refused
from kairos_mcp.store.connection import Row, row, rows

Shared = tuple[int, ...]
"""Numbers of the accounts, beside the run's own, that a step is charged to."""

NOT_SHARED: Shared = ()


def amounts(*kinds: str) -> list[str]:
    """The columns of an amount in each unit: `held_rounds`, …"""
    return [f"{kind}_{unit}" for kind in kinds for unit in Units._fields]


READ = f"select {', '.join(amounts('cap', 'held', 'spent'))}, scope from account where id = "
_READ_ANY = READ + "?"
_WRITE = f"update account set {', '.join(f'{name} = ?' for name in amounts('held', 'spent'))} where id = ?"
_FIND = "select id from account where scope = 'day' and name = ? and period = ?"
_MAKE = f"insert into account(scope, name, period, {', '.join(amounts('cap'))}) values ('day', ?, ?{', ?' * 8})"
_CAP = f"update account set {', '.join(f'{name} = ?' for name in amounts('cap'))} where id = ?"
_N = len(Units._fields)


def read_account(connection: apsw.Connection, account: int) -> Account:
    found = row(connection, _READ_ANY, (account,))
    if found is None:
        raise StoreCorrupt("A run has no account.", "Run `kairos-mcp doctor`.")
    return account_of(account, found)


def account_of(number: int, found: Row) -> Account:
    """The account in a row that READ gave."""
    held, spent = Units._make(found[_N : 2 * _N]), Units._make(found[2 * _N : 3 * _N])
    return Account(number, _limits(found[:_N]), held, spent, found[-1])


@lru_cache(maxsize=256)  # they seldom change, and most runs have the same
def _limits(caps: tuple[int | None, ...]) -> Limits:
    return Limits(*caps)


class Purse:
    """The accounts that one transaction touches: each grant sees what the transaction itself has settled and held."""

    __slots__ = ("_before", "_connection", "_shared", "own")

    def __init__(self, connection: apsw.Connection, own: Account) -> None:
        self.own = self._before = own
        self._connection = connection
        self._shared: dict[int, tuple[Account, Account]] = {}  # as read, and as it is now

    def settle(self, held: Units, spent: Units, shared: Shared) -> None:
        self.own = self.own.settle(held, spent)
        for number in shared:
            before, now = self._read(number)
            self._shared[number] = before, now.settle(shared_part(held), shared_part(spent))

    def hold(self, claim: Claim, shared: Shared) -> Grant | Refused:
        leave = grant(self.own, claim, [self._read(number)[1] for number in shared])
        if isinstance(leave, Grant):
            self.own = self.own.hold(leave.held)
            for number in shared:
                before, now = self._shared[number]
                self._shared[number] = before, now.hold(shared_part(leave.held))
        return leave

    def write(self) -> None:
        """Say what is held and spent now."""
        for before, now in ((self._before, self.own), *self._shared.values()):
            if now != before:
                self._connection.execute(_WRITE, (*now.held, *now.spent, now.id))

    def _read(self, number: int) -> tuple[Account, Account]:
        if number not in self._shared:
            account = read_account(self._connection, number)
            self._shared[number] = account, account
        return self._shared[number]


def encode_shared(shared: Shared) -> str | None:
    return f"[{','.join(map(str, shared))}]" if shared else None


@lru_cache(maxsize=256)
def decode_shared(text: str | None) -> Shared:
    return tuple(json.loads(text)) if text else NOT_SHARED


def day_account(connection: apsw.Connection, principal: str, day: str, caps: Limits) -> Account:
    """The account of a principal's day, with the caps that are configured now; made if there is none."""
    wanted = tuple(asdict(caps).values())
    found = row(connection, _FIND, (principal, day))
    if found is None:
        rows(connection, _MAKE, (principal, day, *wanted))
        return read_account(connection, connection.last_insert_rowid())
    known = read_account(connection, found[0])
    if known.caps != caps:
        rows(connection, _CAP, (*wanted, known.id))
    return known._replace(caps=caps)


@dataclass(frozen=True, slots=True)
class DayRow:
    """A day of a principal: its name (`2026-11-22`) and its account."""

    name: str
    account: Account


def days(connection: apsw.Connection, principal: str, limit: int) -> list[DayRow]:
    """The newest days on which the principal used something, newest first."""
    found = rows(
        connection,
        "select period, id from account where scope = 'day' and name = ? order by period desc limit ?",
        (principal, limit),
    )
    return [DayRow(period, read_account(connection, account)) for period, account in list(found)]


@dataclass(frozen=True, slots=True)
class Share:
    """What one route and model used of an account. `attempts` counts those too that brought no answer."""

    route: str
    model: str | None
    attempts: int
    spent: Units


_NEWEST = "(select {} from attempt where attempt.mark = mark.id order by attempt.id desc limit 1)"
_BEFORE = (
    "(select {} from attempt as one where one.mark = mark.id and one.id < attempt.id order by one.id desc limit 1)"
)
_SUMS = ", ".join(f"sum(json_extract(spent, '$[{n}]'))" for n in range(_N))
CHARGED = f"""
    select coalesce({_NEWEST.format("sent")}, mark.sent) as sent, spent,
        iif({_NEWEST.format("id")} is null, mark.shared, {_NEWEST.format("shared")}) as shared
    from mark join answer on answer.mark = mark.id where kind <> 'call' and mark.shared is not null
    union all
    select coalesce({_BEFORE.format("sent")}, mark.sent), lost,
        iif({_BEFORE.format("id")} is null, mark.shared, {_BEFORE.format("shared")})
    from attempt join mark on mark.id = attempt.mark where mark.shared is not null
"""
"""Every charge of a model call to shared accounts: what was sent, the amount, the accounts. A further attempt's row
says what the attempt before it cost."""


_OF_ACCOUNT = f"({CHARGED}) where exists (select 1 from json_each(shared) where value = ?)"


def shares(connection: apsw.Connection, account: int) -> list[Share]:
    """Who used what of a shared account, most tokens first."""
    found = rows(
        connection,
        f"select json_extract(sent, '$.route'), json_extract(sent, '$.model'), count(*), {_SUMS} from {_OF_ACCOUNT}"
        " group by 1, 2 order by sum(json_extract(spent, '$[4]')) desc, 1, 2",
        (account,),
    )
    return [Share(route, model, count, Units(*sums)) for route, model, count, *sums in found]


_HELD = f"""
    select iif({_NEWEST.format("id")} is null, mark.held, {_NEWEST.format("held")}) as held,
        iif({_NEWEST.format("id")} is null, mark.shared, {_NEWEST.format("shared")}) as shared
    from mark join run on run.n = mark.run left join answer on answer.mark = mark.id
    where answer.mark is null and run.outcome is null and mark.shared is not null
"""
_HELD_SUMS = ", ".join(
    f"sum(coalesce(json_extract(held, '$[{n}]'), {int(unit == 'model_calls')}))" for n, unit in enumerate(Units._fields)
)
_LOST = """
    select 1 from (select run, at, shared from mark union all
        select mark.run, attempt.at, attempt.shared from attempt join mark on mark.id = attempt.mark) as charged
    join run on run.n = charged.run, json_each(charged.shared)
    where principal = ? and charged.at >= ? and charged.at < ? and value not in (select id from account) limit 1
"""


def check(connection: apsw.Connection, account: int) -> None:
    """Raises StoreCorrupt where less is spent or held of a shared account than its rows say; more is what removed runs
    used. All is to be read from one state of the file."""
    kept = read_account(connection, account)
    spent = row(connection, f"select {_SUMS} from {_OF_ACCOUNT}", (account,))
    held = row(
        connection,
        f"select {_HELD_SUMS} from ({_HELD}) where exists (select 1 from json_each(shared) where value = ?)",
        (account,),
    )
    for said, told, sums in (("spent", kept.spent, spent), ("held", kept.held, held)):
        by_rows = shared_part(Units(*(amount or 0 for amount in sums or ())))
        for unit, by_account, found in zip(Units._fields, told, by_rows, strict=True):
            if by_account < found:
                raise StoreCorrupt(
                    f"The account of a day says {by_account} {unit} were {said}, its rows {found}.", _NO_MORE
                )


def check_none_lost(connection: apsw.Connection, principal: str, begins: int, ends: int) -> None:
    """Raises StoreCorrupt where something was charged between these moments to an account that is not there: what a
    day has used does not begin anew."""
    if row(connection, _LOST, (principal, begins, ends)) is not None:
        raise StoreCorrupt("An account that a day's calls were charged to is gone.", _NO_MORE)


_NO_MORE = "Run `kairos-mcp doctor`; nothing more is spent of it."
