"""Lines of a script for a team: which step each is for, and plans."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from kairos_mcp.core.messages import JsonObject

Line = Mapping[str, Any]


def at(path: str, line: Line) -> JsonObject:
    """The line for the step at this path."""
    return {"for": path, **line}


def task(name: str, agent: str = "code_analyzer", after: tuple[str, ...] = (), **more: Any) -> JsonObject:
    return {"id": name, "agent": agent, "description": f"Do {name}.", "depends_on": list(after), **more}


def plan_of(*tasks: JsonObject) -> JsonObject:
    strategy = "single_task" if len(tasks) == 1 else "decomposed"
    return {"analysis": "What it takes.", "strategy": strategy, "tasks": list(tasks)}


def plan_line(*tasks: JsonObject, path: str = "plan") -> JsonObject:
    """The line by which the planner gives a plan of these tasks."""
    return at(path, {"content": json.dumps(plan_of(*tasks)), "finish": "stop"})


def answers(*paths: str) -> tuple[JsonObject, ...]:
    """Lines by which the steps at these paths end their loops."""
    return tuple(at(path, {"content": f"answer of {path}", "finish": "stop"}) for path in paths)
