"""Each client that others wrote completes a planner run of three rounds, which reads a file, in the best way it can."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.foreign.cells import CELLS, INSPECTOR_CLI, Cell
from tests.foreign.driving import drive
from tests.foreign.environs import Environ, version
from tests.foreign.records import RUN, Records
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


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_three_rounds_that_read_a_file(
    cell: Cell,
    environment: Callable[[Environ], Path],
    records: Records,
    tmp_path: Path,
) -> None:
    place = Place(tmp_path / "place").lay()
    folder = environment(cell.client.environ)
    package = version(cell.client.environ, folder, cell.client.package)
    with records.record(cell, RUN, version=package) as record:
        result = drive(cell.client, folder, place, cell.transport, era=cell.era, way=cell.way)
        if "protocol" in result:
            assert (result["protocol"] == MODERN) == (cell.era == "modern")
        ended = result["result"]
        assert (ended["status"], ended["rounds"], ended["summary"]) == ("completed", 3, place.word)
        ((run_id, outcome),) = place.rows("select id, outcome from run")
        assert (run_id, json.loads(outcome)["summary"]) == (ended["run_id"], place.word)
        assert place.rows("select path, kind from step order by id") == MARKS
        record["how"] = way_taken(place, result.get("asked", []))
        assert record["how"] == cell.way_due
        assert place.replays(run_id)
        if cell.client is INSPECTOR_CLI:
            assert result["strict"]["code"] == 0, result["strict"]["said"]


def way_taken(place: Place, asked: list[str]) -> str:
    """As the rows tell it, and for the dialect the client, which says whether it was given tools."""
    rounds = place.rows("select by_route from answer join step on step.id = answer.step where kind = 'round'")
    ((asks,),) = place.rows("select count(*) from client_question")
    routes = sorted({route for (route,) in rounds})
    if routes != ["sampling"]:
        return " and ".join(routes) + (", after InputRequired" if asks else "")
    return f"{'InputRequired' if asks else 'push'}, {'native' if set(asked) == {'tools'} else 'text'}"
