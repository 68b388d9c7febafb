"""The scenarios of teams: a plan alone, tasks that depend on each other, one that fails and is replaced."""

from __future__ import annotations

from typing import Any

from support.app import ME, Place, reads, rests, says
from support.team_lines import at, plan_line, task

from kairos_mcp.app.app import App
from kairos_mcp.core.run_spec import TeamRequest

DOWN = {"error": {"code": "provider_error", "message": "down"}}


async def plan(app: App, place: Place) -> str:
    """A plan that is repaired once, and nothing of it carried out."""
    return await _run_team(app, TeamRequest("What is in the two files?", plans_only=True))


plan.lines = (
    at("plan", says("Two tasks.")),
    plan_line(task("a", "code_analyzer"), task("b", "search_specialist"), path="plan/repair-1"),
)


async def tasks(app: App, place: Place) -> str:
    """Two tasks side by side, and one that gets their results."""
    return await _run_team(app, TeamRequest("What is in the two files?"))


tasks.lines = (
    plan_line(task("a", "code_analyzer"), task("b", "search_specialist"), task("c", "general", ("a", "b"))),
    at("task-1/try-1/round-1", reads("a.txt")),
    at("task-1/try-1/round-2", says("alpha")),
    at("task-2/try-1/round-1", reads("b.txt", "missing.txt")),
    at("task-2/try-1/round-2", says("beta " * 2_000)),
    at("task-3/try-1/round-1", says("Both hold Greek letters.")),
    at("synthesis", says("alpha and beta")),
)


async def replace_a_task(app: App, place: Place) -> str:
    """A task that fails twice, what depends on it, and what the planner puts in their place."""
    return await _run_team(app, TeamRequest("What is in the two files?"))


replace_a_task.lines = (
    plan_line(task("bad", "code_analyzer"), task("held", "code_analyzer", ("bad",)), task("good", "general")),
    at("task-1/try-1/round-1", DOWN),
    at("task-1/try-2/round-1", DOWN),
    at("task-3/try-1/round-1", says("beta")),
    plan_line(task("instead", "file_manager", ("good",)), path="replan-1"),
    at("task-4/try-1/round-1", reads("a.txt")),
    at("task-4/try-1/round-2", says("alpha")),
    at("synthesis", says("alpha and beta")),
)


async def _run_team(app: App, request: TeamRequest) -> str:
    run_id = (await app.runs.start(request, ME)).run_id
    await rests(app, run_id)
    return run_id


TEAMS: dict[str, tuple[str, Any]] = {
    "plan": ("plan", plan),
    "tasks": ("team", tasks),
    "replaced": ("team", replace_a_task),
}
