"""Runs that tests disturb at any statement: one that reads, one that edits, and a team."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

from support.app import ME, reads, says
from support.stdio_server import PLAN, TEAM_LINES

from kairos_mcp.app.app import App
from kairos_mcp.core.run_spec import PlannerRequest, TeamRequest
from kairos_mcp.settings.table_values import GateRule

EDITS = GateRule("edit_file", "allow")
KEY = "one"  # so that a start that is made again is the same run


class Case(NamedTuple):
    """A run by a script of `lines`; `steps`: of it, undisturbed. `text`: of a.txt once it has ended."""

    lines: tuple[Mapping[str, Any], ...]
    start: Callable[[App], Awaitable[str]]
    steps: int
    text: str = "alpha\n"


async def start_planner(app: App) -> str:
    return (await app.runs.start(PlannerRequest("look", key=KEY), ME)).run_id


async def start_editor(app: App) -> str:
    return (await app.runs.start(PlannerRequest("edit", tools=("edit_file",), key=KEY), ME)).run_id


async def start_team(app: App) -> str:
    return (await app.runs.start(TeamRequest("look", PLAN, key=KEY), ME)).run_id


def edits(old: str, new: str) -> dict[str, Any]:
    """A turn whose edit shows if it is made twice: what it replaces is in what it puts there."""
    return {"tool_calls": [{"name": "edit_file", "arguments": {"path": "a.txt", "old_string": old, "new_string": new}}]}


CASES = {
    "planner": Case((reads("a.txt"), reads("b.txt"), says("done")), start_planner, 5),
    "editor": Case(
        (edits("alpha", "alpha beta"), edits("beta", "beta gamma"), says("done")), start_editor, 5, "alpha beta gamma\n"
    ),
    "team": Case(tuple(TEAM_LINES), start_team, 13),
}
