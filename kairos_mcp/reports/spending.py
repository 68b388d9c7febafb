"""What is spent and left: of a principal's day, with who used it, and of a run."""

from __future__ import annotations

from kairos_mcp.budget import Account, Units
from kairos_mcp.configuration.settings import DAY_CAPS, outside_limits
from kairos_mcp.hall.house import House
from kairos_mcp.messages import JsonObject
from kairos_mcp.periods import day_at, moment
from kairos_mcp.reports.report import Caller
from kairos_mcp.steps import Limits
from kairos_mcp.store import accounts
from kairos_mcp.store.accounts import read_account

NEWEST_DAYS = 30


def spending(house: House, scope: str | None, caller: Caller) -> JsonObject:
    """`scope` is `day` (the default), `days`, or a run's id. Raises UnknownRun."""
    match scope:
        case None | "day":
            return _day(house, caller)
        case "days":
            found = accounts.days(house.store.reader, caller.principal, NEWEST_DAYS)
            return {"scope": "days", "days": [{"day": each.name, **_figures(each.account, DAY_CAPS)} for each in found]}
        case run_id:
            account = read_account(house.store.reader, house.run(run_id, caller).account)
            return {"scope": run_id, **_figures(account, None)}


def _day(house: House, caller: Caller) -> JsonObject:
    today = day_at(house.clock(), house.settings.time_zone)
    found = accounts.days(house.store.reader, caller.principal, 1) if house.store.exists else []
    used = next((each.account for each in found if each.name == today.name), None)
    account = Account(0, house.settings.day, Units(), Units())
    if used is not None:
        account = Account(used.id, house.settings.day, used.held, used.spent)
    by = accounts.shares(house.store.reader, used.id) if used is not None else []
    return {
        "scope": "day",
        "day": today.name,
        "time_zone": house.settings.time_zone,
        "resets_at": moment(today.ends),
        **_figures(account, DAY_CAPS),
        "by": [
            {"route": each.route, "model": each.model, "attempts": each.attempts, **_outside(each.spent, DAY_CAPS)}
            for each in by
        ],
    }


def _figures(account: Account, units: tuple[str, ...] | None) -> JsonObject:
    left = Units(*((account.left(unit) or 0) for unit in Units._fields))
    limits = outside_limits(account.caps)
    remaining = {name: None if limits[name] is None else value for name, value in _outside(left, units).items()}
    return {
        "limits": {name: limits[name] for name in remaining},
        "spent": _outside(account.spent, units),
        "held": _outside(account.held, units),
        "remaining": remaining,
    }


def _outside(amount: Units, units: tuple[str, ...] | None) -> dict[str, int | float | None]:
    told = outside_limits(Limits(*amount))
    return told if units is None else {name: told[name] for name in units}
