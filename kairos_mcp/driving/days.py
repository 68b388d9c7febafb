"""What every model call is charged to today, beside its run: its principal's day, there the mandate that it works on.

Found once a day, checked at first use."""

from __future__ import annotations

import apsw

from kairos_mcp.configuration.settings import Settings
from kairos_mcp.driving.standing import Charged
from kairos_mcp.errors import BadArguments
from kairos_mcp.mandates.mandate import mandate_of
from kairos_mcp.periods import Day, day_at
from kairos_mcp.steps import UNLIMITED, Limits
from kairos_mcp.store import accounts, mandates
from kairos_mcp.store.codec import decode_fields, no
from kairos_mcp.store.connection import one_state
from kairos_mcp.store.flagged import USED_UP
from kairos_mcp.store.mandates import MandateRow
from kairos_mcp.store.store import Store
from kairos_mcp.store.turn import Paused


class Days:
    """The days' accounts that this server knows; one for each principal and mandate, the newest."""

    def __init__(self, settings: Settings, store: Store) -> None:
        self._settings = settings
        self._store = store
        self._known: dict[tuple[str, str | None], tuple[Day, Charged]] = {}

    async def charged(self, principal: str, mandate: str | None, at: int) -> Charged:
        """The account of the day that this moment belongs to, and that of the mandate (its id) on it. Raises
        StoreCorrupt where one is not the sum of its rows, or one that something was charged to on this day is gone.

        A clock that was set back finds the account of that day again, with all that was spent on it.
        """
        known = self._known.get((principal, mandate))
        if known is not None and known[0].begins <= at < known[0].ends:
            return known[1]
        day, caps = day_at(at, self._settings.time_zone), self._settings.day

        def found(connection: apsw.Connection) -> tuple[int, ...]:
            account = accounts.day_account(connection, principal, day.name, caps).id
            if mandate is None:
                return (account,)
            own = caps_of_day(mandates.find(connection, principal, mandate))
            return account, accounts.mandate_account(connection, account, mandate, own).id

        shared = await self._store.submit(found)
        with one_state(self._store.reader) as reader:
            for account in shared:
                accounts.check(reader, account)
            accounts.check_none_lost(reader, principal, day.begins, day.ends)
        charged = Charged(shared, Paused(USED_UP["day"], day.ends))
        self._known[principal, mandate] = day, charged
        return charged


def caps_of_day(saved: MandateRow | None) -> Limits:
    """What all runs of a mandate may use on a day, as it is saved now; one that is not saved has no say."""
    if saved is None:
        return UNLIMITED
    try:
        return mandate_of(decode_fields(saved.body)).day
    except BadArguments as error:
        raise no("mandate") from error
