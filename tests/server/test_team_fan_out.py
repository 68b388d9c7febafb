"""Real teams whose tasks a caller answers, and what befalls one task while the others go on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from server.test_fan_out import LABELS, shown
from support.app import ME, PERSON, Place, place_in, reads, rests, says
from support.reviewers import Person, accepts, connect_person
from support.sampling_clients import MODERN, ClientModel, Door, at_the_door, encode_reply

from kairos_mcp.app.app import App

TASKS = (
    {"id": "read", "agent": "code_analyzer", "description": "Say what a.txt holds."},
    {"id": "edit", "agent": "file_manager", "description": "Write omega into a.txt.", "needs": ["edit_file"]},
    {"id": "sum", "agent": "general", "description": "Put both together.", "depends_on": ["read", "edit"]},
)
PLAN = {"analysis": "Two parts and their sum.", "strategy": "decomposed", "tasks": list(TASKS)}
READ, EDIT, SUM = "task-1/try-1", "task-2/try-1", "task-3/try-1"
EDITS = {
    "tool_calls": [
        {"name": "edit_file", "arguments": {"path": "a.txt", "old_string": "alpha\n", "new_string": "omega\n"}}
    ]
}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return place_in(tmp_path / "place")


async def answers(door: Door, run: dict[str, Any], by_key: dict[str, Any]) -> dict[str, Any]:
    return await door.ask("run_continue", {"run_id": run["run_id"], "answers": by_key})


async def test_a_caller_answers_the_tasks_of_a_team_side_by_side(place: Place, era: str) -> None:
    async with at_the_door(place.settings(), era) as door:
        run = await door.ask("team_run", {"plan": PLAN, "route": "caller"})
        assert shown(run) == {f"{READ}/round-1": "whole", f"{EDIT}/round-1": "whole"}
        first, second = run["waiting"]
        assert (first["agent"], first["about"]) == ("code_analyzer", "Say what a.txt holds.")
        assert (second["agent"], second["about"]) == ("file_manager", "Write omega into a.txt.")
        assert "edit_file" in [tool["name"] for tool in second["tools"]]
        assert "edit_file" not in [tool["name"] for tool in first["tools"]]

        run = await answers(door, run, {f"{EDIT}/round-1": EDITS})
        assert shown(run) == {f"{READ}/round-1": "named", f"{EDIT}/round-1/call-1/approval": "whole"}
        run = await answers(door, run, {f"{READ}/round-1": reads("a.txt")})
        assert shown(run) == {f"{EDIT}/round-1/call-1/approval": "named", f"{READ}/round-2": "new"}
        assert all(item.keys() >= LABELS for item in run["waiting"])
        run = await answers(door, run, {f"{READ}/round-2": says("It holds alpha.")})
        key = f"{EDIT}/round-1/call-1/approval"
        assert shown(run) == {key: "named"}
        await door.app.answers.decide(run["run_id"], key, "approve", None, PERSON)
        await rests(door.app, run["run_id"])
        (status,) = (await door.ask("run_status", {"run_ids": [run["run_id"]]}))["runs"]
        assert shown(status) == {f"{EDIT}/round-2": "whole"}
        run = await answers(door, run, {f"{EDIT}/round-2": says("It is written.")})
        assert shown(run) == {f"{SUM}/round-1": "whole"}
        assert "It holds alpha." in json.dumps(run["waiting"])
        run = await answers(door, run, {f"{SUM}/round-1": says("Both are done.")})
        assert shown(run) == {"synthesis": "whole"}
        run = await answers(door, run, {"synthesis": says("All is done.")})
        assert (run["status"], run["summary"]) == ("completed", "All is done.")
        assert (place.workspace / "a.txt").read_text() == "omega\n"


async def test_requests_and_approvals_of_tasks_travel_in_one_result(place: Place) -> None:
    async with (
        App.open(place.settings(), via="mcp") as app,
        connect_person(app, MODERN, Person([]), model=ClientModel([])) as door,
    ):
        start = {"plan": PLAN, "route": "sampling"}
        asked = await door.asked("team_run", start)
        assert list(asked.input_requests) == [f"{READ}/round-1", f"{EDIT}/round-1"]
        turns = {f"{READ}/round-1": reads("a.txt"), f"{EDIT}/round-1": EDITS}
        replies = {key: encode_reply(turn, native=False) for key, turn in turns.items()}
        asked = await door.asked("team_run", start, state=asked.request_state, answers=replies)
        approval = f"{EDIT}/round-1/call-1/approval"
        assert set(asked.input_requests) == {f"{READ}/round-2", approval}
        replies = {
            f"{READ}/round-2": encode_reply(says("It holds alpha."), native=False),
            approval: accepts(decision="approve"),
        }
        asked = await door.asked("team_run", start, state=asked.request_state, answers=replies)
        assert list(asked.input_requests) == [f"{EDIT}/round-2"]
        assert (place.workspace / "a.txt").read_text() == "omega\n"
        ((run_id,),) = place.rows("select id from run")
        await app.control.request(run_id, "cancel", ME)


async def test_a_new_run_goes_on_from_a_round_of_a_task(place: Place) -> None:
    async with at_the_door(place.settings()) as door:
        team = await door.ask("team_run", {"plan": PLAN, "route": "caller"})
        team = await answers(door, team, {f"{READ}/round-1": reads("a.txt")})
        team = await answers(door, team, {f"{EDIT}/round-1": EDITS})
        await door.app.answers.decide(team["run_id"], f"{EDIT}/round-1/call-1/approval", "approve", None, PERSON)
        await rests(door.app, team["run_id"])
        talk = await door.app.inbox.read_conversation(team["run_id"], PERSON, f"{EDIT}/round-1")
        assert (talk.agent, talk.tools) == ("file_manager", None)  # a command goes on with the task's own agent
        fork = {"goal": "Say it shorter.", "route": "caller", "continues": team["run_id"]}
        run = await door.ask("planner_run", {**fork, "from": f"{READ}/round-2"})
        messages = run["waiting"][0]["messages"]
        assert [message["role"] for message in messages] == ["user", "assistant", "tool", "user"]
        assert "Say what a.txt holds." in messages[0]["content"]
        assert "alpha" in messages[2]["content"]
        assert f"Changed by that run since {READ}/round-2: a.txt." in run["degraded"]
        refused = (await door.client.call_tool("planner_run", {**fork, "from": "round-1"})).structured_content
        there = f"Its rounds: {READ}/round-1 to round-2, {EDIT}/round-1 to round-2."
        assert (refused["code"], refused["hint"]) == ("bad_arguments", there)
        await door.app.control.request(team["run_id"], "cancel", ME)
        refused = (await door.client.call_tool("planner_run", fork)).structured_content
        assert (refused["code"], f"{READ}/round-1 to round-2" in refused["hint"]) == ("bad_arguments", True)
        await door.app.control.request(run["run_id"], "cancel", ME)
