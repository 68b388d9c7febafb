"""A server that kills itself after so many commits of a team's run: `python killed.py FOLDER COMMITS [more]`.

With tests/ and this folder on the path. `more`: the team's loops ask for more rounds."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

from support import postgres
from support.app import ME, Place
from support.branches import DEEP, Team, lines, looks, team_app
from support.daily_accounts import ZONE, Clock

from kairos_mcp.core.limits import Limits
from kairos_mcp.core.run_spec import PlannerRequest
from kairos_mcp.settings.settings import Settings

REQUEST = PlannerRequest("look", tools=("read_file",), limits=Limits(rounds=6), key="one")
MORE = PlannerRequest("look", tools=("read_file", "request_more_rounds"), key="one")
MORE_TEAM = Team(tasks=2, tries=1, tried=Limits(rounds=3), synthesis=False)
WHY = "There are twelve files left that nobody has looked at, each of them as long as those that were read so far."


def requests(additional: int = 5, justification: str = WHY, **more: Any) -> dict[str, Any]:
    """A turn that asks for more rounds."""
    given = {"additional": additional, "justification": justification, "progress_summary": "Six files were read."}
    return {"content": "more", "tool_calls": [{"name": "request_more_rounds", "arguments": given | more}]}


def settings_for(place: Place, *, asks_more: bool) -> Settings:
    """With a script for the team's loops: of those that ask for more rounds each has lines of its own."""
    if not asks_more:
        return place.settings(*lines(), time_zone=ZONE)
    (place.workspace / "a.txt").write_text("".join(f"line {n}\n" for n in range(400)))
    turns = [
        {"for": f"task-{task}/try-1/round-{number}"} | (requests(2) if number in (3, 5) else looks(10 * task + number))
        for task in (1, 2)
        for number in range(1, 8)
    ]
    turns += [{"for": f"task-{task}/try-1/closing", "content": "enough", "finish": "stop"} for task in (1, 2)]
    return place.settings(*turns, time_zone=ZONE, default_rounds=30)


async def killed_after(place: Place, commits: int, *more: str) -> None:
    """Let a server of its own run that team here until it has committed so often, and see it killed."""
    here = Path(__file__)
    path = os.pathsep.join(map(str, (here.parent.parent, here.parent, *sys.path)))
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        str(here),
        str(place.root),
        str(commits),
        *more,
        env={"PYTHONPATH": path} | postgres.chosen_environ(),
    )
    async with asyncio.timeout(60):
        assert await child.wait() == -signal.SIGKILL


async def main(root: str, commits: int, *, asks_more: bool) -> None:
    settings = settings_for(Place(Path(root)), asks_more=asks_more)
    app = team_app(settings, MORE_TEAM if asks_more else DEEP, Clock(), lambda: "run-one")
    run_id = (await app.runs.start(MORE if asks_more else REQUEST, ME)).run_id
    while app._store.writer.commits < commits and (await app.runs.report(run_id, ME)).status == "working":  # noqa: ASYNC110 - a count has no event
        await asyncio.sleep(0)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), asks_more="more" in sys.argv[3:]))
