"""What every model call is charged to today, beside its run: its principal's day, there the mandate that it works on.

Found once a day, checked at first use. A day once begun is not opened again: where the clock was set back, the latest
day that was begun is charged until the clock has passed it."""

from __future__ import annotations

from dataclasses import dataclass

import apsw

from kairos_mcp.core.calendar import Day, day_at, parse_day
from kairos_mcp.core.errors import BadArguments, StoreCorrupt
from kairos_mcp.core.limits import UNLIMITED, Limits
from kairos_mcp.core.mandate import parse_mandate
from kairos_mcp.execution.run_state import ChargedAccounts
from kairos_mcp.settings.settings import Settings
from kairos_mcp.store import accounts, mandates
from kairos_mcp.store.codec import decode_fields, unreadable
from kairos_mcp.store.commit import Paused
from kairos_mcp.store.connection import snapshot
from kairos_mcp.store.database import Store
from kairos_mcp.store.mandates import MandateRow
from kairos_mcp.store.notes import USED_UP_REASONS, clock_behind_reason
from kairos_mcp.store.queries import RunRow

MAX_AHEAD_MS = 48 * 3_600_000  # a clock that was wrong by more is for a person to say


@dataclass(frozen=True, slots=True)
class DayToCharge:
    """The day that a principal's model calls are charged to. `ahead`: the clock shows an earlier one; `barred`: one so
    much earlier that nobody is charged before a person has said which of the two is right."""

    day: Day
    is_ahead: bool = False
    is_barred: bool = False


def day_to_charge(connection: apsw.Connection, principal: str, at: int, time_zone: str) -> DayToCharge:
    """The day of this moment, or the latest that was begun for the principal. Raises StoreCorrupt for a day that is
    none."""
    today, newest = day_at(at, time_zone), accounts.newest_day(connection, principal)
    if newest is None or newest <= today.name:
        return DayToCharge(today)
    try:
        later = parse_day(newest, time_zone)
    except ValueError:
        raise StoreCorrupt("The account of a day is of none that there is.", "Run `kairos-mcp doctor`.") from None
    return DayToCharge(later, is_ahead=True, is_barred=later.begins - at > MAX_AHEAD_MS)


class DailyAccounts:
    """The days' accounts that this server knows; one for each principal and mandate, the newest."""

    def __init__(self, settings: Settings, store: Store) -> None:
        self._settings = settings
        self._store = store
        self._known: dict[tuple[str, str, str | None], tuple[Day, ChargedAccounts]] = {}

    async def find_accounts(self, run: RunRow, mandate: str | None, at: int) -> ChargedAccounts:
        """The account of the day that this moment belongs to, and that of the mandate (its id, in the run's workspace)
        on it. Raises StoreCorrupt where one is not the sum of its rows, or one that something was charged to since is
        gone."""
        principal, workspace = run.principal, run.workspace or ""
        whose = principal, workspace, mandate
        known = self._known.get(whose)
        if known is not None and self._is_still_charged(principal, known[0], at):
            return known[1]
        time_zone, caps = self._settings.time_zone, self._settings.day

        def found(connection: apsw.Connection) -> tuple[DayToCharge, tuple[int, ...]]:
            meant = day_to_charge(connection, principal, at, time_zone)
            if meant.is_barred:
                return meant, ()
            account = accounts.ensure_day_account(connection, principal, meant.day.name, caps).id
            if mandate is None:
                return meant, (account,)
            own = mandate_day_caps(mandates.find(connection, principal, workspace, mandate))
            return meant, (account, accounts.ensure_mandate_account(connection, account, workspace, mandate, own).id)

        meant, shared = await self._store.submit(found)
        if meant.is_barred:
            return ChargedAccounts(pause_when_used_up=Paused(clock_behind_reason(principal), None), is_barred=True)
        day = meant.day
        with snapshot(self._store.reader) as reader:
            for account in shared:
                accounts.check_shared_account(reader, account)
            accounts.check_day_accounts_exist(reader, principal, min(day.begins, at))
        charged = ChargedAccounts(shared, Paused(USED_UP_REASONS["day"], day.ends))
        self._known[whose] = day, charged
        return charged

    def _is_still_charged(self, principal: str, day: Day, at: int) -> bool:
        """Whether a day that is known is still the one to charge; of a later one than the clock shows that is asked."""
        if day.begins <= at:
            return at < day.ends
        return day_to_charge(self._store.reader, principal, at, self._settings.time_zone) == DayToCharge(
            day, is_ahead=True
        )


def mandate_day_caps(saved: MandateRow | None) -> Limits:
    """What all runs of a mandate may use on a day, as it is saved now; one that is not saved has no say."""
    if saved is None:
        return UNLIMITED
    try:
        return parse_mandate(decode_fields(saved.body)).day
    except BadArguments as error:
        raise unreadable("mandate") from error
