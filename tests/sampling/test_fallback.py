"""A client that refuses, errs, stays silent or answers nonsense: `auto` goes on another way, a given route waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import mcp_types as wire
import pytest
from mcp.shared.exceptions import MCPError
from support.app import Place, reads, says
from support.sampling_clients import (
    LEGACY,
    MODERN,
    WITHIN_S,
    Broken,
    ClientModel,
    ConnectedClient,
    Silent,
    asks_of,
    bodies,
    connect_client,
    image_reply,
    open_client,
    paths,
    text_reply,
)

from kairos_mcp.app.app import App
from kairos_mcp.server.call import DEFAULT_WAIT_POLICY, WaitPolicy

HASTY = replace(DEFAULT_WAIT_POLICY, first_s=0.1, later_s=0.1, stale_after_s=0.0)


def refusing(code: int, message: str) -> Callable[[], ClientModel]:
    return lambda: ClientModel([wire.ErrorData(code=code, message=message)] * 20)


NO_ANSWER: dict[str, Callable[[], ClientModel]] = {
    "refusal": refusing(-1, "User rejected sampling request"),
    "crash": Broken,
    "method not found": refusing(-32601, "Method not found"),
    "silence": Silent,
    "an image alone": lambda: ClientModel([image_reply()] * 20),
    "a user's turn": lambda: ClientModel([text_reply("me", role="user")] * 20),
}
TELLS = ("an image alone", "a user's turn")  # on the modern protocol the others never reach the server


async def call_planner(
    client: ConnectedClient, model: ClientModel, how: str, arguments: dict[str, str]
) -> dict[str, object]:
    """What the call of a stock client comes to; where its client raises, what the next one comes to."""
    if client.sdk_client.protocol_version == LEGACY or how in TELLS:
        return await client.ask("planner_run", arguments)
    if isinstance(model, Silent):
        call = asyncio.create_task(client.sdk_client.call_tool("planner_run", arguments))
        async with asyncio.timeout(WITHIN_S):
            await model.reached.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    else:
        with pytest.raises((MCPError, ExceptionGroup)):
            await client.sdk_client.call_tool("planner_run", arguments)
    if "route" not in arguments:
        return await client.ask("planner_run", arguments)
    again = await client.step_to_requests("planner_run", arguments)  # it is asked again: its route was given
    assert list(again.input_requests) == ["round-1#2"]
    status = await client.ask("run_status", {"view": "full"})
    return status["runs"][0]


@pytest.mark.parametrize("how", NO_ANSWER)
async def test_auto_goes_on_with_the_next_route_and_says_so(place, era, how):
    model = NO_ANSWER[how]()
    async with open_client(place.settings(), era, model, patience=HASTY) as client:
        waits = await call_planner(client, model, how, {"goal": "go"})
        assert (waits["route"], waits["status"]) == ("caller", "input_required")
        assert sum("the run went on with the route caller" in note for note in waits["degraded"]) == 1
        assert bodies(place, waits["run_id"]) == {}
        (item,) = waits["waiting"]
        answers = {item["key"]: says("by the caller")}
        ended = await client.ask("run_continue", {"run_id": waits["run_id"], "answers": answers})
        assert (ended["status"], ended["summary"]) == ("completed", "by the caller")


@pytest.mark.parametrize("how", NO_ANSWER)
async def test_a_route_that_was_given_waits_and_says_so(place, era, how):
    model = NO_ANSWER[how]()
    async with open_client(place.settings(), era, model, patience=HASTY) as client:
        waits = await call_planner(client, model, how, {"goal": "go", "route": "sampling"})
        assert (waits["route"], waits["status"]) == ("sampling", "input_required")
        assert any("waits, since its route was given" in note for note in waits["degraded"])
        assert waits["next"] == {**waits["next"], "tool": "run_continue", "arguments": {"run_id": waits["run_id"]}}
        assert bodies(place, waits["run_id"]) == {}
    assert len(model.asked) <= 2  # no storm of asks


async def test_a_fallback_holds_for_the_rest_of_the_run_until_a_reroute(place, era):
    model = ClientModel([image_reply(), reads("a.txt"), says("by the client")])
    async with open_client(place.settings(), era, model, patience=HASTY) as client:
        run = await client.ask("planner_run", {"goal": "go"})
        again = await client.ask("run_continue", {"run_id": run["run_id"]})
        assert (again["route"], len(model.asked)) == ("caller", 1)
        await client.ask("run_control", {"run_id": run["run_id"], "action": "reroute", "route": "sampling"})
        ended = await client.ask("run_continue", {"run_id": run["run_id"]})
    assert (ended["route"], ended["summary"]) == ("sampling", "by the client")


async def test_after_a_reroute_an_ask_of_before_is_no_refusal(place):
    async with open_client(place.settings(), MODERN, ClientModel([]), patience=HASTY) as client:
        await client.step_to_requests("planner_run", {"goal": "go"})
        fell = await client.step_to_result("planner_run", {"goal": "go"})
        assert fell["route"] == "caller"
        run_id = fell["run_id"]
        await client.step_to_result("run_control", {"run_id": run_id, "action": "reroute", "route": "sampling"})
        again = await client.step_to_requests("run_continue", {"run_id": run_id})
        assert list(again.input_requests) == ["round-1#2"]


async def test_a_young_ask_is_returned_again_and_an_old_one_counts_as_refused(place):
    async with App.open(place.settings(), via="mcp") as app:
        async with connect_client(app, MODERN, ClientModel([])) as client:
            first = await client.step_to_requests("planner_run", {"goal": "go"})
            again = await client.step_to_requests("planner_run", {"goal": "go"})
            assert list(again.input_requests) == list(first.input_requests) == ["round-1"]
        assert place.rows("select count(*) from client_question") == [(1,)]
        async with connect_client(app, MODERN, ClientModel([]), patience=HASTY, name="another client") as client:
            other = await client.step_to_requests("planner_run", {"goal": "go"})
            assert list(other.input_requests) == ["round-1#2"]  # nobody else has refused
        async with connect_client(app, MODERN, ClientModel([]), patience=HASTY) as client:
            carried = await client.step_to_requests("planner_run", {"goal": "go"}, state=first.request_state)
            assert list(carried.input_requests) == [
                "round-1#3"
            ]  # a call with a state is no refusal; it takes over again
            assert (await client.step_to_result("run_status", {"view": "full"}))["runs"][0][
                "route"
            ] == "sampling"  # nor one that can't ask
            refused = await client.step_to_result("planner_run", {"goal": "go"})
            assert refused["route"] == "caller"


async def test_a_client_that_has_answered_once_is_waited_for_longer(place):
    """The first answer has 0.1 s here, later ones as long as the test: only a client that is known gets them."""
    model = Silent([reads("a.txt"), says("done")])
    patience = WaitPolicy(first_s=0.2, later_s=60.0)
    async with App.open(place.settings(), via="mcp") as app:
        async with connect_client(app, LEGACY, ClientModel([says("one")]), patience=patience) as client:
            await client.ask("planner_run", {"goal": "one"})
        async with connect_client(app, LEGACY, model, patience=patience) as client:
            asyncio.get_running_loop().call_later(0.5, model.go.set)
            ended = await client.ask("planner_run", {"goal": "two"})
            assert (ended["route"], ended["summary"]) == ("sampling", "done")
        late = Silent([says("never")])
        async with connect_client(app, LEGACY, late, patience=patience, name="unknown") as client:
            assert (await client.ask("planner_run", {"goal": "three"}))["route"] == "caller"


async def test_an_answer_that_comes_after_its_time_is_dropped(place):
    model = Silent([says("too late")])
    async with open_client(place.settings(), LEGACY, model, patience=HASTY) as client:
        run = await client.ask("planner_run", {"goal": "go"})
        assert run["route"] == "caller"
        model.go.set()
        assert (await client.still_answers())["runs"][0]["status"] == "input_required"
        assert bodies(place, run["run_id"]) == {}


async def test_a_push_is_bounded_by_the_run_s_own_time(place):
    """Its limit ends the run as a timeout, with a closing call; what was waited is charged, and no more."""
    model = Silent([says("the closing")])
    async with open_client(place.settings(), LEGACY, model) as client:
        asking = asyncio.create_task(client.ask("planner_run", {"goal": "go", "limits": {"seconds": 1}, "wait_s": 15}))
        await model.reached.wait()
        asyncio.get_running_loop().call_later(0.6, model.go.set)
        ended = await asking
    assert model.asked  # it answered within its second
    assert ended["status"] == "completed"
    assert 0.3 <= ended["usage"]["seconds"] <= 1


async def test_a_run_out_of_time_closes(place):
    class Slow(Silent):
        async def __call__(self, ctx: object, params: wire.CreateMessageRequestParams) -> object:
            if params.system_prompt and "No tools can be called now" in params.system_prompt:
                return await ClientModel.__call__(self, ctx, params)
            await self.go.wait()
            raise AssertionError

    async with open_client(place.settings(), LEGACY, Slow([says("the closing")])) as client:
        ended = await client.ask("planner_run", {"goal": "go", "limits": {"seconds": 1}, "wait_s": 15})
        assert (ended["status"], ended["stop_reason"]) == ("stopped", "timeout")
        assert ended["summary"] == "the closing"
        assert paths(place, ended["run_id"]) == ["round-1", "closing"]


async def test_nothing_is_spent_by_a_refusal(place: Place):
    async with open_client(place.settings(), LEGACY, refusing(-1, "no")()) as client:
        run = await client.ask("planner_run", {"goal": "go"})
        assert run["usage"]["model_calls"] == 0
        assert run["usage"]["input_tokens"] == 0
    assert asks_of(place) == []


async def test_a_connection_that_was_lost_is_no_refusal(place: Place):
    gone = wire.ErrorData(code=wire.CONNECTION_CLOSED, message="Connection closed")
    async with open_client(place.settings(), LEGACY, ClientModel([gone, says("later")])) as client:
        run = await client.ask("planner_run", {"goal": "go"})
        assert (run["route"], run["status"], run["next"]["tool"]) == ("sampling", "input_required", "run_continue")
        assert (await client.ask("run_continue", {"run_id": run["run_id"]}))["summary"] == "later"


SILENT = "copilot-cli"


@pytest.mark.parametrize(
    ("name", "asked", "configured", "route"),
    [
        (SILENT, "auto", {}, "caller"),
        (SILENT, "sampling", {}, "sampling"),
        (SILENT, "auto", {"route": "sampling"}, "sampling"),
        (SILENT, "auto", {"silent_clients": ()}, "sampling"),
        ("another", "auto", {}, "sampling"),
        ("another", "auto", {"silent_clients": ("another 1",)}, "caller"),
        ("another", "auto", {"silent_clients": ("another 2*",)}, "sampling"),
    ],
)
async def test_a_client_that_is_known_to_stay_silent_is_asked_only_where_that_is_said(
    place: Place, name: str, asked: str, configured: dict[str, Any], route: str
) -> None:
    model = ClientModel([says("done")])
    async with open_client(place.settings(**configured), MODERN, model, name=name) as client:
        await client.sdk_client.session.call_tool(
            "planner_run", {"goal": "x", "route": asked, "wait_s": 5}, allow_input_required=True
        )
    assert place.rows("select route from run") == [(route,)]
    assert place.rows("select count(*) from client_completion") == [(int(route == "sampling"),)]
