"""In which dialect a model was asked stands in the rows; that of a provider is frozen with its run."""

from __future__ import annotations

import json

import pytest
from support.app import ASK, ME, answer_run, open_checked_app, reads, rests, says, start_run
from support.provider_server import calls, standin, talks
from support.sampling_clients import LEGACY, MODERN, ClientModel, connect_client, encode_reply, open_client

from kairos_mcp.app.app import App
from kairos_mcp.core.messages import ToolCall
from kairos_mcp.models.dialects import encode_text_turn

GO = {"goal": "go"}

OF_STEPS = (
    "select path, json_extract(coalesce((select attempt.sent from attempt where attempt.step = step.id"
    " order by attempt.id desc limit 1), step.sent), '$.dialect') from step where kind <> 'call' order by step.id"
)


@pytest.mark.parametrize("native", [True, False], ids=["native", "text"])
async def test_how_a_client_was_asked_stands_with_its_answer(place, era, native):
    name = "native" if native else "text"
    async with open_client(
        place.settings(), era, ClientModel([reads("a.txt"), says("alpha")], native=native)
    ) as client:
        ended = await client.ask("planner_run", {"goal": "go"})
        traced = await client.ask("run_trace", {"run_id": ended["run_id"]})
    assert place.rows(OF_STEPS) == [("round-1", name), ("round-2", name)]
    assert [event.get("dialect") for event in traced["items"] if event["kind"] == "round"] == [name, name]


async def test_clients_that_are_asked_otherwise_leave_each_their_own(place):
    """A run begun by a client with tools, finished by one without, in the other era."""
    async with App.open(place.settings(), via="mcp") as app:
        async with connect_client(app, MODERN, ClientModel([], native=True)) as client:
            asked = await client.step_to_requests("planner_run", GO)
            answers = {"round-1": encode_reply(reads("a.txt"), native=True)}
            await client.step_to_requests("planner_run", GO, state=asked.request_state, answers=answers)
            (run_id,) = place.rows("select id from run")[0]
        async with connect_client(app, LEGACY, ClientModel([says("alpha")])) as client:
            assert (await client.ask("run_continue", {"run_id": run_id}))["summary"] == "alpha"
    assert place.rows(OF_STEPS) == [("round-1", "native"), ("round-2", "text")]


async def test_a_reroute_says_the_dialect_of_who_answers_then(place):
    async with standin() as server:
        server.will(talks(encode_text_turn("alpha", [])))
        configured = place.settings(model="openai:small", base_url=server.openai, dialect="text", sampling="prefer")
        async with open_client(configured, MODERN, ClientModel([], native=True)) as client:
            await client.step_to_requests("planner_run", GO)
            assert place.rows(OF_STEPS) == [("round-1", None)]
            (run_id,) = place.rows("select id from run")[0]
            await client.ask("run_control", {"run_id": run_id, "action": "reroute", "route": "provider"})
            ended = await client.ask("run_status", {"run_ids": [run_id], "until": "done"})
    assert ended["runs"][0]["summary"] == "alpha"
    assert place.rows(OF_STEPS) == [("round-1", "text")]


async def test_a_script_is_asked_in_no_dialect_and_a_caller_natively(place):
    async with open_checked_app(place.settings(says("done"))) as app:
        await start_run(app)
        run_id = await start_run(app, route="caller")
        await answer_run(app, run_id, round_1=says("done"))
    assert place.rows(OF_STEPS) == [("round-1", None), ("round-1", "native")]


@pytest.mark.parametrize(("begun", "later"), [("native", "text"), ("text", "native")])
async def test_a_changed_setting_bends_no_run_that_has_begun(place, begun, later):
    """It asks as before after a restart, whatever the configuration says by then."""
    async with standin() as server:
        if begun == "native":
            server.will(talks(None, calls(("ask_person", {})), finish="tool_calls"), talks("done"))
        else:
            server.will(
                talks(encode_text_turn("", [ToolCall("", "ask_person", {})])), talks(encode_text_turn("done", []))
            )
        configured = place.settings(model="openai:small", base_url=server.openai, dialect=begun)
        async with App.open(configured, via="test") as app:
            run_id = await start_run(app, caller_tools=(ASK,))
        async with open_checked_app(place.settings(model="openai:small", base_url=server.openai, dialect=later)) as app:
            report = await answer_run(app, run_id, round_1__call_1={"content": "yes"})
        assert (report.status, report.summary) == ("completed", "done")
    assert ["tools" in body for body in server.bodies] == [begun == "native"] * 2
    assert place.rows(OF_STEPS) == [("round-1", begun), ("round-2", begun)]


async def test_a_run_of_before_the_dialect_was_frozen_goes_by_the_setting(place):
    async with standin() as server:
        server.will(talks(encode_text_turn("done", [])))
        configured = place.settings(model="openai:small", base_url=server.openai, dialect="text")
        async with App.open(configured, via="test") as app:
            run_id = await start_run(app, route="caller")
        ((spec,),) = place.rows("select spec from run")
        older = {name: value for name, value in json.loads(spec).items() if name != "dialect"}
        place.rows("update run set spec = ?", json.dumps(older))
        async with open_checked_app(configured) as app:
            await app.control.reroute(run_id, "provider", ME)
            report = await rests(app, run_id)
        assert (report.status, report.summary) == ("completed", "done")
    assert "tools" not in server.bodies[0]
