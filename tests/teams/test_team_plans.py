"""Plans by tools and commands: what stays whole, what is divided, and what is no plan is repaired once or flagged."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from support.app import Place, says
from support.sampling_clients import ERAS, ConnectedClient, open_client
from support.team_lines import answers, at, plan_line, plan_of, task

WHOLE = "What is in this file?"
DIVIDED = "Analyse the code base and write a training plan."
ONE = plan_of(task("look"))
TWO = plan_of(task("analyse", kind="analyse"), task("write", "file_manager", ("analyse",), needs=["write_file"]))
WRONG: Mapping[str, tuple[str, str]] = {  # what the planner says, and what it is told of it
    "a circle": (json.dumps(plan_of(task("a", after=("b",)), task("b", after=("a",)))), "wait for each other"),
    "an unknown agent": (json.dumps(plan_of(task("a", "nobody"))), "'nobody'"),
    "a tool that it lacks": (json.dumps(plan_of(task("a", needs=["write_file"]))), "write_file"),
    "30 tasks": (json.dumps(plan_of(*(task(f"t{n}") for n in range(30)))), "25"),
    "no JSON": ("First I would look at the README, then write.", "JSON"),
}


async def answer(client: ConnectedClient, run: dict[str, Any], key: str, text: str) -> dict[str, Any]:
    assert [item["key"] for item in run["waiting"]] == [key]
    return await client.ask("run_continue", {"run_id": run["run_id"], "answers": {key: says(text)}})


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize(("goal", "plan"), [(WHOLE, ONE), (DIVIDED, TWO)], ids=["whole", "divided"])
async def test_a_goal_is_divided_as_the_planner_says_and_carried_out_so(
    place: Place, goal: str, plan: dict[str, Any], era: str
) -> None:
    steps = [f"task-{number}/try-1/round-1" for number, _ in enumerate(plan["tasks"], 1)]
    lines = (plan_line(*plan["tasks"]), *answers(*steps, "synthesis"))
    async with open_client(place.settings(*lines), era) as client:
        planned = await client.ask("planner_plan", {"goal": goal})
        assert planned["status"] == "completed"
        assert not [text for text in planned["degraded"] if text.startswith("plan:")]
        assert [each["id"] for each in planned["output"]["tasks"]] == [each["id"] for each in plan["tasks"]]
        ended = await client.ask("team_run", {"goal": goal})
        again = await client.ask("team_run", {"goal": goal, "plan": planned["output"]})
    assert ended["stop_reason"] == again["stop_reason"] == "team_done"
    steps_of_teams = "select path from step join run on n = run where flow = 'team' order by step.id"
    paths = [path for (path,) in place.rows(steps_of_teams)]
    asked = [*steps, *(["synthesis"] if len(steps) > 1 else [])]
    assert paths == ["plan", *asked, *asked]


@pytest.mark.parametrize("title", WRONG)
async def test_an_invalid_plan_is_repaired_once_told_what_is_wrong(place: Place, title: str) -> None:
    said, fault = WRONG[title]
    async with open_client(place.settings()) as client:
        run = await client.ask("planner_plan", {"goal": DIVIDED, "route": "caller"})
        run = await answer(client, run, "plan", said)
        assert fault in json.dumps(run["waiting"][0]["messages"][-1])
        run = await answer(client, run, "plan/repair-1", json.dumps(TWO))
    assert (run["status"], [each["id"] for each in run["output"]["tasks"]]) == ("completed", ["analyse", "write"])
    assert run["degraded"] == []


@pytest.mark.parametrize("title", WRONG)
async def test_a_plan_that_stays_invalid_becomes_one_task_and_says_so(place: Place, title: str) -> None:
    said, _ = WRONG[title]
    lines = (at("plan", says(said)), at("plan/repair-1", says(said)), *answers("task-1/try-1/round-1"))
    async with open_client(place.settings(*lines)) as client:
        planned = await client.ask("planner_plan", {"goal": DIVIDED})
        ended = await client.ask("team_run", {"goal": DIVIDED})
    (only,) = planned["output"]["tasks"]
    assert (planned["output"]["strategy"], only["agent"], only["description"]) == ("single_task", "general", DIVIDED)
    assert [each["agent"] for each in ended["output"]["tasks"]] == ["general"]
    for result in (planned, ended):
        assert result["status"] == "completed"
        assert any(text.startswith("plan: the planner gave no valid one") for text in result["degraded"])


@pytest.mark.parametrize("title", [title for title in WRONG if title != "no JSON"])
async def test_an_invalid_plan_that_the_caller_gives_is_refused_and_begins_nothing(place: Place, title: str) -> None:
    said, fault = WRONG[title]
    async with open_client(place.settings()) as client:
        result = await client.sdk_client.call_tool("team_run", {"plan": json.loads(said), "route": "caller"})
        assert (await client.ask("run_status"))["runs"] == []
    assert result.is_error
    assert result.structured_content["code"] == "bad_arguments"
    assert fault in result.structured_content["message"] + result.structured_content["hint"]
    assert place.rows("select count(*) from run") == [(0,)]
