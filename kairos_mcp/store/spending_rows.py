"""Accounts as an operator looks at them: days of all principals, and what is charged for calls of unknown outcome."""

from __future__ import annotations

from kairos_mcp.budget.reservation import Account
from kairos_mcp.core.limits import Units
from kairos_mcp.store.accounts import AMOUNTS, HAS_ACCOUNT, SUMS, WITH_CHARGES, account_from_row, amount_or_null
from kairos_mcp.store.queries import UNKNOWN
from kairos_mcp.store.rows import Session


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
