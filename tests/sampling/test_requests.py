"""What a client is asked, and that one which did not offer its model is asked nothing."""

from __future__ import annotations

from itertools import pairwise

import mcp_types as wire
import pytest
from mcp.client.client import Client
from support.app import ASK, reads, says
from support.sampling_clients import ERAS, LEGACY, MODERN, ClientModel, Silent, open_client, provide_app

from kairos_mcp.app.app import App
from kairos_mcp.core.errors import BadArguments
from kairos_mcp.core.messages import Conversation, Message
from kairos_mcp.core.routes import ROUTES, choose_route, order_routes
from kairos_mcp.core.steps import RequestCompletion, Sent
from kairos_mcp.models import sampling
from kairos_mcp.models.dialects import TextPrompts
from kairos_mcp.server.mcp_server import build_server

NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


async def test_a_client_that_offers_no_sampling_is_asked_nothing(place, era):
    async with open_client(place.settings(), era) as client:
        waits = await client.ask("planner_run", {"goal": "go"})
        assert (waits["route"], waits["status"]) == ("caller", "input_required")
        assert any("auto" in note and "caller" in note for note in waits["degraded"])
        explicit = await client.ask("planner_run", {"goal": "other", "route": "sampling"})
        assert (explicit["route"], explicit["status"]) == ("sampling", "input_required")
        assert any("offers no sampling" in note for note in explicit["degraded"])
        assert explicit["next"]["tool"] == "run_continue"
        again = await client.ask("run_continue", {"run_id": explicit["run_id"]})
        assert (again["status"], again["waiting"]) == ("input_required", explicit["waiting"])
    assert place.rows("select count(*) from client_question") == [(0,)]


async def test_auto_takes_the_script_before_the_client(place, era):
    model = ClientModel([])
    async with open_client(place.settings(says("by script")), era, model) as client:
        ended = await client.ask("planner_run", {"goal": "go"})
    assert (ended["route"], ended["summary"], model.asked) == ("scripted", "by script", [])


@pytest.mark.parametrize(("first", "route"), [(False, "provider"), (True, "sampling")])
def test_auto_takes_the_provider_before_the_client_unless_sampling_is_preferred(first, route):
    available = order_routes(("caller", "provider", "sampling"), clients_first=first)
    assert choose_route("auto", available)[0] == route


def test_a_route_that_there_is_not_is_refused_by_its_name():
    with pytest.raises(BadArguments, match="no route 'server'"):
        choose_route("server", order_routes(ROUTES, clients_first=False))


def test_a_model_s_name_travels_as_a_hint():
    step = RequestCompletion("round-1", "round", Conversation((Message("user", "go"),)))
    asked = sampling.make_sampling_request(
        step, Sent(model="some-model", max_tokens=7), "text", TextPrompts("", "", "")
    )
    (hint,) = asked.params.model_preferences.hints
    assert (hint.name, asked.params.max_tokens) == ("some-model", 7)


async def test_every_request_names_what_it_wants_and_never_asks_for_other_context(place, era, native):
    model = ClientModel([reads("a.txt", "b.txt"), reads("a.txt"), says("sum")], native)
    async with open_client(place.settings(), era, model) as client:
        await client.ask("planner_run", {"goal": "go", "limits": {"rounds": 2}})
    assert len(model.asked) == 3
    for params in model.asked:
        assert params.max_tokens > 0
        assert params.model_preferences is not None
        assert params.include_context is None
        assert "includeContext" not in params.model_dump(by_alias=True, exclude_none=True)
    offered = [bool(params.tools) for params in model.asked]
    assert offered == ([True, True, False] if native else [False, False, False])


async def test_natively_a_message_of_results_holds_nothing_else(place, era):
    model = ClientModel([reads("a.txt", "b.txt"), reads("x"), says("done")], native=True)
    async with open_client(place.settings(), era, model) as client:
        await client.ask("planner_run", {"goal": "go"})
    messages = model.asked[-1].messages
    for before, message in pairwise(messages):
        blocks = message.content if isinstance(message.content, list) else [message.content]
        if any(isinstance(block, wire.ToolResultContent) for block in blocks):
            assert message.role == "user"
            uses = [block.id for block in before.content if isinstance(block, wire.ToolUseContent)]
            assert [block.tool_use_id for block in blocks] == uses  # and nothing but results
    newest = messages[-1].content
    standing = newest[-1].content[-1].text
    assert standing.endswith("]")
    assert "round 3 of 5" in standing


async def test_in_the_text_dialect_there_are_no_tools_and_no_roles_of_tools(place, era):
    model = ClientModel([reads("a.txt", "b.txt"), says("done")])
    async with open_client(place.settings(), era, model) as client:
        await client.ask("planner_run", {"goal": "go"})
    first, second = model.asked
    assert '"read_file"' in (first.system_prompt or "")
    assert first.tools is None
    assert [message.role for message in second.messages] == ["user", "assistant", "user"]
    assert all(isinstance(message.content, wire.TextContent) for message in second.messages)
    received = second.messages[-1].content.text
    assert received.index("alpha") < received.index("beta") < received.index("round 2 of 5")


async def test_a_schema_is_told_where_a_client_can_t_be_given_one(place, era, native):
    model = ClientModel([says('{"n": 3}')], native)
    async with open_client(place.settings(), era, model) as client:
        ended = await client.ask("planner_run", {"goal": "go", "output_schema": NUMBER})
    assert ended["output"] == {"n": 3}
    assert '"integer"' in (model.asked[0].system_prompt or "")


async def test_capabilities_count_for_the_call_that_declares_them(place):
    """Natively asked, answered by text: on the modern protocol each request declares anew."""
    model = ClientModel([says("one")], native=True)
    async with open_client(place.settings(), MODERN, model) as client:
        asked = await client.step_to_requests("planner_run", {"goal": "go"})
        (params,) = [request.params for request in asked.input_requests.values()]
        assert params.tools


async def test_tool_calls_that_the_caller_executes_are_named_as_the_next_thing_to_do(place, era):
    model = ClientModel([{"tool_calls": [{"name": "ask_person", "arguments": {}}]}, says("they said yes")])
    theirs = [{"name": ASK.name, "description": "Asks.", "input_schema": {"type": "object"}}]
    async with open_client(place.settings(), era, model) as client:
        waits = await client.ask("planner_run", {"goal": "go", "caller_tools": theirs})
        (item,) = waits["waiting"]
        assert (waits["status"], item["kind"]) == ("input_required", "tool_call")
        assert set(waits["next"]["arguments"]["answers"]) == {item["key"]}
        answers = {item["key"]: {"content": "yes"}}
        ended = await client.ask("run_continue", {"run_id": waits["run_id"], "answers": answers})
    assert (ended["status"], ended["summary"]) == ("completed", "they said yes")


async def test_progress_is_told_while_a_push_is_in_the_air(place):
    received: list[float] = []
    model = Silent([says("late")])

    async def tell(progress: float, _total: float | None, _message: str | None) -> None:
        received.append(progress)
        if len(received) == 3:  # the third sign of life lets the model speak
            model.go.set()

    async with open_client(place.settings(), LEGACY, model) as client:
        ended = await client.ask("planner_run", {"goal": "go"}, progress_callback=tell)
    assert ended["summary"] == "late"
    assert received == sorted(set(received))
    assert len(received) >= 3


async def test_a_client_that_only_looks_makes_no_key(place, era):
    async with (
        App.open(place.settings(), via="mcp") as app,
        Client(build_server(provide_app(app), app.settings), mode=ERAS[era]) as client,
    ):
        await client.list_tools()
    assert not place.home.exists()
