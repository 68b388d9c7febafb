"""Accounts as rows: a run's own, those of its branches, and those that runs share.

Shared accounts are a principal's day and, within a day, one for each mandate. A branch's account lies within that of
the branch around it, or the run's; its name is the branch's path. A step is charged to every branch whose path is
above its own, so no row of a step has to name them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from types import MappingProxyType

from kairos_mcp.budget.ledger import SharedAccountIds
from kairos_mcp.budget.reservation import Account, shared_part
from kairos_mcp.core.errors import StoreCorrupt, Unreadable
from kairos_mcp.core.limits import UNITS_OF_FIRST_VERSION, Limits, Units
from kairos_mcp.core.steps import enclosing_paths
from kairos_mcp.store.rows import LISTED_ID, Row, Session, json_or_null, placeholders, read_together

BranchAccountIds = Mapping[str, int]
"""The id of each branch's account, by the branch's path."""

NO_BRANCHES: BranchAccountIds = MappingProxyType({})


def unit_columns(*kinds: str) -> list[str]:
    """Return the columns of each kind of amount, one per unit: `held_rounds`, `held_model_calls`, …"""
    return [f"{kind}_{unit}" for kind in kinds for unit in Units._fields]


def unit_index(unit: str) -> int:
    """Return the place of a unit within an encoded amount: 1 of `model_calls`."""
    return Units._fields.index(unit)


_UNIT_COUNT = len(Units._fields)
_CAP_COLUMNS, _CAP_VALUES = ", ".join(unit_columns("cap")), ", ?" * _UNIT_COUNT
AMOUNTS = f"{', '.join(unit_columns('cap', 'held', 'spent'))}, scope"
SELECT_ACCOUNT = f"select {AMOUNTS} from account where id = "
_SELECT_BY_ID = SELECT_ACCOUNT + "?"
_SELECT_BRANCHES_BY_ID = f"select id, {AMOUNTS} from account where id in ({{}})".replace(
    "scope from", "'branch ' || name from"
)
_FIND_DAY = "select id from account where scope = 'day' and name = ? and period = ?"
_SELECT_DAY = f"select id, {AMOUNTS} from account where scope = 'day' and name = ? and period = ?"
_NEWEST_DAY = (  # with the words of the index of days, so that it is used
    "select max(period) from account where scope = 'day' and name = ? and period is not null and mistaken is null"
)
_INSERT_DAY = f"insert into account(scope, name, period, {_CAP_COLUMNS}) values ('day', ?, ?{_CAP_VALUES})"
_INSERT_MANDATE = (
    f"insert into account(scope, parent, name, workspace, {_CAP_COLUMNS}) values ('mandate', ?, ?, ?{_CAP_VALUES})"
)
UPDATE_CAPS = f"update account set {', '.join(f'{name} = ?' for name in unit_columns('cap'))} where id = ?"


def read_account(session: Session, account: int) -> Account:
    """Return an account. Raises Unreadable where it is not there."""
    found = session.row(_SELECT_BY_ID, (account,))
    if found is None:
        raise Unreadable("A run has no account.", "Run `kairos-mcp doctor`.")
    return account_from_row(account, found)


def read_branches_at(session: Session, branches: BranchAccountIds, paths: Collection[str]) -> dict[str, Account]:
    """Return the accounts of the branches at these paths, by path. Raises Unreadable where one is not there."""
    if not paths:
        return {}
    found = session.rows(_SELECT_BRANCHES_BY_ID.format(placeholders(paths)), [branches[path] for path in paths])
    accounts = {number: account_from_row(number, tuple(amounts)) for number, *amounts in found}
    try:
        return {path: accounts[branches[path]] for path in paths}
    except KeyError:
        raise Unreadable("A branch has no account.", "Run `kairos-mcp doctor`.") from None


def read_branches_above(session: Session, branches: BranchAccountIds, paths: Iterable[str]) -> dict[str, Account]:
    """Return the accounts of the branches that the steps at these paths stand in, by the branches' paths."""
    above = {each for path in paths for each in enclosing_paths(path) if each in branches} if branches else ()
    return read_branches_at(session, branches, sorted(above))


def account_from_row(number: int, found: Row) -> Account:
    """Return the account in a row that SELECT_ACCOUNT selected."""
    held, spent = (
        Units._make(found[_UNIT_COUNT : 2 * _UNIT_COUNT]),
        Units._make(found[2 * _UNIT_COUNT : 3 * _UNIT_COUNT]),
    )
    return Account(number, _limits(found[:_UNIT_COUNT]), held, spent, found[-1])


@lru_cache(maxsize=256)  # they seldom change, and most runs have the same
def _limits(caps: tuple[int | None, ...]) -> Limits:
    return Limits(*caps)


def encode_shared(shared: SharedAccountIds) -> str | None:
    """Return the ids of shared accounts as JSON; None where there are none."""
    return f"[{','.join(map(str, shared))}]" if shared else None


