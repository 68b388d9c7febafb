"""Clients that others wrote have a team work on this project's own source: four tasks, two of them side by side.

In the default run teams/test_every_route.py has the same with the SDK's client in one process.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from support.team_on_source import (
    ENDS_WITH,
    PLAN_FILE,
    SIDE_BY_SIDE,
    STEPS,
    TRAINING,
    foreign_job,
    lay_source,
)

from tests.foreign.cells import PYTHON_1, PYTHON_2, TYPESCRIPT_1, TYPESCRIPT_2, Cell
from tests.foreign.driving import drive
from tests.foreign.environs import Environ
from tests.foreign.served import Place

pytestmark = pytest.mark.foreign

CELLS = (
    Cell(PYTHON_1, "stdio", "legacy", "native"),
    Cell(PYTHON_1, "http", "legacy", "text"),
    Cell(PYTHON_1, "stdio", "legacy", "caller"),
    Cell(PYTHON_2, "stdio", "modern", "native"),
    Cell(PYTHON_2, "http", "modern", "text"),
    Cell(TYPESCRIPT_1, "stdio", "legacy", "native"),
    Cell(TYPESCRIPT_1, "http", "legacy", "caller"),
    Cell(TYPESCRIPT_2, "stdio", "modern", "native"),
    Cell(TYPESCRIPT_2, "http", "modern", "caller"),
)
ALLOWED = '[[gate]]\ntools = "write_file"\nverdict = "allow"\n'
OVERLAPPING = """
    select count(*) from client_completion as one
        join client_completion as other on other.run = one.run and other.id > one.id
        and other.at <= one.ended_at
"""


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_a_team_whose_tasks_are_asked_for_side_by_side(
    cell: Cell, environment: Callable[[Environ], Path], tmp_path: Path
) -> None:
    place = Place(tmp_path / "place").lay()
    lay_source(place.workspace)
    place.home.mkdir(mode=0o700)
    (place.home / "kairos.toml").write_text(ALLOWED)
    folder = environment(cell.client.environ)
    result = drive(cell.client, folder, place, cell.transport, era=cell.era, way=cell.way, team=foreign_job())

    ended = result["result"]
    assert (ended["status"], ended["stop_reason"], ended["summary"]) == ("completed", "team_done", ENDS_WITH)
    ((run_id, outcome),) = place.rows("select id, outcome from run")
    assert [task["status"] for task in json.loads(outcome)["output"]["tasks"]] == ["done"] * 4
    assert sorted(path for (path,) in place.rows("select path from step where kind <> 'call'")) == sorted(STEPS)
    assert (place.workspace / PLAN_FILE).read_text() == TRAINING
    assert_side_by_side(place, cell)
    assert place.replays(run_id)


def assert_side_by_side(place: Place, cell: Cell) -> None:
    """What the tasks asked for was with the client at once."""
    match cell.way, cell.era:
        case "caller", _:
            begun = "select at from step where path in (?, ?)"
            answered = "select min(answer.at) from answer join step on step.id = answer.step where path in (?, ?)"
            assert max(place.rows(begun, *SIDE_BY_SIDE)) <= place.rows(answered, *SIDE_BY_SIDE)[0]
        case _, "modern":
            asked = [set(json.loads(keys).values()) for (keys,) in place.rows("select keys from client_question")]
            assert set(SIDE_BY_SIDE) in asked
        case _:
            assert place.rows(OVERLAPPING) > [(0,)]
