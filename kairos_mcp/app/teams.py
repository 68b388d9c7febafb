"""What teams have come to, read from rows and kept until their rows change."""

from __future__ import annotations

from collections import OrderedDict

from kairos_mcp.app.run_factory import RunFactory
from kairos_mcp.core.errors import KairosError, ReplayDiffers
from kairos_mcp.store.database import Store
from kairos_mcp.store.queries import RunRow
from kairos_mcp.views.read_team import read_team
from kairos_mcp.views.team_view import TeamView

MAX_VIEWS = 16  # kept: somebody who waits for a team looks at it each second, and most looks find it unchanged


class TeamViews:
    """Reads what team runs, and plans alone, have come to: each time from all of a run's rows, if they have changed."""

    def __init__(self, store: Store, factory: RunFactory) -> None:
        self._store = store
        self._factory = factory
        self._known: OrderedDict[int, tuple[int, TeamView]] = OrderedDict()  # by run, with the `seq` that it is of

    async def find(self, run: RunRow) -> TeamView | None:
        """Return what the team of this run has come to; None where its rows can't tell it."""
        seq, known = self._known.get(run.n, (None, None))
        if known is not None and seq == run.seq:
            return known
        try:
            self._factory.check_version(run)
            loaded = (await self._factory.specs.load(run)).team
            if loaded is None:
                return None
            found = await self._store.read(lambda session: read_team(session, run.n, loaded), one_state=True)
        except (KairosError, ReplayDiffers):
            return None
        self._known[run.n] = run.seq, found
        self._known.move_to_end(run.n)
        while len(self._known) > MAX_VIEWS:
            self._known.popitem(last=False)
        return found