def ensure_day_account(session: Session, principal: str, day: str, caps: Limits) -> Account:
    """Return the account of a principal's day with the caps that are configured now; insert it if absent."""
    found = session.row(_FIND_DAY, (principal, day))
    if found is None:
        return read_account(session, session.insert(_INSERT_DAY, (principal, day, *caps)))
    session.rows("update account set mistaken = null where id = ? and mistaken is not null", (found[0],))
    known = read_account(session, found[0])
    if known.caps != caps:
        session.rows(UPDATE_CAPS, (*caps, known.id))
    return known._replace(caps=caps)


def newest_day(session: Session, principal: str) -> str | None:
    """Return the name of a principal's latest day; days that a person marked as mistaken don't count."""
    found = session.row(_NEWEST_DAY, (principal,))
    return None if found is None else found[0]


def mark_days_mistaken(session: Session, principal: str, after: str, at: int) -> list[str]:
    """Mark the days after this one as mistaken and return their names: the clock was wrong when they were begun.

    What was spent on such a day stays, and counts once that day really comes.
    """
    found = session.rows(
        "update account set mistaken = ? where scope = 'day' and name = ? and period > ? and mistaken is null"
        " returning period",
        (at, principal, after),
    )
    return sorted(name for (name,) in found)


def ensure_mandate_account(session: Session, day: int, workspace: str, mandate: str, caps: Limits) -> Account:
    """Return the account of a workspace's mandate within a day's account; insert it if absent.

    `caps`: those that the mandate has now.
    """
    known = find_mandate_account(session, day, workspace, mandate)
    if known is None:
        return read_account(session, session.insert(_INSERT_MANDATE, (day, mandate, workspace, *caps)))
    if known.caps != caps:
        session.rows(UPDATE_CAPS, (*caps, known.id))
    return known._replace(caps=caps)


def find_mandate_account(session: Session, day: int, workspace: str, mandate: str) -> Account | None:
    """Return the account of a workspace's mandate within a day's account, or None."""
    statement = "select id from account where parent = ? and name = ? and coalesce(workspace, '') = ?"
    found = session.row(statement, (day, mandate, workspace))
    return None if found is None else read_account(session, found[0])


def find_day_account(session: Session, principal: str, day: str) -> Account | None:
    """Return the account of a principal's day, or None."""
    found = session.row(_SELECT_DAY, (principal, day))
    return None if found is None else account_from_row(found[0], found[1:])


def amount_or_null(column: str) -> str:
    """Return SQL for a JSON array with an amount for each unit; null where a row holds none. An older version stored
    fewer, and those that are missing are null."""
    is_amount = (
        f"case when json_array_length({column}) between {UNITS_OF_FIRST_VERSION} and {_UNIT_COUNT} then {column} end"
    )
    return f"case when json_valid({column}) then {is_amount} end"


_NEWEST_ATTEMPT = "(select {} from attempt where attempt.step = step.id order by attempt.id desc limit 1)"
_OF_NEWEST_ATTEMPT = (
    f"case when {_NEWEST_ATTEMPT.format('id')} is null then step.{{0}} else {_NEWEST_ATTEMPT.format('{0}')} end"
)
_ATTEMPT_BEFORE = (
    "(select {} from attempt as one where one.step = step.id and one.id < attempt.id order by one.id desc limit 1)"
)
SUMS = ", ".join(f"coalesce(sum(spent ->> {n}), 0)" for n in range(_UNIT_COUNT))
_EACH_SHARED = """
    with recursive each(shared) as (select min(shared) from {0} where shared is not null union all
        select (select min(shared) from {0} where shared > each.shared) from each where each.shared is not null)
    select shared from each where shared is not null
"""
"""SQL for the different texts in a column `shared`, one step in its index for each: a day's calls have the same."""

_SHARED_WITH_ACCOUNT = (
    f"select shared from ({{}}) as texts"
    f" where exists (select 1 from json_each({json_or_null('texts.shared')}) as item where {LISTED_ID} = ?1)"
)
_STEPS_OF_ACCOUNT = f"""
    select id from step where shared in ({_SHARED_WITH_ACCOUNT.format(_EACH_SHARED.format("step"))}) union
    select step from attempt where shared in ({_SHARED_WITH_ACCOUNT.format(_EACH_SHARED.format("attempt"))})
"""
"""SQL for the steps with an attempt that is charged to a shared account."""

CHARGES_SQL = f"""select {json_or_null("sent")} as sent, {amount_or_null("spent")} as spent,
    {json_or_null("shared")} as shared, run, ended from (
    select coalesce({_NEWEST_ATTEMPT.format("sent")}, step.sent) as sent, spent,
        {_OF_NEWEST_ATTEMPT.format("shared")} as shared, step.run as run, null as ended
    from step join answer on answer.step = step.id
    where kind <> 'call' and step.shared is not null and step.id in ({{steps}})
    union all
    select coalesce({_ATTEMPT_BEFORE.format("sent")}, step.sent), lost,
        case when {_ATTEMPT_BEFORE.format("id")} is null then step.shared else {_ATTEMPT_BEFORE.format("shared")} end,
        step.run, attempt.ended
    from attempt join step on step.id = attempt.step where step.shared is not null and step.id in ({{steps}}))
"""
"""Every charge of model calls of some steps to shared accounts: what was sent, the amount, the accounts, the run, and
how an attempt without an answer ended.

`{steps}` stands for SQL for the steps.

A further attempt's row says what the attempt before it cost. What can't be read is null and missing from the sum, so
that the account exceeds the sum; the run with that row spends nothing more.
"""

