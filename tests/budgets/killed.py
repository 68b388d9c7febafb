"""A server that kills itself after so many commits of a team's run: `python killed.py FOLDER COMMITS`, with tests/ and
this folder on the path."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from support.app import ME, Place
from support.branches import DEEP, lines, team_app
from support.daily_accounts import ZONE, Clock

from kairos_mcp.core.limits import Limits
from kairos_mcp.core.run_spec import PlannerRequest

REQUEST = PlannerRequest("look", tools=("read_file",), limits=Limits(rounds=6), key="one")


async def main(root: str, commits: int) -> None:
    app = team_app(Place(Path(root)).settings(*lines(), time_zone=ZONE), DEEP, Clock(), lambda: "run-one")
    run_id = (await app.runs.start_planner(REQUEST, ME)).run_id
    while app._store.writer.commits < commits and (await app.runs.report(run_id, ME)).status == "working":  # noqa: ASYNC110 - a count has no event
        await asyncio.sleep(0)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
