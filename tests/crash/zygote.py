"""A program that imports no protocol library: it forks a child for each commit of a reference run, ends it there in
one of several ways, and lets another child go on. It prints one JSON line a point."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from house import (
    ASK,
    ME,
    Place,
    asked_digests,
    asks,
    assert_all_lawful,
    finished,
    outcome_of,
    place_in,
    reads,
    says,
)

from kairos_mcp.host import Host
from kairos_mcp.spec import PlannerRequest

LINES = (reads("a.txt", "b.txt", "a.txt"), asks("why"), says("done"))
REQUEST = PlannerRequest("look around", caller_tools=(ASK,), key="reference")


async def gone_through(host: Host) -> None:
    """Start the reference run, or find it, and bring it to its end."""
    run_id = (await host.start_planner(REQUEST, ME)).run_id
    await finished(host, run_id)


async def counted(place: Place) -> int:
    """Go through the run undisturbed; the number of its commits."""
    async with Host.open(place.settings(*LINES), via="mcp") as host:
        await gone_through(host)
        return host._store.writer.commits


class Ending:
    """Ends the child at its nth commit: before it is made, or after."""

    def __init__(self, way: str, nth: int) -> None:
        self.way, self.left = way, nth
        self.task = asyncio.current_task()

    def watch(self, host: Host) -> None:
        connection = host._store.writer._connection
        if self.way == "killed after":
            connection.set_profile(self._ran)
        else:
            connection.set_commit_hook(self._asked)

    def _ran(self, statement: str, _nanoseconds: int) -> None:
        if statement == "commit":
            self._count()

    def _asked(self) -> bool:
        self._count()
        return False

    def _count(self) -> None:
        self.left -= 1
        if self.left != 0:
            return
        match self.way:
            case "killed before" | "killed after":
                os.kill(os.getpid(), signal.SIGKILL)
            case "cancelled":
                asyncio.get_event_loop().call_soon_threadsafe(self.task.cancel)
            case _:
                raise ZeroDivisionError


async def ended_at(place: Place, way: str, nth: int) -> None:
    async with Host.open(place.settings(*LINES), via="mcp") as host:
        Ending(way, nth).watch(host)
        await gone_through(host)


async def recovered(place: Place) -> None:
    async with Host.open(place.settings(*LINES), via="mcp") as host:
        await gone_through(host)
        assert_all_lawful(host)


def in_a_child(work: Callable[[], Coroutine[Any, Any, None]]) -> int:
    """Run it in a fork of this process; its exit code, or minus its signal."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # what it was made to suffer is no news
            asyncio.run(work())
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main(root: Path, ways: list[str], every: int) -> None:
    reference = place_in(root / "reference")
    commits = asyncio.run(counted(reference))
    (run_id,) = reference.rows("select id from run")[0]
    asked, outcome = asked_digests(reference, run_id), outcome_of(reference, run_id)
    for way in ways:
        for nth in range(1, commits + 1, every):
            place = place_in(root / f"{way}-{nth}")
            place.script.write_text(reference.script.read_text())
            code = in_a_child(lambda place=place, way=way, nth=nth: ended_at(place, way, nth))
            before = answers(place)
            again = in_a_child(lambda place=place: recovered(place))
            told = {
                "point": f"{way} {nth} of {commits}",
                "code": code,
                "again": again,
                "runs": place.rows("select count(*) from run")[0][0],
                "same_digests": [asked_digests(place, run) for (run,) in place.rows("select id from run")] == [asked],
                "same_outcome": [outcome_of(place, run) for (run,) in place.rows("select id from run")] == [outcome],
                "kept": before.items() <= answers(place).items(),
                "answers": len(answers(place)),
                "attempts": place.rows("select count(*) from attempt")[0][0],
                "integrity": place.rows("pragma integrity_check")[0][0],
            }
            print(json.dumps(told), flush=True)
    print(json.dumps({"answers": len(answers(reference)), "mcp": "mcp" in sys.modules}), flush=True)


def answers(place: Place) -> dict[str, tuple[Any, ...]]:
    """Every answer with the moment in which it was recorded: one that is given again is another."""
    if not place.db.exists() or not place.rows("select 1 from sqlite_master where name = 'answer'"):
        return {}
    found = place.rows("select path, answer.at, body from answer join mark on mark.id = answer.mark")
    return {path: (at, body) for path, at, body in found}


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[3:], int(sys.argv[2]))
