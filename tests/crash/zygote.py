"""A program that imports no protocol library: it forks a child for each commit of a run, ends it there in one of
several ways, and lets another child go on.

For each line on stdin, `{root, journey, every, first, ways}`, it writes a JSON line a point to the file `report` in the
root, and one about the run that was not ended. It then prints 0, or 1 where that failed.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

from support.app import Place, asked_digests, assert_all_lawful, outcome_of, place_in, use_key_of_tests
from support.commits import call_after_commits, call_before_commits
from support.journeys import JOURNEYS, Journey, arrive, counting, gone_through

from kairos_mcp.app.app import App
from kairos_mcp.core.outcomes import Outcome
from kairos_mcp.store.key_file import KEY_BYTES, KEY_FILE


async def count_commits(place: Place, journey: Journey) -> int:
    """Go through the run undisturbed; returns the number of its commits."""
    async with App.open(journey.settings(place), via="mcp") as app:
        use_key_of_tests(app)
        await gone_through(app, place, journey)
        return app._store.writer.commits


class Ending:
    """Ends the child at its nth commit: before it is made, or after."""

    def __init__(self, way: str, nth: int) -> None:
        self.way, self.left = way, nth
        self.loop, self.task = asyncio.get_running_loop(), asyncio.current_task()

    def watch(self, app: App) -> None:
        call_at_commits = call_after_commits if self.way == "killed after" else call_before_commits
        call_at_commits(app, self._count)

    def _count(self) -> None:
        self.left -= 1
        if self.left != 0:
            return
        match self.way:
            case "killed before" | "killed after":
                os.kill(os.getpid(), signal.SIGKILL)
            case "cancelled":
                self.loop.call_soon_threadsafe(self.task.cancel)
            case _:
                raise ZeroDivisionError


async def ended_at(place: Place, journey: Journey, way: str, nth: int) -> None:
    async with App.open(journey.settings(place), via="mcp") as app:
        use_key_of_tests(app)
        Ending(way, nth).watch(app)
        await gone_through(app, place, journey)


async def recover_run(place: Place, journey: Journey) -> None:
    async with App.open(journey.settings(place), via="mcp") as app:
        use_key_of_tests(app)
        await gone_through(app, place, journey)
        await assert_all_lawful(app)
        assert app._store.find_damage(Outcome) == []


def in_a_child(work: Callable[[], Coroutine[Any, Any, None]], said: Path) -> int:
    """Run it in a fork of this process; its exit code, or minus its signal."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)  # what it was made to suffer is no news
            asyncio.run(work())
            code = 0
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main() -> None:
    for line in sys.stdin:
        order = json.loads(line)
        if os.fork() == 0:  # so that what one run has left in the memory of its process helps no other
            code = 1
            try:
                sweep(order)
                code = 0
            except Exception:
                traceback.print_exc()
            finally:
                os._exit(code)
        print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)


def sweep(order: dict[str, Any]) -> None:
    root = Path(order["root"])
    server = counting(root)
    try:
        with (root / "report").open("w") as report:
            points = sweep_points(root, JOURNEYS[order["journey"]], order["every"], order["first"], order["ways"])
            report.writelines(json.dumps(point) + "\n" for point in points)
    finally:
        os.kill(server, signal.SIGKILL)
        os.waitpid(server, 0)


def sweep_points(root: Path, journey: Journey, every: int, first: int, ways: list[str]) -> Iterator[dict[str, Any]]:
    reference = make_place(root / "reference")
    commits = asyncio.run(count_commits(reference, journey))
    ((run_id,),) = reference.rows("select id from run")
    asked, outcome, outside = (
        asked_digests(reference, run_id),
        outcome_of(reference, run_id),
        journey.outside(reference),
    )
    for number, way in enumerate(ways):
        own = first + number * every // len(ways)  # of a sample each way has points of its own
        for nth in range(own, commits + 1, every):
            place = make_place(root / f"{way}-{nth}")
            code = in_a_child(
                lambda place=place, way=way, nth=nth: ended_at(place, journey, way, nth), place.root / "1"
            )
            before = answers(place)
            again = in_a_child(lambda place=place: recover_run(place, journey), place.root / "2")
            after = answers(place)
            runs = [run for (run,) in place.rows("select id from run")]
            settled = place.rows("select count(*) from inbox where kind = 'settle'")[0][0]
            yield {
                "point": f"{way} {nth} of {commits}",
                "code": code,
                "again": again,
                "runs": len(runs),
                "same_steps": [sorted(asked_digests(place, run)) for run in runs] == [sorted(asked)],
                "same_digests": bool(settled) or [asked_digests(place, run) for run in runs] == [asked],
                "same_outcome": [ended_as(place, run) for run in runs] == [outcome],
                "same_outside": journey.outside(place) == outside,
                "untouched": journey.outside(place) in without_one(outside),
                "refused": failed_in_a_tool(place),
                "kept": before.items() <= after.items(),
                "answers": len(after),
                "settled": settled,
                "attempts": place.rows("select count(*) from attempt")[0][0],
                "damage": place.store().find_damage(Outcome),
                "said": (place.root / "2").read_text()[-1500:] if again else "",
            }
    yield {
        "answers": len(answers(reference)),
        "attempts": reference.rows("select count(*) from attempt")[0][0],
        "outside": outside,
        "mcp": "mcp" in sys.modules,
    }


def make_place(root: Path) -> Place:
    place = place_in(root)
    arrive(place)
    place.home.mkdir(mode=0o700, exist_ok=True)
    # One key for all, by which contents of files are hashed: what runs of two folders came to is compared.
    (place.home / KEY_FILE).write_bytes(bytes(KEY_BYTES))
    return place


def ended_as(place: Place, run: str) -> Any:
    """How a run ended, but for the mark that a tool leaves where a look after a crash found its work."""
    return json.loads(json.dumps(outcome_of(place, run)), object_hook=_without_interruption)


def _without_interruption(found: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in found.items() if key != "interrupted"}


def without_one(outside: Any) -> list[Any]:
    """What a run has done outside, but for one of its calls: its edit, its program or its request."""
    if not outside:
        return [outside]
    files = outside["files"]
    unmade = {name: text for name, text in files.items() if name != "made.txt"}
    return [
        {**outside, "files": {**files, "a.txt": "alpha\n"}},
        {**outside, "files": unmade, "made": 0},
        {**outside, "posted": 0},
    ]


def failed_in_a_tool(place: Place) -> int:
    """The calls of tools whose note could not be kept: an error of the disk that the model was told, and no effect."""
    if not answers(place):
        return 0
    return int(place.rows('select count(*) from answer where body like \'%"code":"tool_failed"%\'')[0][0])


def answers(place: Place) -> dict[str, tuple[Any, ...]]:
    """Every answer with the moment in which it was recorded: one that is given again is another."""
    if not place.has_tables():
        return {}
    found = place.rows("select path, answer.at, body from answer join step on step.id = answer.step")
    return {path: (at, body) for path, at, body in found}


if __name__ == "__main__":
    main()
