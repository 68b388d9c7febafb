"""Accounts as people look at them: newest days, who used what, and what is charged for calls of unknown outcome."""

from __future__ import annotations

from kairos_mcp.budget.reservation import Account
from kairos_mcp.core.limits import Units
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.store.accounts import (
    AMOUNTS,
    CHARGES_OF_ACCOUNT,
    HAS_ACCOUNT,
    SUMS,
    WITH_CHARGES,
    account_from_row,
    amount_or_null,
    unit_index,
)
from kairos_mcp.store.queries import UNKNOWN
from kairos_mcp.store.rows import LISTED_ID, Session


def list_day_accounts(session: Session, first_day: str, principal: str | None) -> list[tuple[str, str, Account]]:
    """Return the days from this one on, of one principal or of all (None): (day, principal, account), newest first."""
    whose = "" if principal is None else " and name = ?"
    statement = (
        f"select period, name, id, {AMOUNTS} from account where scope = 'day' and period is not null"
        f" and mistaken is null and period >= ?{whose} order by period desc, name"
    )
    bindings = (first_day,) if principal is None else (first_day, principal)
    return [
        (day, name, account_from_row(number, tuple(amounts)))
        for day, name, number, *amounts in session.rows(statement, bindings)
    ]


_LOST = f"where ended = '{UNKNOWN}'"


def read_lost(session: Session, account: int) -> Units:
    """Return what attempts of unknown outcome are charged with in a shared account: their bounds."""
    found = session.row(f"{WITH_CHARGES} select {SUMS} from charges {_LOST} and {HAS_ACCOUNT}", (account,))
    assert found is not None
    return Units(*found)


def read_lost_of_run(session: Session, n: int) -> Units:
    """Return what a run's attempts of unknown outcome are charged with."""
    lost = f"select {amount_or_null('lost')} as spent from attempt {_LOST} and run = ?"
    found = session.row(f"select {SUMS} from ({lost}) as charges", (n,))
    assert found is not None
    return Units(*found)


def list_mandate_days(session: Session, day: int) -> list[tuple[str, str, Account]]:
    """List the mandates that were charged to a day's account, by id: each with its workspace ('' for none) and its
    account of that day."""
    statement = f"select name, coalesce(workspace, ''), id, {AMOUNTS} from account where parent = ? order by 1, 2"
    return [
        (name, workspace, account_from_row(number, tuple(amounts)))
        for name, workspace, number, *amounts in session.rows(statement, (day,))
    ]


def list_days(session: Session, principal: str, limit: int) -> dict[str, Account]:
    """Return the accounts of the newest days on which the principal used something, by name (`2026-11-22`), newest
    first."""
    statement = (
        f"select period, id, {AMOUNTS} from account where scope = 'day' and name = ? order by period desc limit ?"
    )
    return {
        period: account_from_row(number, tuple(amounts))
        for period, number, *amounts in session.rows(statement, (principal, limit))
    }


@dataclass(frozen=True, slots=True)
class UsageShare:
    """What one route and model used of an account, for one agent and mandate (None: without one).

    `attempts` includes those that brought no answer, but not one that only waited while the run was paused.
    `workspace`: in which folder, '' for none; None where shares are not told apart by it.
    """

    route: str
    model: str | None
    agent: str | None
    mandate: str | None
    attempts: int
    spent: Units
    workspace: str | None = None


UNREADABLE_ROUTE = "unreadable"  # in place of a route that can't be read from its row
_MANDATE = (
    "(select name from account, json_each(shared) as item"
    f" where account.id = {LISTED_ID} and account.scope = 'mandate')"
)


def list_usage_shares(session: Session, account: int, *, by_workspace: bool = False) -> list[UsageShare]:
    """List who used what of a shared account, most tokens first; `by_workspace`: in each folder apart."""
    folder = "(select workspace from run where n = charges.run)" if by_workspace else "null"
    found = session.rows(
        f"{WITH_CHARGES} select coalesce(json_extract(sent, '$.route'), '{UNREADABLE_ROUTE}'),"
        " json_extract(sent, '$.model'), json_extract(sent, '$.agent'),"
        f" {_MANDATE}, {folder}, count(*) filter (where spent ->> {unit_index('model_calls')} > 0), {SUMS}"
        f" from {CHARGES_OF_ACCOUNT}"
        f" group by 1, 2, 3, 4, 5 order by sum(spent ->> {unit_index('total_tokens')}) desc, 1, 2, 3, 4, 5",
        (account,),
    )
    return [
        UsageShare(route, model, agent, mandate, count, Units(*sums), workspace)
        for route, model, agent, mandate, workspace, count, *sums in found
    ]
