"""What a transaction writes last: rows that runs share, which others would wait for from then on.

Where the jobs of several servers write side by side, each under the locks of its own runs, two of them could wait for
each other over a shared account or a text. So these are collected while the jobs run, summed, and written at the end in
one order, by all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kairos_mcp.budget.units import NOTHING, Units
from kairos_mcp.store import texts

if TYPE_CHECKING:
    from kairos_mcp.store.reservations import SharedChange
    from kairos_mcp.store.session import Session


class LastWrites:
    """Texts, and changes of shared accounts. `count`: how many were collected."""

    def __init__(self) -> None:
        self.count = 0
        self._texts: dict[str, str] = {}
        self._charges: dict[int, tuple[SharedChange, Units, int]] = {}

    def keep_text(self, content_hash: str, body: str) -> None:
        """Store a text."""
        self.count += 1
        self._texts[content_hash] = body

    def charge(self, account: int, change: SharedChange, limited: Units = NOTHING, spare: int = 0) -> None:
        """Change a shared account, if it has room; see SharedChange.write_if_room."""
        self.count += 1
        if (before := self._charges.get(account)) is not None:
            change, limited = before[0].plus(change), before[1].plus(limited)
            spare = max(spare, before[2])
        self._charges[account] = change, limited, spare

    def write(self, session: Session) -> None:
        """Write all of it. `session`: one that collects nothing, and fails where a shared account has no room."""
        texts.keep_texts(session, sorted(self._texts.items()))
        for account, (change, limited, spare) in sorted(self._charges.items()):
            change.write_if_room(session, account, limited, spare=spare)
