"""The accounts as rows: a run's own, and those that runs share: a principal's day, and within it that of a mandate."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import lru_cache

import apsw

from kairos_mcp.budget.units import Account, Units, shared_part
from kairos_mcp.core.errors import StoreCorrupt, Unreadable
from kairos_mcp.core.limits import Limits
from kairos_mcp.store.connection import Row, fetch_all, fetch_one, json_or_null

SharedAccounts = tuple[int, ...]
"""Numbers of the accounts, beside the run's own, that a step is charged to."""

NO_SHARED_ACCOUNTS: SharedAccounts = ()


def unit_columns(*kinds: str) -> list[str]:
    """The columns of an amount in each unit: `held_rounds`, …"""
    return [f"{kind}_{unit}" for kind in kinds for unit in Units._fields]


SELECT_ACCOUNT = f"select {', '.join(unit_columns('cap', 'held', 'spent'))}, scope from account where id = "
_SELECT_BY_ID = SELECT_ACCOUNT + "?"
_SELECT_BRANCH = SELECT_ACCOUNT.replace("scope from", "'branch ' || name from") + "?"
_FIND_DAY = "select id from account where scope = 'day' and name = ? and period = ?"
_NEWEST_DAY = "select max(period) from account where scope = 'day' and name = ? and mistaken is null"
_INSERT_DAY = (
    f"insert into account(scope, name, period, {', '.join(unit_columns('cap'))}) values ('day', ?, ?{', ?' * 8})"
)
_INSERT_MANDATE = (
    f"insert into account(scope, parent, name, workspace, {', '.join(unit_columns('cap'))})"
    f" values ('mandate', ?, ?, ?{', ?' * 8})"
)
_UPDATE_CAPS = f"update account set {', '.join(f'{name} = ?' for name in unit_columns('cap'))} where id = ?"
_UNIT_COUNT = len(Units._fields)
UNREADABLE_ROUTE = "unreadable"  # as a route: nobody can read how it was asked


def read_account(connection: apsw.Connection, account: int) -> Account:
    found = fetch_one(connection, _SELECT_BY_ID, (account,))
    if found is None:
        raise Unreadable("A run has no account.", "Run `kairos-mcp doctor`.")
    return account_from_row(account, found)


def read_branch(connection: apsw.Connection, account: int) -> Account:
    found = fetch_one(connection, _SELECT_BRANCH, (account,))
    if found is None:
        raise Unreadable("A branch has no account.", "Run `kairos-mcp doctor`.")
    return account_from_row(account, found)


def account_from_row(number: int, found: Row) -> Account:
    """The account in a row that READ gave."""
    held, spent = (
        Units._make(found[_UNIT_COUNT : 2 * _UNIT_COUNT]),
        Units._make(found[2 * _UNIT_COUNT : 3 * _UNIT_COUNT]),
    )
    return Account(number, _limits(found[:_UNIT_COUNT]), held, spent, found[-1])


@lru_cache(maxsize=256)  # they seldom change, and most runs have the same
def _limits(caps: tuple[int | None, ...]) -> Limits:
    return Limits(*caps)


def encode_shared(shared: SharedAccounts) -> str | None:
    return f"[{','.join(map(str, shared))}]" if shared else None


def ensure_day_account(connection: apsw.Connection, principal: str, day: str, caps: Limits) -> Account:
    """The account of a principal's day, with the caps that are configured now; made if there is none."""
    wanted = tuple(asdict(caps).values())
    found = fetch_one(connection, _FIND_DAY, (principal, day))
    if found is None:
        fetch_all(connection, _INSERT_DAY, (principal, day, *wanted))
        return read_account(connection, connection.last_insert_rowid())
    fetch_all(connection, "update account set mistaken = null where id = ? and mistaken is not null", (found[0],))
    known = read_account(connection, found[0])
    if known.caps != caps:
        fetch_all(connection, _UPDATE_CAPS, (*wanted, known.id))
    return known._replace(caps=caps)


def newest_day(connection: apsw.Connection, principal: str) -> str | None:
    """The name of the latest day that was begun for a principal, but for those that a person called a mistake."""
    found = fetch_one(connection, _NEWEST_DAY, (principal,))
    return None if found is None else found[0]


