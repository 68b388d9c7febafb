"""Each client that others wrote completes a planner run of three rounds, which reads a file, in the best way it can."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.foreign.cells import CELLS, INSPECTOR_CLI, OPENAI_AGENTS, Cell
from tests.foreign.driving import drive
from tests.foreign.environs import Environ, version
from tests.foreign.served import Place

pytestmark = pytest.mark.foreign

MARKS = [
    ("round-1", "round"),
    ("round-1/call-1", "call"),
    ("round-2", "round"),
    ("round-2/call-1", "call"),
    ("round-3", "round"),
]
MODERN = "2026-07-28"
LONGER_THAN_PATIENCE_S = 7


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_three_rounds_that_read_a_file(
    cell: Cell,
    environment: Callable[[Environ], Path],
    results: list[dict[str, Any]],
    tmp_path: Path,
) -> None:
    place = Place(tmp_path / "place").lay()
    folder = environment(cell.client.environ)
    found = cell.describe() | {"version": version(cell.client.environ, folder, cell.client.package)}
    results.append(found)
    began = time.monotonic()
    result = drive(cell.client, folder, place, cell.transport, era=cell.era, way=cell.way)
    found["seconds"] = round(time.monotonic() - began, 1)

    if "protocol" in result:
        assert (result["protocol"] == MODERN) == (cell.era == "modern")
    ended = result["result"]
    assert (ended["status"], ended["rounds"], ended["summary"]) == ("completed", 3, place.word)
    ((run_id, outcome),) = place.rows("select id, outcome from run")
    assert (run_id, json.loads(outcome)["summary"]) == (ended["run_id"], place.word)
    assert place.rows("select path, kind from mark order by id") == MARKS
    found["way"] = way_taken(place, result.get("asked", []))
    assert found["way"] == cell.way_due
    assert place.replays(run_id)
    if cell.client is INSPECTOR_CLI:
        assert result["strict"]["code"] == 0, result["strict"]["said"]
    found["result"] = "ok"


def test_an_agent_that_gave_up_finds_its_run_again(environment: Callable[[Environ], Path], tmp_path: Path) -> None:
    place = Place(tmp_path / "place").lay()
    script = tmp_path / "script.jsonl"
    look = {"tool_calls": [{"id": "c1", "name": "list_files", "arguments": {}}]}
    lines = [look | {"delay_s": LONGER_THAN_PATIENCE_S}, {"content": "done", "finish": "stop"}]
    script.write_text("".join(json.dumps(line) + "\n" for line in lines))
    client = replace(OPENAI_AGENTS, script="openai_agents_gives_up.py")
    result = drive(client, environment(client.environ), place, "stdio", script=str(script))
    assert result["gave_up"] >= 1
    ((run_id, status),) = place.rows("select id, outcome ->> 'status' from run")
    assert (result["result"]["run_id"], status) == (run_id, "completed")
    assert place.rows("select count(*) from mark where path = 'round-1'") == [(1,)]


def way_taken(place: Place, asked: list[str]) -> str:
    """As the rows tell it, and for the dialect the client, which says whether it was given tools."""
    rounds = place.rows("select by_route from answer join mark on mark.id = answer.mark where kind = 'round'")
    ((asks,),) = place.rows("select count(*) from ask")
    routes = sorted({route for (route,) in rounds})
    if routes != ["sampling"]:
        return " and ".join(routes) + (", after InputRequired" if asks else "")
    return f"{'InputRequired' if asks else 'push'}, {'native' if set(asked) == {'tools'} else 'text'}"
