"""Real teams whose tasks a caller answers, and what befalls one task while the others go on."""

from __future__ import annotations

import json
from typing import Any

from server.test_fan_out import LABELS, item_forms
from support.app import ME, PERSON, Place, reads, rests, says
from support.reviewers import Person, accepts, connect_person
from support.sampling_clients import MODERN, ClientModel, ConnectedClient, encode_reply, open_client

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


async def answers(client: ConnectedClient, run: dict[str, Any], by_key: dict[str, Any]) -> dict[str, Any]:
    return await client.ask("run_continue", {"run_id": run["run_id"], "answers": by_key})


async def test_a_caller_answers_the_tasks_of_a_team_side_by_side(place: Place, era: str) -> None:
    async with open_client(place.settings(), era) as client:
        run = await client.ask("team_run", {"plan": PLAN, "route": "caller"})
        assert item_forms(run) == {f"{READ}/round-1": "whole", f"{EDIT}/round-1": "whole"}
        first, second = run["waiting"]
        assert (first["agent"], first["about"]) == ("code_analyzer", "Say what a.txt holds.")
        assert (second["agent"], second["about"]) == ("file_manager", "Write omega into a.txt.")
        assert "edit_file" in [tool["name"] for tool in second["tools"]]
        assert "edit_file" not in [tool["name"] for tool in first["tools"]]

        run = await answers(client, run, {f"{EDIT}/round-1": EDITS})
        assert item_forms(run) == {f"{READ}/round-1": "named", f"{EDIT}/round-1/call-1/approval": "whole"}
        run = await answers(client, run, {f"{READ}/round-1": reads("a.txt")})
        assert item_forms(run) == {f"{EDIT}/round-1/call-1/approval": "named", f"{READ}/round-2": "new"}
        assert all(item.keys() >= LABELS for item in run["waiting"])
        run = await answers(client, run, {f"{READ}/round-2": says("It holds alpha.")})
        key = f"{EDIT}/round-1/call-1/approval"
        assert item_forms(run) == {key: "named"}
        await client.app.answers.decide(run["run_id"], key, "approve", None, PERSON)
        await rests(client.app, run["run_id"])
        (status,) = (await client.ask("run_status", {"run_ids": [run["run_id"]]}))["runs"]
        assert item_forms(status) == {f"{EDIT}/round-2": "whole"}
        run = await answers(client, run, {f"{EDIT}/round-2": says("It is written.")})
        assert item_forms(run) == {f"{SUM}/round-1": "whole"}
        assert "It holds alpha." in json.dumps(run["waiting"])
        run = await answers(client, run, {f"{SUM}/round-1": says("Both are done.")})
        assert item_forms(run) == {"synthesis": "whole"}
        run = await answers(client, run, {"synthesis": says("All is done.")})
        assert (run["status"], run["summary"]) == ("completed", "All is done.")
        assert (place.workspace / "a.txt").read_text() == "omega\n"


async def test_requests_and_approvals_of_tasks_travel_in_one_result(place: Place) -> None:
    async with (
        App.open(place.settings(), via="mcp") as app,
        connect_person(app, MODERN, Person([]), model=ClientModel([])) as client,
    ):
        start = {"plan": PLAN, "route": "sampling"}
        asked = await client.step_to_requests("team_run", start)
        assert list(asked.input_requests) == [f"{READ}/round-1", f"{EDIT}/round-1"]
        turns = {f"{READ}/round-1": reads("a.txt"), f"{EDIT}/round-1": EDITS}
        replies = {key: encode_reply(turn, native=False) for key, turn in turns.items()}
        asked = await client.step_to_requests("team_run", start, state=asked.request_state, answers=replies)
        approval = f"{EDIT}/round-1/call-1/approval"
        assert set(asked.input_requests) == {f"{READ}/round-2", approval}
        replies = {
            f"{READ}/round-2": encode_reply(says("It holds alpha."), native=False),
            approval: accepts(decision="approve"),
        }
        asked = await client.step_to_requests("team_run", start, state=asked.request_state, answers=replies)
        assert list(asked.input_requests) == [f"{EDIT}/round-2"]
        assert (place.workspace / "a.txt").read_text() == "omega\n"
        ((run_id,),) = place.rows("select id from run")
        await app.control.cancel(run_id, ME)


async def test_a_new_run_goes_on_from_a_round_of_a_task(place: Place) -> None:
    async with open_client(place.settings()) as client:
        team = await client.ask("team_run", {"plan": PLAN, "route": "caller"})
        team = await answers(client, team, {f"{READ}/round-1": reads("a.txt")})
        team = await answers(client, team, {f"{EDIT}/round-1": EDITS})
        await client.app.answers.decide(team["run_id"], f"{EDIT}/round-1/call-1/approval", "approve", None, PERSON)
        await rests(client.app, team["run_id"])
        talk = await client.app.overview.read_conversation(team["run_id"], PERSON, f"{EDIT}/round-1")
        assert (talk.agent, talk.tools) == ("file_manager", None)  # a command goes on with the task's own agent
        fork = {"goal": "Say it shorter.", "route": "caller", "continues": team["run_id"]}
        run = await client.ask("planner_run", {**fork, "from": f"{READ}/round-2"})
        messages = run["waiting"][0]["messages"]
        assert [message["role"] for message in messages] == ["user", "assistant", "tool", "user"]
        assert "Say what a.txt holds." in messages[0]["content"]
        assert "alpha" in messages[2]["content"]
        assert f"Changed by that run since {READ}/round-2: a.txt." in run["degraded"]
        refused = (await client.sdk_client.call_tool("planner_run", {**fork, "from": "round-1"})).structured_content
        there = f"Its rounds: {READ}/round-1 to round-2, {EDIT}/round-1 to round-2."
        assert (refused["code"], refused["hint"]) == ("bad_arguments", there)
        await client.app.control.cancel(team["run_id"], ME)
        refused = (await client.sdk_client.call_tool("planner_run", fork)).structured_content
        assert (refused["code"], f"{READ}/round-1 to round-2" in refused["hint"]) == ("bad_arguments", True)
        await client.app.control.cancel(run["run_id"], ME)
