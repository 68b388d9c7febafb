"""A team whose model is small: the schema of its plan lists the names that stand for agents and tools, and its tasks
call tools in text."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from support.app import ME, Place
from support.provider_server import Heard, Standin, talks
from support.team_lines import plan_of, task

from kairos_mcp.app.app import App
from kairos_mcp.core.run_spec import TeamRequest

PLAN = plan_of(task("read", "code_analyzer", needs=["read_file"]), task("find", "search_specialist"))
LOOK = {"tool_calls": [{"name": "read_file", "arguments": {"path": "a.txt"}}]}


async def reply(heard: Heard) -> Any:
    first, *_, last = heard.body["messages"]
    if "You plan." in first["content"]:
        said: Any = {"final": PLAN}
    elif "Do read." in json.dumps(heard.body["messages"]) and "alpha" not in json.dumps(last):
        said = LOOK
    else:
        said = {"final": "It says alpha."}
    return await talks(json.dumps(said))(heard)


@pytest.mark.parametrize(("model", "is_small"), [("openai:qwen2.5-coder:1.5b", True), ("openai:large", False)])
async def test_a_small_model_s_plan_can_name_agents_and_tools_alone(
    place: Place, provider: Standin, model: str, is_small: bool
) -> None:
    provider.will(*[reply] * 20)
    settings = place.settings(model=model, base_url=provider.openai, dialect="text")
    if is_small:
        settings = replace(settings, dialect="native")  # which nobody has set: a small model's is text
    async with App.open(settings, via="mcp") as app:
        run_id = (await app.runs.start(TeamRequest("Say what a.txt holds."), ME)).run_id
        await app.runs.wait([run_id], until="done", wait_s=30, caller=ME)
        report = await app.runs.report(run_id, ME)
    assert [(each["id"], each["status"]) for each in report.plan] == [("read", "done"), ("find", "done")]
    form = provider.bodies[0]["response_format"]["json_schema"]["schema"]["properties"]["final"]
    asked = form["properties"]["tasks"]["items"]["properties"]
    assert ("enum" in asked["agent"], "enum" in asked["needs"]["items"]) == (is_small, is_small)
    if is_small:
        assert asked["agent"]["enum"] == [
            "code_analyzer", "file_manager", "search_specialist", "system_operator", "general"
        ]  # fmt: skip
        assert {"read_file", "edit_file"} <= set(asked["needs"]["items"]["enum"])
    assert all("tools" not in body for body in provider.bodies)
    assert place.rows("select path from step where kind = 'call'") == [("task-1/try-1/round-1/call-1",)]