def mark_days_mistaken(connection: apsw.Connection, principal: str, after: str, at: int) -> list[str]:
    """Let the days after this one not count as begun: a person says that the clock was wrong when they were. What was
    spent on one stays, and counts when it comes. Gives their names."""
    found = fetch_all(
        connection,
        "update account set mistaken = ? where scope = 'day' and name = ? and period > ? and mistaken is null"
        " returning period",
        (at, principal, after),
    )
    return sorted(name for (name,) in found)


def ensure_mandate_account(
    connection: apsw.Connection, day: int, workspace: str, mandate: str, caps: Limits
) -> Account:
    """The account of a mandate of a workspace within a day's, with the caps that it has now; made if there is none."""
    known = find_mandate_account(connection, day, workspace, mandate)
    wanted = tuple(asdict(caps).values())
    if known is None:
        fetch_all(connection, _INSERT_MANDATE, (day, mandate, workspace, *wanted))
        return read_account(connection, connection.last_insert_rowid())
    if known.caps != caps:
        fetch_all(connection, _UPDATE_CAPS, (*wanted, known.id))
    return known._replace(caps=caps)


def find_mandate_account(connection: apsw.Connection, day: int, workspace: str, mandate: str) -> Account | None:
    statement = "select id from account where parent = ? and name = ? and coalesce(workspace, '') = ?"
    found = fetch_one(connection, statement, (day, mandate, workspace))
    return None if found is None else read_account(connection, found[0])


def find_day_account(connection: apsw.Connection, principal: str, day: str) -> Account | None:
    found = fetch_one(connection, _FIND_DAY, (principal, day))
    return None if found is None else read_account(connection, found[0])


@dataclass(frozen=True, slots=True)
class MandateDay:
    """What a mandate used on a day: its id, its workspace ('' for none), and its account."""

    mandate: str
    workspace: str
    account: Account


def list_mandate_days(connection: apsw.Connection, day: int) -> list[MandateDay]:
    """The mandates that were charged to a day's account, by id."""
    statement = "select name, coalesce(workspace, ''), id from account where parent = ? order by 1, 2"
    found = list(fetch_all(connection, statement, (day,)))
    return [MandateDay(name, workspace, read_account(connection, account)) for name, workspace, account in found]


@dataclass(frozen=True, slots=True)
class DayRow:
    """A day of a principal: its name (`2026-11-22`) and its account."""

    name: str
    account: Account


def list_days(connection: apsw.Connection, principal: str, limit: int) -> list[DayRow]:
    """The newest days on which the principal used something, newest first."""
    found = fetch_all(
        connection,
        "select period, id from account where scope = 'day' and name = ? order by period desc limit ?",
        (principal, limit),
    )
    return [DayRow(period, read_account(connection, account)) for period, account in list(found)]


@dataclass(frozen=True, slots=True)
class UsageShare:
    """What one route and model used of an account, for one agent and mandate (None: for none). `attempts` counts those
    too that brought no answer, but not one that only waited while the run was paused."""

    route: str
    model: str | None
    agent: str | None
    mandate: str | None
    attempts: int
    spent: Units


def _amount_or_null(column: str) -> str:
    """An amount in each unit as JSON, null where a row holds none."""
    return f"iif(json_valid({column}), iif(json_array_length({column}) = {_UNIT_COUNT}, {column}, null), null)"


_NEWEST_ATTEMPT = "(select {} from attempt where attempt.mark = mark.id order by attempt.id desc limit 1)"
_ATTEMPT_BEFORE = (
    "(select {} from attempt as one where one.mark = mark.id and one.id < attempt.id order by one.id desc limit 1)"
)
_SUMS = ", ".join(f"coalesce(sum(json_extract(spent, '$[{n}]')), 0)" for n in range(_UNIT_COUNT))
CHARGES_SQL = f"""select {json_or_null("sent")} as sent, {_amount_or_null("spent")} as spent,
    {json_or_null("shared")} as shared from (
    select coalesce({_NEWEST_ATTEMPT.format("sent")}, mark.sent) as sent, spent,
        iif({_NEWEST_ATTEMPT.format("id")} is null, mark.shared, {_NEWEST_ATTEMPT.format("shared")}) as shared
    from mark join answer on answer.mark = mark.id where kind <> 'call' and mark.shared is not null
    union all
    select coalesce({_ATTEMPT_BEFORE.format("sent")}, mark.sent), lost,
        iif({_ATTEMPT_BEFORE.format("id")} is null, mark.shared, {_ATTEMPT_BEFORE.format("shared")})
    from attempt join mark on mark.id = attempt.mark where mark.shared is not null)
"""
"""Every charge of a model call to shared accounts: what was sent, the amount, the accounts. A further attempt's row
says what the attempt before it cost. What can't be read is null, and missing from the sum, which the account exceeds
then; the run whose row it is spends nothing more."""


