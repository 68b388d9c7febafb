"""The call that a result names as the next can be made, by whoever is told it: on a copy of the store it is."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import apsw
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.app import ASK, ME, Place, few, place_in
from support.journeys import JOURNEYS, MANDATE, PLAN, Journey, arrive, counting, gone_through
from support.next_calls import fill, find_problems, next_calls
from support.sampling_clients import ConnectedClient, connect_client
from support.tool_examples import EXAMPLES

from kairos_mcp.app.app import App
from kairos_mcp.flows.ooda.phase_kinds import PHASES
from kairos_mcp.server.tools import TOOLS
from kairos_mcp.settings.settings import Settings

WAITS = {tool.name for tool in TOOLS if "wait_s" in tool.arguments.model_fields}
MOVES = 6  # of a caller with one run


def copied(settings: Settings, into: Path) -> Settings:
    """The same settings over a copy of the state folder as it is now."""
    into.mkdir()
    for file in settings.home.iterdir():
        if file.is_file() and not file.name.startswith("kairos.db"):
            shutil.copy(file, into)
    with_rows = apsw.Connection(str(settings.home / "kairos.db"), flags=apsw.SQLITE_OPEN_READONLY)
    target = apsw.Connection(str(into / "kairos.db"))
    with target.backup("main", with_rows, "main") as backup:
        while not backup.done:
            backup.step(100)
    target.close()
    with_rows.close()
    return replace(settings, home=into)


async def call(client: ConnectedClient, tool: str, arguments: Mapping[str, Any]) -> tuple[bool, dict[str, Any]]:
    """A call that waits for nothing; whether it was refused, and its result."""
    waits = {"wait_s": 0} if tool in WAITS else {}
    result = await client.sdk_client.call_tool(tool, {**arguments, **waits})
    body = result.structured_content
    assert find_problems(body) == []
    # A tool of a run that failed is no refusal of the call that asked for its run.
    return bool(result.is_error and "code" in body), body


def follower(settings: Settings, root: Path) -> Callable[[Mapping[str, Any]], Awaitable[None]]:
    """Makes each call that a result names, on a copy of its own, and asserts that it is not refused."""
    numbers = itertools.count()

    async def follow(body: Mapping[str, Any]) -> None:
        for named in next_calls(body):
            copy = copied(settings, root / f"copy-{next(numbers)}")
            async with App.open(copy, via="mcp") as app, connect_client(app) as client:
                refused, told = await call(client, named["tool"], fill(named["arguments"]))
            assert not refused, (named, told)
            shutil.rmtree(copy.home)

    return follow


@pytest.fixture(scope="module")
def posting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder beside which a process takes what runs post."""
    import os
    import signal

    root = tmp_path_factory.mktemp("posts")
    child = counting(root)
    yield root
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


@pytest.mark.state_file("the copy is one of a file")
@pytest.mark.parametrize("journey", JOURNEYS.values(), ids=JOURNEYS)
async def test_wherever_a_journey_rests_its_next_call_is_taken(posting: Path, journey: Journey, tmp_path: Path) -> None:
    place = place_in(posting / tmp_path.name)
    arrive(place)
    settings = journey.settings(place)
    follow = follower(settings, tmp_path)
    seen: list[str] = []
    async with App.open(settings, via="mcp") as app, connect_client(app) as client:

        async def look(run_id: str) -> None:
            for asked in ({"run_ids": [run_id]}, {}):
                _, body = await call(client, "run_status", asked)
                seen.extend(named["tool"] for named in next_calls(body))
                await follow(body)

        await gone_through(app, place, journey, look)
    names_none = (JOURNEYS["reflect"], JOURNEYS["call"])  # they end without a next call
    assert bool(seen) is (journey not in names_none)


