"""Records histories: `python tests/histories/record.py [NAME ...]` runs each scenario and exports what it recorded.

A history that is there is left as it is, since it shows what was asked when it was recorded; `--anew` replaces it. When
a flow's version is raised, its scenarios are recorded once more, under the new version; the old files stay.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
sys.path.insert(0, str(Path(__file__).parent))

from cycles import GIVEN, alone, cycles
from support.app import ASK, ME, Place, asks, place_in, reads, rests, says
from teams import TEAMS

from kairos_mcp.app.app import App
from kairos_mcp.core.limits import Limits
from kairos_mcp.core.run_spec import PlannerRequest
from kairos_mcp.specs.kinds import KINDS

HERE = Path(__file__).parent
SCHEMA = {"type": "object", "properties": {"lines": {"type": "integer"}}, "required": ["lines"]}
LONG = "line\n" * 6_000


async def tools(app: App, place: Place) -> str:
    """Reads side by side, a file that is not there, a call with bad arguments, a tool that was not offered."""
    return await _planner(app, PlannerRequest("What is in the two files?"))


tools.lines = (
    reads("a.txt", "b.txt", "missing.txt"),
    {
        "tool_calls": [
            {"name": "search_files", "arguments": {"pattern": "("}},
            {"name": "no_such_tool", "arguments": {}},
        ]
    },
    {"content": "cut", "finish": "length"},
    {"content": "again", "tool_calls": [{"name": "list_files", "arguments": {}}]},
    says("Greek letters."),
)


async def compaction(app: App, place: Place) -> str:
    """A conversation that is shortened in the middle."""
    (place.workspace / "long.txt").write_text(LONG)
    return await _planner(app, PlannerRequest("Read the long file twice."))


compaction.lines = (
    reads("long.txt"),
    reads("a.txt"),
    reads("long.txt", "b.txt"),
    {"content": "## Goal\nRead twice.\n## Progress\nDone once."},
    reads("b.txt"),
    says("Read."),
)
compaction.settings = {"context_tokens": 9_000}


async def repair(app: App, place: Place) -> str:
    """An output that fits its schema at the second try."""
    return await _planner(app, PlannerRequest("How many lines has b.txt?", output_schema=SCHEMA))


repair.lines = (reads("b.txt"), says("two lines"), says('{"lines": "two"}'), says('{"lines": 2}'))


async def closing(app: App, place: Place) -> str:
    """A limit on rounds, and the summary after it."""
    return await _planner(app, PlannerRequest("Go on for ever.", limits=Limits(rounds=2)))


closing.lines = (reads("a.txt"), reads("b.txt"), says("Two files were read."))


async def repeat_a_call(app: App, place: Place) -> str:
    """The same call again and again: a warning, then the end."""
    return await _planner(app, PlannerRequest("Look.", limits=Limits(rounds=9)))


repeat_a_call.lines = (*(reads("a.txt") for _ in range(5)), says("It is alpha, always."))


async def caller(app: App, place: Place) -> str:
    """The caller thinks, and has a tool of its own."""
    request = PlannerRequest("Ask somebody.", caller_tools=(ASK,), route="caller")
    run_id = (await app.runs.start(request, ME)).run_id
    await rests(app, run_id)
    asked = {"content": "I ask.", "tool_calls": [{"id": "x", **asks("why")["tool_calls"][0]}]}
    for answer in ({"round-1": asked}, {"round-1/call-1": {"content": "because"}}, {"round-2": says("Because.")}):
        await app.answers.submit(run_id, answer, ME)
        await rests(app, run_id)
    return run_id


async def continue_run(app: App, place: Place) -> str:
    """A run that goes on from another."""
    first = await _planner(app, PlannerRequest("What is in a.txt?"))
    return await _planner(app, PlannerRequest("And in b.txt?", continues=first))


continue_run.lines = (reads("a.txt"), says("alpha"))


async def cancel_run(app: App, place: Place) -> str:
    """Ended by its caller while it waited."""
    run_id = (await app.runs.start(PlannerRequest("Wait.", caller_tools=(ASK,)), ME)).run_id
    await rests(app, run_id)
    await app.control.cancel(run_id, ME)
    await rests(app, run_id)
    return run_id


cancel_run.lines = (asks("why"),)


async def call(app: App, place: Place) -> str:
    """One tool, called outside a loop."""
    run_id = await app.runs.start_call("read_file", {"path": "b.txt", "start_line": 2}, ME)
    await rests(app, run_id)
    return run_id


async def call_failed(app: App, place: Place) -> str:
    """One tool that fails."""
    run_id = await app.runs.start_call("read_file", {"path": "missing.txt"}, ME)
    await rests(app, run_id)
    return run_id


Scenario = Callable[[App, Place], Awaitable[str]]
SCENARIOS: dict[str, tuple[str, Scenario]] = {
    "tools": ("planner", tools),
    "compaction": ("planner", compaction),
    "repair": ("planner", repair),
    "closing": ("planner", closing),
    "stalled": ("planner", repeat_a_call),
    "caller": ("planner", caller),
    "continued": ("planner", continue_run),
    "cancelled": ("planner", cancel_run),
    "ok": ("call", call),
    "failed": ("call", call_failed),
    "cycles": ("ooda_run", cycles),
    **{phase: (f"ooda_{phase}", alone(phase)) for phase in GIVEN},
    **TEAMS,
}


def file_of(name: str) -> Path:
    """Where the history of a scenario lies, for the flow's version of today."""
    flow, _ = SCENARIOS[name]
    return HERE / f"{flow}-{KINDS[flow].specs.version}-{name}.jsonl"


async def _planner(app: App, request: PlannerRequest) -> str:
    run_id = (await app.runs.start(request, ME)).run_id
    await rests(app, run_id)
    return run_id


async def record_history(name: str, root: Path) -> bytes:
    """Run the scenario in an app of its own, with numbers for ids and a clock that ticks when it is asked."""
    _, scenario = SCENARIOS[name]
    place = place_in(root / name)
    settings = place.settings(*getattr(scenario, "lines", ()), **getattr(scenario, "settings", {}))
    ticks, numbers = itertools.count(1_700_000_000_000, 10), itertools.count(1)
    app = App(settings, "history", lambda: next(ticks), lambda: f"run-{name}-{next(numbers)}")
    try:
        run_id = await scenario(app, place)
        return b"".join(await app.records.export(run_id, ME))
    finally:
        await app._close()


def main(names: list[str], *, anew: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name in names or SCENARIOS:
            if file_of(name).exists() and not anew:
                print(f"{file_of(name).name}: left as it is")
                continue
            file_of(name).write_bytes(asyncio.run(record_history(name, Path(folder))))
            print(f"{file_of(name).name}: recorded")


if __name__ == "__main__":
    main([word for word in sys.argv[1:] if not word.startswith("-")], anew="--anew" in sys.argv)
