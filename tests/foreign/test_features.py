"""Clients that others wrote use what there is beside a run: approvals, OODA cycles, teams, resources,
prompts and completion.

A script stands in for the model on the server, so that a client is what it is in a host: the one that calls, shows
dialogs, and reads.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.app import says
from support.team_lines import answers, at, plan_of, task

from tests.foreign.cells import FASTMCP, PYTHON_1, PYTHON_2, TYPESCRIPT_1, TYPESCRIPT_2, Client, Era
from tests.foreign.driving import drive
from tests.foreign.environs import Environ, version
from tests.foreign.served import Place, Transport

pytestmark = pytest.mark.foreign

SITE = Path(__file__).parents[2] / "examples" / "site"
CELLS: tuple[tuple[Client, Transport, Era], ...] = (
    (PYTHON_2, "stdio", "modern"),
    (PYTHON_2, "http", "legacy"),
    (PYTHON_1, "stdio", "legacy"),
    (TYPESCRIPT_1, "http", "legacy"),
    (TYPESCRIPT_2, "http", "modern"),
    (TYPESCRIPT_2, "stdio", "legacy"),
    (FASTMCP, "http", "modern"),
    (FASTMCP, "stdio", "legacy"),
)
WRITES = {"tool_calls": [{"name": "write_file", "arguments": {"path": "made.txt", "content": "made\n"}}]}
MANDATE = {
    "id": "links",
    "goal": "Every link in docs leads to a file.",
    "observe": ["file_tree"],
    "max_cycles": 1,
    "acceptance": [{"check": "file_contains", "path": "docs/guide.md", "text": "(install.md)"}],
}
PLAN = plan_of(task("left"), task("right"))
LINES = (
    at("round-1", {"content": "I write it.", **WRITES}),
    at("round-2", says("It is written.")),
    *answers("task-1/try-1/round-1", "task-2/try-1/round-1"),
    at("synthesis", says("Both are done.")),
)
STEPS: dict[str, tuple[Any, ...]] = {
    "approval": ("call", "planner_run", {"goal": "Write made.txt.", "tools": ["write_file"]}),
    "OODA cycle": ("call", "ooda_run", {"mandate": MANDATE}),
    "team run": ("call", "team_run", {"goal": "Two things.", "plan": PLAN}),
    "resource": ("read", "kairos://runs"),
    "prompt": ("prompt", "plan", {"goal": "Two things."}),
    "completion": ("complete", "plan", "route", "cal"),
}


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: "-".join((cell[0].name.replace(" ", "_"), *cell[1:])))
def test_what_there_is_beside_a_run(
    cell: tuple[Client, Transport, Era],
    environment: Callable[[Environ], Path],
    features: list[dict[str, Any]],
    tmp_path: Path,
) -> None:
    client, transport, era = cell
    place = _lay(tmp_path / "place")
    folder = environment(client.environ)
    found = {"client": client.name, "version": version(client.environ, folder, client.package)}
    features.append(found | {"transport": transport, "era": era, "features": []})
    said = drive(client, folder, place, transport, era=era, way="steps", steps=list(STEPS.values()))
    assert (said["protocol"] == "2026-07-28") == (era == "modern")
    given = dict(zip(STEPS, said["result"]["steps"], strict=True))

    approved, cycle, team = (given[name] for name in ("approval", "OODA cycle", "team run"))
    assert [(run["status"], run["stop_reason"]) for run in (approved, cycle, team)] == [
        ("completed", "assistant_stop"),
        ("completed", "goal_achieved"),
        ("completed", "team_done"),
    ]
    assert (place.workspace / "made.txt").read_text() == "made\n"
    assert "(install.md)" in (place.workspace / "docs" / "guide.md").read_text()
    decided = place.rows("select id, verdict from approval join run on run.n = approval.run order by mark")
    assert decided == [(approved["run_id"], "approve"), (cycle["run_id"], "approve")]
    listed = json.loads(given["resource"])
    assert {approved["run_id"], cycle["run_id"], team["run_id"]} <= {run["run_id"] for run in listed["runs"]}
    assert "planner_plan" in given["prompt"]
    assert given["completion"] == ["caller"]
    assert all(place.replays(run["run_id"]) for run in (approved, cycle, team))
    features[-1]["features"] = list(STEPS)


def _lay(root: Path) -> Place:
    """A place with a small site, and a script for the server."""
    place = Place(root).lay()
    shutil.copytree(SITE / "docs", place.workspace / "docs")
    place.home.mkdir(mode=0o700)
    of_mandate = (SITE / "mandate.jsonl").read_text()
    (place.home / "script.jsonl").write_text("".join(json.dumps(line) + "\n" for line in LINES) + of_mandate)
    (place.home / "kairos.toml").write_text('script = "script.jsonl"\n')
    return place
