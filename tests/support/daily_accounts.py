"""An app whose clock the test sets, and the books of its days: as their accounts say, and as their rows add up."""

from __future__ import annotations

import json
import secrets
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from kairos_mcp.app.app import App
from kairos_mcp.budget.reservation import shared_part
from kairos_mcp.core.limits import UNITS, Units, counts_of
from kairos_mcp.settings.settings import Settings
from kairos_mcp.views.run_report import RunReport
from support.app import ME, WITHIN_S, Place, assert_all_lawful, total

ZONE = "America/New_York"


def at(text: str, zone: str = ZONE) -> int:
    """A moment as a wall clock of the zone shows it, in milliseconds since 1970."""
    return round(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp() * 1000)


NOON, MIDNIGHT = at("2026-11-20T12:00"), at("2026-11-21T00:00")


@dataclass
class Clock:
    """Stands still until the test sets it."""

    now: int = NOON

    def __call__(self) -> int:
        return self.now


@asynccontextmanager
async def app_at(settings: Settings, clock: Clock) -> AsyncIterator[App]:
    """An app with this clock; its runs and days are held against their rows when the block ends."""
    app = App(settings, "mcp", clock, lambda: f"run-{secrets.token_hex(6)}")
    try:
        yield app
        await assert_all_lawful(app)
        assert_days_add_up(Place(settings.home.parent))
    finally:
        await app._close()


async def wait_until_ended(app: App, *run_ids: str) -> RunReport:
    """Wait until all have ended by themselves; returns the report of the first."""
    await app.runs.wait(run_ids, until="done", wait_s=WITHIN_S, caller=ME)
    report = await app.runs.report(run_ids[0], ME)
    assert report.status in ("completed", "stopped", "failed", "cancelled"), report
    return report


@dataclass(frozen=True)
class DayBook:
    """What the account of a day says."""

    held: Units
    spent: Units


def days_of(place: Place, principal: str = "local") -> dict[str, DayBook]:
    """The days' accounts by name."""
    columns = ", ".join(f"{kind}_{unit}" for kind in ("held", "spent") for unit in Units._fields)
    found = place.rows(f"select period, {columns} from account where scope = 'day' and name = ?", principal)
    return {period: DayBook(Units(*amounts[: len(UNITS)]), Units(*amounts[len(UNITS) :])) for period, *amounts in found}


def assert_days_add_up(place: Place) -> None:
    """Each shared account is the sum of what its rows charge to it, and hold of it."""
    spent, held = by_rows(place)
    columns = ", ".join(f"{kind}_{unit}" for kind in ("held", "spent") for unit in Units._fields)
    for number, *amounts in place.rows(f"select id, {columns} from account where scope in ('day', 'mandate')"):
        assert Units(*amounts[: len(UNITS)]) == total(held[number]), ("held", number)
        assert Units(*amounts[len(UNITS) :]) == total(spent[number]), ("spent", number)


def by_rows(place: Place) -> tuple[dict[int, list[Units]], dict[int, list[Units]]]:
    """Every amount that is spent, and held, by the account that it is charged to."""
    spent: dict[int, list[Units]] = defaultdict(list)
    held: dict[int, list[Units]] = defaultdict(list)
    attempts: dict[int, list[list[str | None]]] = defaultdict(list)
    for mark, *attempt in place.rows("select step, held, shared, lost from attempt order by id"):
        attempts[mark].append(attempt)
    for mark, kind, first, shared, answer, outcome in place.rows(
        "select step.id, kind, held, shared, answer.spent, outcome from step join run on n = run"
        " left join answer on step.id = answer.step"
    ):
        tries = attempts[mark]
        charged = [shared, *(each[1] for each in tries)]
        for accounts, (_, _, lost) in zip(charged, tries, strict=False):
            _add(spent, accounts, lost)
        if answer is not None:
            _add(spent, charged[-1], answer)
        elif outcome is None:
            _add(held, charged[-1], tries[-1][0] if tries else first, kind)
    return spent, held


def _add(book: dict[int, list[Units]], accounts: str | None, amount: str | None, kind: str = "pause") -> None:
    units = Units(*json.loads(amount)) if amount is not None else counts_of(kind)
    for number in json.loads(accounts) if accounts else ():
        book[number].append(shared_part(units))


Steps = list[tuple[str, Units]]


def by_steps(place: Place, run_id: str) -> tuple[Steps, Steps]:
    """What a run's rows say was spent, and is held, with the path of each step."""
    spent: Steps = []
    held: Steps = []
    attempts: dict[int, list[tuple[str, str]]] = defaultdict(list)
    for mark, reserved, lost in place.rows(
        "select step, attempt.held, lost from attempt join step on step.id = step join run on n = step.run"
        " where run.id = ? order by attempt.id",
        run_id,
    ):
        attempts[mark].append((reserved, lost))
    for mark, path, kind, first, answer, outcome in place.rows(
        "select step.id, path, kind, held, answer.spent, outcome from step join run on n = run"
        " left join answer on step.id = answer.step where run.id = ?",
        run_id,
    ):
        tries = attempts[mark]
        spent += [(path, units_in(lost)) for _, lost in tries]
        if answer is not None:
            spent.append((path, units_in(answer)))
        elif outcome is None:
            itself = units_in(first) if first is not None else counts_of(kind)
            if tries:  # the round or call goes on; all else is held by the newest attempt
                itself = Units(rounds=itself.rounds, tool_calls=itself.tool_calls).plus(units_in(tries[-1][0]))
            held.append((path, itself))
    return spent, held


def units_in(text: str) -> Units:
    return Units(*json.loads(text))


def watch_peaks(place: Place) -> None:
    """From now on the store itself notes each commit that takes a day, a mandate or a branch past one of its caps."""
    over = " or ".join(
        f"new.held_{unit} + new.spent_{unit} > new.cap_{unit} and new.held_{unit} + new.spent_{unit}"
        f" > old.held_{unit} + old.spent_{unit}"
        for unit in Units._fields
    )
    place.rows("create table passed(account integer)")
    place.add_trigger(
        "create trigger peak after update on account when new.scope in ('day', 'mandate', 'branch') and"
        f" ({over}) begin insert into passed values (new.id); end"
    )


def watch_reservations(place: Place) -> None:
    """From now on the store itself notes each commit that holds more of an account than its caps have room for."""
    units = [unit for unit in Units._fields if unit != "milliseconds"]  # a closing call has half a minute of its own
    over = " or ".join(
        f"new.held_{unit} > old.held_{unit} and new.held_{unit} + new.spent_{unit} > new.cap_{unit}" for unit in units
    )
    place.rows("create table reserved_over(account integer)")
    noted = "begin insert into reserved_over values (new.id); end"
    place.add_trigger(f"create trigger reserving after update on account when {over} {noted}")


def reserved_over(place: Place) -> int:
    """How many commits held more than there was room for: none ever may."""
    ((count,),) = place.rows("select count(*) from reserved_over")
    return int(count)


def count_passed_caps(place: Place) -> int:
    """Count the commits that took an account past a cap."""
    ((count,),) = place.rows("select count(*) from passed")
    return int(count)


def usage_of(read: int, written: int = 100) -> dict[str, Any]:
    """What a line of a script says that it used."""
    return {"usage": {"input_tokens": read, "output_tokens": written}}