STARTS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "planner": ("planner_run", {"goal": "look"}),
    "with tools": (
        "planner_run",
        {
            "goal": "ask",
            "caller_tools": [{"name": "ask_person", "description": "Asks.", "input_schema": ASK.input_schema}],
            "limits": {"rounds": 1},
        },
    ),
    "plan": ("planner_plan", {"goal": "look"}),
    "team": ("team_run", {"goal": "see to it", "plan": PLAN}),
    "observe": ("ooda_observe", {"goal": "Mend."}),
    "orient": ("ooda_orient", {"mandate": MANDATE, "observation": {"observations": []}}),
    "cycles": ("ooda_run", {"mandate": MANDATE, "cycles": 1}),
}
OF_PHASES = {phase.tool for phase in PHASES.values()}
ON_ROUTES = [
    tool.name
    for tool in TOOLS
    if hasattr(tool.arguments, "request") and "route" in tool.arguments.model_fields and tool.name not in OF_PHASES
]
EACH_START = {name: (name, EXAMPLES[name].calls[0]) for name in ON_ROUTES} | STARTS
LOOKS = {"tool_calls": [{"id": "1", "name": "list_files", "arguments": {}}]}
ASKS = {"tool_calls": [{"id": "1", "name": "ask_person", "arguments": {}}]}
NOOP = {"content": '{"action": "noop", "reason": "All is well."}'}
moves = st.lists(
    st.sampled_from(["follow", "look", "ask", "noop", "pause", "resume", "cancel", "caller", "extend", "elsewhere"]),
    max_size=MOVES,
)


@pytest.mark.state_file("the copy is one of a file")
@given(start=st.sampled_from(sorted(EACH_START)), moves=moves, folder=st.sampled_from([None, "other"]))
@few
async def test_whatever_a_caller_did_the_next_call_is_taken(
    tmp_path_factory: pytest.TempPathFactory, start: str, moves: list[str], folder: str | None
) -> None:
    root = tmp_path_factory.mktemp("next")
    place = place_in(root / "place")
    other = root / "other"
    other.mkdir()
    settings = place.settings(workspaces=(place.workspace, other))
    follow = follower(settings, root)
    tool, arguments = EACH_START[start]
    asked = {**arguments, "route": "caller"} | ({"workspace": folder} if folder and tool != "planner_plan" else {})
    async with App.open(settings, via="mcp") as app, connect_client(app) as client:
        refused, body = await call(client, tool, asked)
        assert not refused, body
        run_id = body["run_id"]
        for move in [*moves, "elsewhere"]:
            await app.runs.wait([run_id], until="rest", wait_s=20, caller=ME)
            _, body = await call(client, "run_status", {"run_ids": [run_id]})
            await follow(body)
            (run,) = body["runs"]
            await _move(client, place, move, run)


async def _move(client: ConnectedClient, place: Place, move: str, run: Mapping[str, Any]) -> None:
    """Do something with the run, allowed or not."""
    run_id, waiting = run["run_id"], [item["key"] for item in run["waiting"]]
    match move:
        case "follow" if run["next"] is not None:
            await call(client, run["next"]["tool"], fill(run["next"]["arguments"]))
        case "look" | "ask" | "noop":
            answer = {"look": LOOKS, "ask": ASKS, "noop": NOOP}[move]
            await call(client, "run_continue", {"run_id": run_id, "answers": dict.fromkeys(waiting, answer)})
        case "pause" | "resume" | "cancel":
            await call(client, "run_control", {"run_id": run_id, "action": move})
        case "caller":
            await call(client, "run_control", {"run_id": run_id, "action": "reroute", "route": "caller"})
        case "extend":
            await call(client, "run_control", {"run_id": run_id, "action": "extend", "limits": {"rounds": 1}})
        case "elsewhere":  # a server of another folder is asked
            settings = place.settings(workspaces=(place.root,))
            async with App.open(settings, via="mcp") as app, connect_client(app) as other:
                _, body = await call(other, "run_status", {"run_ids": [run_id]})
                for named in next_calls(body):
                    refused, told = await call(other, named["tool"], fill(named["arguments"]))
                    assert not refused, (named, told)
        case _:
            pass