# Materialized, so that each row is looked at for damage once.
WITH_CHARGES = f"with charges as materialized ({CHARGES_SQL.format(steps=_STEPS_OF_ACCOUNT)})"
HAS_ACCOUNT = f"exists (select 1 from json_each(shared) as item where {LISTED_ID} = ?1)"
CHARGES_OF_ACCOUNT = f"charges where {HAS_ACCOUNT}"
ANY_CHARGE = (
    "select 1 from step where shared is not null union all select 1 from attempt where shared is not null limit 1"
)


_HOLDS_SQL = f"""select coalesce({amount_or_null("held")}, '[]') as held, {json_or_null("shared")} as shared from (
    select {_OF_NEWEST_ATTEMPT.format("held")} as held, {_OF_NEWEST_ATTEMPT.format("shared")} as shared
    from step join run on run.n = step.run left join answer on answer.step = step.id
    where answer.step is null and run.outcome is null and step.shared is not null and step.id in ({_STEPS_OF_ACCOUNT}))
"""
_HELD_SUMS = ", ".join(
    f"sum(coalesce(held ->> {n}, {int(unit == 'model_calls')}))" for n, unit in enumerate(Units._fields)
)
_SHARED_WITH_NONE = (
    f"select shared from ({{}}) as texts, json_each({json_or_null('texts.shared')}) as item"
    f" where {LISTED_ID} not in (select id from account)"
)
# `|| ''` keeps SQLite from walking all runs of the principal.
_FIND_LOST_ACCOUNT = f"""
    select 1 from run where principal || '' = ?1 and n in (
        select run from step where at >= ?2
            and shared in ({_SHARED_WITH_NONE.format(_EACH_SHARED.format("step"))}) union all
        select run from attempt where at >= ?2
            and shared in ({_SHARED_WITH_NONE.format(_EACH_SHARED.format("attempt"))}))
    limit 1
"""


def check_shared_account(session: Session, account: int) -> None:
    """Raise StoreCorrupt where a shared account says that less is spent or held than its rows do.

    It may say more: removed runs used that. The caller reads within one state.
    """
    stored, spent, held = read_together(
        session,
        lambda session: read_account(session, account),
        lambda session: session.row(f"{WITH_CHARGES} select {SUMS} from {CHARGES_OF_ACCOUNT}", (account,)),
        lambda session: session.row(f"select {_HELD_SUMS} from ({_HOLDS_SQL}) where {HAS_ACCOUNT}", (account,)),
    )
    for kind, by_account, sums in (("spent", stored.spent, spent), ("held", stored.held, held)):
        by_rows = shared_part(Units(*(amount or 0 for amount in sums or ())))
        for unit, amount, found in zip(Units._fields, by_account, by_rows, strict=True):
            if amount < found:
                raise StoreCorrupt(
                    f"The account of a {stored.scope} says {amount} {unit} were {kind}, its rows {found}.",
                    _DAMAGE_HINT,
                )


def check_day_accounts_exist(session: Session, principal: str, since: int) -> None:
    """Raise StoreCorrupt where a charge since this moment (ms) names an account that is not there.

    A day whose account is lost must not begin anew with nothing used.
    """
    if session.row(_FIND_LOST_ACCOUNT, (principal, since)) is not None:
        raise StoreCorrupt("An account that a day's calls were charged to is gone.", _DAMAGE_HINT)


_SELECT_BRANCHES = """
    with recursive branch(id, name) as (select id, name from account where parent = ?
        union all select account.id, account.name from account join branch on account.parent = branch.id)
    select name, id from branch order by id
"""
_INSERT_BRANCH = f"insert into account(scope, parent, name, {_CAP_COLUMNS}) values ('branch', ?, ?{_CAP_VALUES})"


def read_branch_accounts(session: Session, account: int) -> BranchAccountIds:
    """Return the accounts of all branches of the run whose account this is, outer ones first."""
    return dict(session.rows(_SELECT_BRANCHES, (account,)))


def list_branches(session: Session, account: int) -> dict[str, Account]:
    """Return the accounts of all branches of the run whose account this is, by the branches' paths."""
    found = read_branch_accounts(session, account)
    return read_branches_at(session, found, found)


def insert_branch_account(session: Session, path: str, parent: int, caps: Limits) -> int:
    """Insert the account of the branch at this path, within the account `parent`; return its id."""
    return session.insert(_INSERT_BRANCH, (parent, path, *caps))


_DAMAGE_HINT = "Run `kairos-mcp doctor`; nothing more is spent of it."
