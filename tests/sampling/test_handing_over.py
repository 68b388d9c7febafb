"""The route changes in the middle: by the caller, by a control request while a push is under way, by another server."""

from __future__ import annotations

import asyncio

import pytest
from support.app import reads, says
from support.sampling_clients import (
    LEGACY,
    MODERN,
    ClientModel,
    Silent,
    bodies,
    connect_client,
    encode_reply,
    open_client,
    paths,
)

from kairos_mcp.app.app import App

STEPS = ["round-1", "round-1/call-1", "round-2", "round-2/call-1", "round-3"]


def routes_of(place, run_id):
    found = place.rows(
        "select path, by_route from answer join step on step.id = step join run on run.n = run where run.id = ?"
        " and kind <> 'call' order by step.id",
        run_id,
    )
    return dict(found)


async def test_a_run_passes_from_a_client_to_the_caller_and_back(place, era):
    model = Silent([reads("a.txt"), says("done")])
    async with open_client(place.settings(), era, model) as client:
        model.go.set()
        run = await client.step_to_result("planner_run", {"goal": "go", "wait_s": 0})
        assert run["route"] == "sampling"
        run_id = run["run_id"]
        await client.ask("run_control", {"run_id": run_id, "action": "reroute", "route": "caller"})
        run = await client.ask("run_continue", {"run_id": run_id, "answers": {"round-1": reads("b.txt")}})
        assert (run["route"], run["waiting"][0]["key"], model.asked) == ("caller", "round-2", [])
        await client.ask("run_control", {"run_id": run_id, "action": "reroute", "route": "sampling"})
        ended = await client.ask("run_continue", {"run_id": run_id})
        assert (ended["status"], ended["summary"], ended["route"]) == ("completed", "done", "sampling")
        assert paths(place, run_id) == STEPS
        assert routes_of(place, run_id) == {"round-1": "caller", "round-2": "sampling", "round-3": "sampling"}


async def test_begun_legacy_gone_on_with_modern_finished_by_the_caller(place):
    async with App.open(place.settings(), via="mcp") as app:
        async with connect_client(app, LEGACY, Silent([])) as client:
            waiting = await client.ask("planner_run", {"goal": "go", "wait_s": 1})
            assert waiting["status"] == "input_required"
            run_id = waiting["run_id"]
        async with connect_client(app, MODERN, ClientModel([])) as client:
            asked = await client.step_to_requests("run_continue", {"run_id": run_id})
            answers = {"round-1": encode_reply(reads("a.txt"), native=False)}
            asked = await client.step_to_requests(
                "run_continue", {"run_id": run_id}, state=asked.request_state, answers=answers
            )
            assert list(asked.input_requests) == ["round-2"]
        async with connect_client(app, LEGACY) as client:
            await client.ask("run_control", {"run_id": run_id, "action": "reroute", "route": "caller"})
            ended = await client.ask("run_continue", {"run_id": run_id, "answers": {"round-2": says("by the caller")}})
        assert (ended["status"], ended["summary"]) == ("completed", "by the caller")
        assert routes_of(place, run_id) == {"round-1": "sampling", "round-2": "caller"}


@pytest.mark.parametrize("action", ["cancel", "pause", "reroute"])
async def test_a_control_request_while_a_push_is_in_the_air_is_heard(place, action):
    model = Silent([reads("a.txt"), says("late")])
    async with (
        App.open(place.settings(), via="mcp") as app,
        connect_client(app, LEGACY, model) as client,
        connect_client(app, LEGACY) as other,
    ):
        call = asyncio.create_task(client.ask("planner_run", {"goal": "go"}))
        await asyncio.wait_for(model.reached.wait(), 5)
        (run,) = (await other.ask("run_status", {"view": "full"}))["runs"]
        request = {"run_id": run["run_id"], "action": action}
        await other.ask("run_control", request | ({"route": "caller"} if action == "reroute" else {}))
        if action == "pause":
            model.go.set()  # what is under way may end
        ended = await asyncio.wait_for(call, 5)
        match action:
            case "cancel":
                assert (ended["status"], bodies(place, run["run_id"])) == ("cancelled", {})
            case "pause":
                assert ended["status"] == "paused"
                assert list(bodies(place, run["run_id"])) == ["round-1"]
                await other.ask("run_control", {"run_id": run["run_id"], "action": "resume"})
                run = await client.ask("run_continue", {"run_id": run["run_id"]})
                assert (run["status"], run["summary"]) == ("completed", "late")
            case _:
                assert (ended["status"], ended["route"]) == ("input_required", "caller")


async def test_a_step_that_the_caller_answered_meanwhile_takes_no_second_answer(place):
    model = Silent([says("late"), says("never asked")])
    async with (
        App.open(place.settings(), via="mcp") as app,
        connect_client(app, LEGACY, model) as client,
        connect_client(app, LEGACY) as other,
    ):
        call = asyncio.create_task(client.ask("planner_run", {"goal": "go"}))
        await asyncio.wait_for(model.reached.wait(), 5)
        (run,) = (await other.ask("run_status", {"view": "full"}))["runs"]
        answers = {"run_id": run["run_id"], "answers": {"round-1": says("by the caller")}}
        await other.ask("run_continue", answers)
        ended = await asyncio.wait_for(call, 5)
        model.go.set()
        assert (ended["status"], ended["summary"]) == ("completed", "by the caller")


async def test_two_calls_for_one_run_ask_the_client_once(place):
    model = Silent([says("once")])
    async with (
        App.open(place.settings(), via="mcp") as app,
        connect_client(app, LEGACY, model) as client,
    ):
        first = asyncio.create_task(client.ask("planner_run", {"goal": "go"}))
        await asyncio.wait_for(model.reached.wait(), 5)
        second = asyncio.create_task(client.ask("planner_run", {"goal": "go"}))
        third = asyncio.create_task(client.ask("planner_run", {"goal": "go", "wait_s": 1}))
        assert (await third)["status"] == "input_required"
        model.go.set()
        came = [await first, await second]
        assert [(run["status"], run["summary"]) for run in came] == [("completed", "once")] * 2
    assert len(model.asked) == 1


async def test_a_cancelled_call_withdraws_its_push_and_the_run_waits(place):
    model = Silent([says("later")])
    async with App.open(place.settings(), via="mcp") as app, connect_client(app, LEGACY, model) as client:
        call = asyncio.create_task(client.ask("planner_run", {"goal": "go"}))
        await asyncio.wait_for(model.reached.wait(), 5)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        (run,) = (await client.still_answers())["runs"]
        assert (run["status"], run["route"]) == ("input_required", "sampling")
        model.go.set()
        ended = await client.ask("run_continue", {"run_id": run["run_id"]})
        assert ended["summary"] == "later"


async def test_a_client_that_goes_away_during_a_push_refuses_nothing(place):
    model = Silent([])
    async with App.open(place.settings(), via="mcp") as app:
        async with connect_client(app, LEGACY, model) as client:
            call = asyncio.create_task(client.ask("planner_run", {"goal": "go"}))
            await asyncio.wait_for(model.reached.wait(), 5)
        await asyncio.gather(call, return_exceptions=True)
        async with connect_client(app, LEGACY, ClientModel([says("by the next client")])) as client:
            (run,) = (await client.still_answers())["runs"]
            assert (run["status"], run["route"]) == ("input_required", "sampling")
            ended = await client.ask("run_continue", {"run_id": run["run_id"]})
            assert ended["summary"] == "by the next client"
