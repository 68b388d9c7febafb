"""Find the accounts of today that a model call is charged to beside its run: its principal's day, and its mandate's.

They are found once a day and checked at first use. A day is opened once: if the clock was set back, the latest day that
was opened is charged until the clock has passed it.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import dataclass

from kairos_mcp.core.calendar import Day, day_at, parse_day
from kairos_mcp.core.errors import BadArguments, StoreCorrupt
from kairos_mcp.core.limits import UNLIMITED, Limits
from kairos_mcp.core.mandate import parse_mandate
from kairos_mcp.settings.settings import Settings
from kairos_mcp.store import accounts, mandates
from kairos_mcp.store.codec import decode_fields, unreadable
from kairos_mcp.store.commit import ChargedAccounts, Paused
from kairos_mcp.store.database import Store
from kairos_mcp.store.mandates import MandateRow
from kairos_mcp.store.queries import RunRow
from kairos_mcp.store.report_queries import USED_UP_REASONS, clock_behind_reason
from kairos_mcp.store.session import Session, read_each, read_together

MAX_AHEAD_MS = 48 * 3_600_000  # if the clock was wrong by more, a person has to say which day is right


@dataclass(frozen=True, slots=True)
class DayToCharge:
    """The day that a principal's model calls are charged to.

    `is_ahead`: the clock shows an earlier day. `is_barred`: it is so much earlier that no model is called before a
    person has said which of the two is right.
    """

    day: Day
    is_ahead: bool = False
    is_barred: bool = False


def day_to_charge(session: Session, principal: str, at: int, time_zone: str) -> DayToCharge:
    """Return the day of this moment, or the latest that was opened for the principal.

    Raises StoreCorrupt for a day that does not exist.
    """
    today, newest = day_at(at, time_zone), accounts.newest_day(session, principal)
    if newest is None or newest <= today.name:
        return DayToCharge(today)
    try:
        later = parse_day(newest, time_zone)
    except ValueError:
        raise StoreCorrupt("The account of a day is of none that there is.", "Run `kairos-mcp doctor`.") from None
    return DayToCharge(later, is_ahead=True, is_barred=later.begins - at > MAX_AHEAD_MS)


class DailyAccounts:
    """A cache of the newest day's accounts, for each principal and mandate."""

    def __init__(self, settings: Settings, store: Store) -> None:
        self._settings = settings
        self._store = store
        self._known: dict[tuple[str, str, str | None], tuple[Day, ChargedAccounts]] = {}
        self._finding: defaultdict[tuple[str, str, str | None], asyncio.Lock] = defaultdict(asyncio.Lock)

    def known_accounts(self, run: RunRow, mandate: str | None, at: int) -> ChargedAccounts | None:
        """Return what `find_accounts` would, where no row has to be read for it; else None."""
        known = self._known.get((run.principal, run.workspace or "", mandate))
        return known[1] if known is not None and known[0].begins <= at < known[0].ends else None

    async def find_accounts(self, run: RunRow, mandate: str | None, at: int) -> ChargedAccounts:
        """Return the account of the day of this moment, and that of the mandate (its id, in the run's workspace) on it.

        Raises StoreCorrupt where an account is not the sum of its rows, or is missing although something was charged to
        it.
        """
        key = run.principal, run.workspace or "", mandate
        async with self._finding[key]:  # a check reads all charges of the day, and many runs begin or are taken at once
            known = self._known.get(key)
            if known is not None and await self._is_still_charged(run.principal, known[0], at):
                return known[1]
            return await self._find_and_check(*key, at)

    async def _find_and_check(self, principal: str, workspace: str, mandate: str | None, at: int) -> ChargedAccounts:
        time_zone, caps = self._settings.time_zone, self._settings.day

        def find_or_open(session: Session) -> tuple[DayToCharge, tuple[int, ...]]:
            charged = day_to_charge(session, principal, at, time_zone)
            if charged.is_barred:
                return charged, ()
            account = accounts.ensure_day_account(session, principal, charged.day.name, caps).id
            if mandate is None:
                return charged, (account,)
            own = mandate_day_caps(mandates.find(session, principal, workspace, mandate))
            return charged, (account, accounts.ensure_mandate_account(session, account, workspace, mandate, own).id)

        day_found, shared = await self._store.submit(find_or_open)
        if day_found.is_barred:
            return ChargedAccounts(pause_when_used_up=Paused(clock_behind_reason(principal), None), is_barred=True)
        day = day_found.day

        def check_accounts(session: Session) -> None:
            read_together(
                session,
                lambda session: read_each(session, accounts.check_shared_account, shared),
                lambda session: accounts.check_day_accounts_exist(session, principal, min(day.begins, at)),
            )

        await self._store.read(check_accounts, one_state=True)
        charged_accounts = ChargedAccounts(shared, Paused(USED_UP_REASONS["day"], day.ends))
        self._known[principal, workspace, mandate] = day, charged_accounts
        return charged_accounts

    async def _is_still_charged(self, principal: str, day: Day, at: int) -> bool:
        """Whether a cached day is still the one to charge. If the clock shows an earlier day, the rows are read."""
        if day.begins <= at:
            return at < day.ends
        zone = self._settings.time_zone
        to_charge = await self._store.read(lambda session: day_to_charge(session, principal, at, zone))
        return to_charge == DayToCharge(day, is_ahead=True)


def mandate_day_caps(saved: MandateRow | None) -> Limits:
    """Return what all runs of a mandate may use on a day, as it is saved now; unlimited if it is not saved."""
    if saved is None:
        return UNLIMITED
    try:
        return parse_mandate(decode_fields(saved.body)).day
    except BadArguments as error:
        raise unreadable("mandate") from error
