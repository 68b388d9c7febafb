"""What was done by whom, as a list and as a stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from kairos_mcp.app.context import Operations
from kairos_mcp.core.decision_rights import Actor
from kairos_mcp.store import audit
from kairos_mcp.store.audit import AuditEntry

OVERLAP_MS = 60_000  # a commit may become known so long after the moment that its row names
POLL_S = 1.0


class Auditing(Operations):
    """Read what was done, and record what no other row tells."""

    async def list_entries(self, since: int) -> list[AuditEntry]:
        """Return what was done since this moment (milliseconds since 1970), oldest first."""
        if not self._store.exists:
            return []
        return await self._store.read(lambda session: audit.list_entries(session, since))

    async def follow(self, since: int, poll_s: float = POLL_S) -> AsyncIterator[AuditEntry]:
        """Yield what was done since this moment, and then what is done, each once."""
        seen: dict[str, int] = {}
        newest = since
        while True:
            for entry in await self.list_entries(max(since, newest - OVERLAP_MS)):
                if entry.id not in seen:
                    yield entry
                    seen[entry.id] = entry.at
                    newest = max(newest, entry.at)
            seen = {name: at for name, at in seen.items() if at >= newest - OVERLAP_MS}
            await asyncio.sleep(poll_s)  # rows of other processes have no event

    async def record(self, what: str, act: str, about: str, actor: Actor) -> None:
        """Record an act, if there is a store yet."""
        if self._store.exists:
            at = self._clock()
            await self._store.submit(lambda session: audit.record(session, what, act, about, actor, at))