_MANDATE = "(select name from account, json_each(shared) where account.id = value and account.scope = 'mandate')"
_WITH_CHARGES = f"with charges as materialized ({CHARGES_SQL})"  # each row is looked at for damage once
_CHARGES_OF_ACCOUNT = "charges where exists (select 1 from json_each(shared) where value = ?)"


def list_usage_shares(connection: apsw.Connection, account: int) -> list[UsageShare]:
    """Who used what of a shared account, most tokens first."""
    found = fetch_all(
        connection,
        f"{_WITH_CHARGES} select coalesce(json_extract(sent, '$.route'), '{UNREADABLE_ROUTE}'),"
        " json_extract(sent, '$.model'), json_extract(sent, '$.agent'),"
        f" {_MANDATE}, coalesce(sum(json_extract(spent, '$[1]') > 0), 0), {_SUMS} from {_CHARGES_OF_ACCOUNT}"
        " group by 1, 2, 3, 4 order by sum(json_extract(spent, '$[4]')) desc, 1, 2, 3, 4",
        (account,),
    )
    return [
        UsageShare(route, model, agent, mandate, count, Units(*sums))
        for route, model, agent, mandate, count, *sums in found
    ]


_HOLDS_SQL = f"""select coalesce({_amount_or_null("held")}, '[]') as held, {json_or_null("shared")} as shared from (
    select iif({_NEWEST_ATTEMPT.format("id")} is null, mark.held, {_NEWEST_ATTEMPT.format("held")}) as held,
        iif({_NEWEST_ATTEMPT.format("id")} is null, mark.shared, {_NEWEST_ATTEMPT.format("shared")}) as shared
    from mark join run on run.n = mark.run left join answer on answer.mark = mark.id
    where answer.mark is null and run.outcome is null and mark.shared is not null)
"""
_HELD_SUMS = ", ".join(
    f"sum(coalesce(json_extract(held, '$[{n}]'), {int(unit == 'model_calls')}))" for n, unit in enumerate(Units._fields)
)
_FIND_LOST_ACCOUNT = f"""
    select 1 from (select run, at, shared from mark union all
        select mark.run, attempt.at, attempt.shared from attempt join mark on mark.id = attempt.mark) as charged
    join run on run.n = charged.run, json_each({json_or_null("charged.shared")})
    where principal = ? and charged.at >= ? and value not in (select id from account) limit 1
"""


def check_shared_account(connection: apsw.Connection, account: int) -> None:
    """Raises StoreCorrupt where less is spent or held of a shared account than its rows say; more is what removed runs
    used. All is to be read from one state of the file."""
    kept = read_account(connection, account)
    spent = fetch_one(connection, f"{_WITH_CHARGES} select {_SUMS} from {_CHARGES_OF_ACCOUNT}", (account,))
    held = fetch_one(
        connection,
        f"select {_HELD_SUMS} from ({_HOLDS_SQL}) where exists (select 1 from json_each(shared) where value = ?)",
        (account,),
    )
    for said, told, sums in (("spent", kept.spent, spent), ("held", kept.held, held)):
        by_rows = shared_part(Units(*(amount or 0 for amount in sums or ())))
        for unit, by_account, found in zip(Units._fields, told, by_rows, strict=True):
            if by_account < found:
                raise StoreCorrupt(
                    f"The account of a {kept.scope} says {by_account} {unit} were {said}, its rows {found}.",
                    _DAMAGE_HINT,
                )


def check_day_accounts_exist(connection: apsw.Connection, principal: str, since: int) -> None:
    """Raises StoreCorrupt where something was charged from this moment on to an account that is not there: what a
    day has used does not begin anew."""
    if fetch_one(connection, _FIND_LOST_ACCOUNT, (principal, since)) is not None:
        raise StoreCorrupt("An account that a day's calls were charged to is gone.", _DAMAGE_HINT)


_DAMAGE_HINT = "Run `kairos-mcp doctor`; nothing more is spent of it."
