"""What a client is asked to do in a session, on a small site; a script stands in for the model of the runs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from support.app import says
from support.team_lines import answers, at, plan_of, task

from tests.foreign.served import Place

SITE = Path(__file__).parents[2] / "examples" / "site"
LONGER_THAN_A_CALL_S = 2.6  # a call that is over within two seconds is no task
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
    at("plan", {**says(json.dumps(PLAN)), "delay_s": LONGER_THAN_A_CALL_S}),
)
STEPS: dict[str, tuple[Any, ...]] = {
    "approval": ("call", "planner_run", {"goal": "Write made.txt.", "tools": ["write_file"]}),
    "OODA cycle": ("call", "ooda_run", {"mandate": MANDATE}),
    "team run": ("call", "team_run", {"goal": "Two things.", "plan": PLAN}),
    "task": ("task", "planner_plan", {"goal": "Split two things."}),
    "prompt": ("prompt", "plan", {"goal": "Two things."}),
    "resource": ("read", "kairos://runs"),
    "completion": ("complete", "plan", "route", "cal"),
}


def lay_site(root: Path) -> Place:
    """A place with a small site, and a script for the server."""
    place = Place(root).lay()
    shutil.copytree(SITE / "docs", place.workspace / "docs")
    place.home.mkdir(mode=0o700)
    of_mandate = (SITE / "mandate.jsonl").read_text()
    (place.home / "script.jsonl").write_text("".join(json.dumps(line) + "\n" for line in LINES) + of_mandate)
    (place.home / "kairos.toml").write_text('script = "script.jsonl"\n')
    return place
