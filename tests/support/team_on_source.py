"""A team that works on this project's own source: ten completions of a model and their calls, the same on any route.

The lines are those of a script. A client's model knows no paths of steps: it finds its line by what it is shown, as
`line_for` does it here and `foreign/clients/scripted_model.*` elsewhere.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import kairos_mcp
from support.app import Place, says
from support.team_lines import Line, at, plan_line, task

GOAL = "Analyse the code base and write a training plan for those who are new to it."
PLAN_FILE = "TRAINING.md"
TRAINING = "# Training\n1. core/limits.py: what a limit is.\n2. flows/planner.py: what a loop is.\n"
STRUCTURE, LIMITS, WRITE, CHECK = (
    "Say how the packages of the source are laid out.",
    "Find where a run's limits are defined, and say which there are.",
    f"Write {PLAN_FILE} from what the others found.",
    f"Read {PLAN_FILE}, and say whether it names what is in the source.",
)
TASKS = (
    task("structure", "search_specialist", kind="search"),
    task("limits", "code_analyzer", kind="analyse", needs=["search_files", "read_file"]),
    task("write", "file_manager", ("structure", "limits"), kind="write", needs=["write_file"]),
    task("check", "general", ("write",), kind="analyse"),
)
PLAN = [{**each, "description": text} for each, text in zip(TASKS, (STRUCTURE, LIMITS, WRITE, CHECK), strict=True)]


def calls(*wanted: tuple[str, dict[str, Any]], content: str = "look") -> Line:
    return {"content": content, "tool_calls": [{"name": name, "arguments": given} for name, given in wanted]}


TURNS: dict[str, tuple[Line, ...]] = {
    "task-1": (
        calls(("file_tree", {"path": ".", "depth": 3}), ("list_files", {"path": "source", "glob": "**/*.py"})),
        says("Packages in layers, from core to cli."),
    ),
    "task-2": (
        calls(("search_files", {"pattern": "^class Limits", "path": "source"})),
        calls(("read_file", {"path": "source/core/limits.py"})),
        says("They are the fields of Limits in core/limits.py."),
    ),
    "task-3": (
        calls(("write_file", {"path": PLAN_FILE, "content": TRAINING})),
        calls(("read_file", {"path": PLAN_FILE})),
        says(f"{PLAN_FILE} is written."),
    ),
    "task-4": (calls(("read_file", {"path": PLAN_FILE})), says("It names both.")),
}
ANSWER = says(f"The plan is in {PLAN_FILE}; it rests on the layers and on Limits.")
LINES: tuple[Line, ...] = (
    plan_line(*PLAN),
    *(
        at(f"{name}/try-1/round-{number}", turn)
        for name, turns in TURNS.items()
        for number, turn in enumerate(turns, 1)
    ),
    at("synthesis", ANSWER),
)
STEPS = tuple(str(line["for"]) for line in LINES)
SIDE_BY_SIDE = ("task-1/try-1/round-1", "task-2/try-1/round-1")
ENDS_WITH = str(ANSWER["content"])

# What tells a request, the more telling first: a task that depends on others is shown their descriptions too.
MARKERS = (
    ("You write the one answer of a team", "synthesis"),
    *zip((CHECK, WRITE, LIMITS, STRUCTURE), ("task-4", "task-3", "task-2", "task-1"), strict=True),
    (GOAL, "plan"),
)


def lay_source(workspace: Path) -> None:
    """Copy this project's package into a workspace, as `source`."""
    package = Path(kairos_mcp.__file__).parent
    shutil.copytree(package, workspace / "source", ignore=lambda folder, names: _left_out(Path(folder), names))


def _left_out(folder: Path, names: list[str]) -> list[str]:
    return [name for name in names if not (name.endswith(".py") or ((folder / name).is_dir() and "_" not in name[:1]))]


def place_with_source(root: Path) -> Place:
    place = Place(root)
    lay_source(place.workspace)
    return place


def step_of(shown: str, turns: int) -> str:
    """The step that a model is asked for that was shown this, and has answered so often."""
    name = next(name for marker, name in MARKERS if marker in shown)
    return f"{name}/try-1/round-{turns + 1}" if name.startswith("task") else name


def line_for(path: str) -> Line:
    """What the model says there, as an answer."""
    line = next(line for line in LINES if line["for"] == path)
    return {key: value for key, value in line.items() if key != "for"}


def foreign_job() -> dict[str, Any]:
    """What a client's script is told of this team, as JSON: its goal, and what its model says."""
    job: dict[str, Any] = json.loads(
        json.dumps({"goal": GOAL, "markers": MARKERS, "lines": {path: line_for(path) for path in STEPS}})
    )
    return job
