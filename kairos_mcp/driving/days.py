"""What every model call of a principal is charged to today, beside its run: found once a day, checked at first use."""

from __future__ import annotations

from kairos_mcp.configuration.settings import Settings
from kairos_mcp.driving.standing import Charged
from kairos_mcp.periods import Day, day_at
from kairos_mcp.store import accounts
from kairos_mcp.store.connection import one_state
from kairos_mcp.store.store import Store
from kairos_mcp.store.turns import Paused


class Days:
    """The days' accounts that this server knows; one for each principal, the newest."""

    def __init__(self, settings: Settings, store: Store) -> None:
        self._settings = settings
        self._store = store
        self._known: dict[str, tuple[Day, Charged]] = {}

    async def charged(self, principal: str, at: int) -> Charged:
        """The account of the day that this moment belongs to. Raises StoreCorrupt where it is not the sum of its rows,
        or one that something was charged to on this day is gone.

        A clock that was set back finds the account of that day again, with all that was spent on it.
        """
        known = self._known.get(principal)
        if known is not None and known[0].begins <= at < known[0].ends:
            return known[1]
        day, caps = day_at(at, self._settings.time_zone), self._settings.day
        account = await self._store.submit(lambda c: accounts.day_account(c, principal, day.name, caps))
        with one_state(self._store.reader) as reader:
            accounts.check(reader, account.id)
            accounts.check_none_lost(reader, principal, day.begins, day.ends)
        used_up = Paused("What may be used on a day is used up (`kairos-mcp budget`).", day.ends)
        charged = Charged((account.id,), used_up)
        self._known[principal] = day, charged
        return charged
