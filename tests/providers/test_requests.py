"""What a provider is sent: tools, schema, tail, its own parts of earlier turns, and nobody else's."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.provider_calls import KEY, READ, ask_model, asking, step_of
from support.provider_server import Standin, calls, chat, message, says, sends, strict, talks, thinks, uses

from kairos_mcp.core.messages import Completion, Message, ToolCall, ToolSpec
from kairos_mcp.core.model import PrivateParts
from kairos_mcp.models.provider_messages import to_wire_id

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def after_a_call(turn: Completion) -> tuple[Message, ...]:
    """The conversation once the one call of round 1 has its result."""
    return (
        Message("system", "Be brief."),
        Message("user", "Look around."),
        Message("assistant", turn.content, turn.tool_calls),
        Message("tool", "alpha", tool_call_id="round-1/call-1"),
    )


async def test_a_request_has_system_conversation_tools_tokens_and_temperature(server: Standin) -> None:
    server.will(talks("hello"))
    async with asking("openai:small", server.openai, temperature=0.25) as model:
        await ask_model(model, step_of(max_tokens=900), max_tokens=700)
    (body,) = server.bodies
    assert [(each["role"], each["content"]) for each in body["messages"]] == [
        ("system", "Be brief."),
        ("user", "Look around."),
    ]
    assert [tool["function"]["name"] for tool in body["tools"]] == ["read_file"]
    assert body["tools"][0]["function"]["parameters"]["properties"] == {"path": {"type": "string"}}
    assert body.get("max_completion_tokens", body.get("max_tokens")) == 700
    assert (body["temperature"], body["model"], body.get("stream", False)) == (0.25, "small", False)


async def test_reminder_and_standing_line_stand_at_the_tail_of_the_newest_turn(server: Standin) -> None:
    turn = Completion("", (ToolCall("round-1/call-1", "read_file", {"path": "a"}),))
    server.will(talks("done"))
    async with asking("openai:small", server.openai) as model:
        await ask_model(model, step_of(*after_a_call(turn), reminder="Mind."), tail="[round 2 of 5]")
    assert [each.get("content") for each in server.bodies[0]["messages"]][1:] == [
        "Look around.", None, "alpha\n\nMind.\n\n[round 2 of 5]",
    ]  # fmt: skip


async def test_calls_of_another_route_go_out_under_ids_that_every_provider_takes(server: Standin) -> None:
    turn = Completion("look", (ToolCall("round-1/call-1", "read_file", {"path": "a"}),))
    server.will(talks("done"))
    async with asking("openai:small", server.openai) as model:
        await ask_model(model, step_of(*after_a_call(turn), name="round-2"))
    turn_sent, result = server.bodies[0]["messages"][2:]
    assert (turn_sent["content"], turn_sent["tool_calls"][0]["id"]) == ("look", "round-1-call-1")
    assert json.loads(turn_sent["tool_calls"][0]["function"]["arguments"]) == {"path": "a"}
    assert (result["role"], result["tool_call_id"]) == ("tool", "round-1-call-1")


@pytest.mark.parametrize("ordinal", ["round-1/call-1", "task-" + "a" * 60 + "/try-2/round-1/call-1", "ü/ö"])
def test_an_id_on_the_wire_is_short_and_plain(ordinal: str) -> None:
    wire_id = to_wire_id(ordinal)
    assert len(wire_id) <= 40
    assert set(wire_id) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")


async def test_a_providers_own_ids_come_back_to_it(server: Standin) -> None:
    server.will(talks(None, calls(("read_file", {"path": "a"}), ids="theirs_"), finish="tool_calls"), talks("done"))
    privates = PrivateParts()
    async with asking("openai:small", server.openai) as model:
        turn = await ask_model(model, step_of())
        assert isinstance(turn, Completion)
        privates.keep("round-1", turn)
        await ask_model(model, step_of(*after_a_call(turn), name="round-2"), privates)
    turn_sent, result = server.bodies[1]["messages"][2:]
    assert turn_sent["tool_calls"][0]["id"] == result["tool_call_id"] == "theirs_1"


async def test_signed_thinking_comes_back_to_anthropic_which_refuses_a_turn_without(server: Standin) -> None:
    looks = message(thinks("hm", "sig-1"), uses("toolu_9", "read_file", {"path": "a"}), stop="tool_use")
    server.will(sends(looks), strict("sig-1", then=message(says("done"))), strict("sig-1", then=message(says("done"))))
    privates = PrivateParts()
    async with asking("anthropic:claude-standin", server.address) as model:
        turn = await ask_model(model, step_of())
        assert isinstance(turn, Completion)
        privates.keep("round-1", turn)
        talk = step_of(*after_a_call(turn), name="round-2")
        assert await ask_model(model, talk, privates) == Completion(
            "done", (), "stop", server_usage(), context_tokens=None, private=None
        )
        refused = await ask_model(model, talk)  # as it would be without what the app has kept
    assert (refused.kind, server.bodies[1]["messages"][1]["content"][0]["signature"]) == ("failure", "sig-1")


def server_usage() -> Any:
    from kairos_mcp.core.messages import Usage

    return Usage(100, 20, 0)


async def test_thinking_never_goes_to_another_provider(server: Standin) -> None:
    looks = message(thinks("hm", "sig-1"), uses("toolu_9", "read_file", {"path": "a"}), stop="tool_use")
    server.will(sends(looks), talks("done"))
    privates = PrivateParts()
    async with asking("anthropic:claude-standin", server.address) as one:
        turn = await ask_model(one, step_of())
        assert isinstance(turn, Completion)
        privates.keep("round-1", turn)
    async with asking("openai:small", server.openai) as other:
        await ask_model(other, step_of(*after_a_call(turn), name="round-2"), privates)
    assert "sig-1" not in json.dumps(server.bodies[1])
    assert "toolu_9" not in json.dumps(server.bodies[1])


async def test_anthropic_may_cache_everything_before_the_line_that_changes(server: Standin) -> None:
    turn = Completion("", (ToolCall("round-1/call-1", "read_file", {"path": "a"}),))
    server.will(sends(message(says("done"), usage=(5, 20, 90))))
    async with asking("anthropic:claude-standin", server.address) as model:
        answer = await ask_model(model, step_of(*after_a_call(turn)), tail="[round 2 of 5]")
    result, tail = server.bodies[0]["messages"][-1]["content"]
    assert (result["type"], "cache_control" in result) == ("tool_result", True)
    assert (tail["text"], "cache_control" in tail) == ("[round 2 of 5]", False)
    assert "cache_control" in json.dumps([server.bodies[0]["system"], server.bodies[0]["tools"]])
    assert isinstance(answer, Completion)
    assert answer.usage is not None
    assert (answer.usage.input_tokens, answer.usage.cached_tokens) == (95, 90)


async def test_unreadable_arguments_are_sent_back_empty(server: Standin) -> None:
    server.will(talks(None, calls(("read_file", '{"path": ')), finish="tool_calls"), talks("done"))
    privates = PrivateParts()
    async with asking("openai:small", server.openai) as model:
        turn = await ask_model(model, step_of())
        assert isinstance(turn, Completion)
        privates.keep("round-1", turn)
        await ask_model(model, step_of(*after_a_call(turn), name="round-2"), privates)
    assert server.bodies[1]["messages"][2]["tool_calls"][0]["function"]["arguments"] == "{}"


async def test_a_schema_is_held_natively_where_no_tools_are_offered(server: Standin) -> None:
    server.will(talks('{"n": 1}'))
    async with asking("openai:small", server.openai) as model:
        await ask_model(model, step_of(tools=(), output_schema=SCHEMA))
    form = server.bodies[0]["response_format"]
    assert form["json_schema"]["schema"]["required"] == ["n"]
    assert server.bodies[0]["messages"][0]["content"] == "Be brief."


async def test_beside_tools_a_server_of_ones_own_is_told_the_schema_in_words(server: Standin) -> None:
    server.will(talks('{"n": 1}'))
    async with asking("openai:small", server.openai) as model:
        await ask_model(model, step_of(output_schema=SCHEMA))
    assert "response_format" not in server.bodies[0]
    assert json.dumps(SCHEMA) in server.bodies[0]["messages"][0]["content"]


async def test_a_tool_without_properties_is_offered_with_none(server: Standin) -> None:
    server.will(talks("hello"))
    async with asking("openai:small", server.openai) as model:
        await ask_model(model, step_of(tools=(ToolSpec("ping", "Pings.", {"type": "object"}),)))
    assert server.bodies[0]["tools"][0]["function"]["parameters"]["properties"] == {}


async def test_in_the_text_dialect_the_prompt_lists_the_tools_and_a_call_is_told_as_text(server: Standin) -> None:
    said = {"tool_calls": [{"name": "read_file", "arguments": {"path": "a"}}], "say": "look"}
    server.will(talks(json.dumps(said)), talks(json.dumps({"final": "done"})))
    async with asking("openai:small", server.openai, dialect="text") as model:
        turn = await ask_model(model, step_of())
        assert isinstance(turn, Completion)
        assert (turn.content, turn.tool_calls[0].arguments) == ("look", {"path": "a"})
        end = await ask_model(model, step_of(*after_a_call(turn), name="round-2"), tail="[round 2 of 5]")
    first, second = server.bodies
    assert "tools" not in first
    either = first["response_format"]["json_schema"]["schema"]["anyOf"]
    assert [set(each["properties"]) for each in either] == [{"tool_calls"}, {"final"}]
    assert READ.name in first["messages"][0]["content"]
    assert json.loads(second["messages"][2]["content"]) == said
    assert second["messages"][3]["content"] == "alpha\n\n[round 2 of 5]"
    assert isinstance(end, Completion)
    assert end.content == "done"


@pytest.mark.parametrize(("environ", "sent"), [({}, "none"), ({"OPENAI_API_KEY": KEY}, KEY)])
async def test_a_server_of_ones_own_is_sent_the_key_or_none(
    server: Standin, environ: dict[str, str], sent: str
) -> None:
    server.will(sends(chat("hello")))
    async with asking("openai:small", server.openai, environ) as model:
        await ask_model(model, step_of())
    assert server.heard[0].headers["authorization"] == f"Bearer {sent}"
