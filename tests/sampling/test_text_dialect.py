"""The text dialect: what a reply means, and that each completion told in it means itself."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.app import law

from kairos_mcp.core.messages import Completion, Conversation, Message, ToolCall, ToolSet, ToolSpec
from kairos_mcp.core.steps import RequestCompletion, Sent
from kairos_mcp.models.dialects import TextPrompts, decode_text_reply, encode_text, encode_text_turn

READ = ToolSpec("read_file", "Reads a file.", {"type": "object"}, effect="read")
PROMPTS = TextPrompts("call: $tools", "final only", "schema: $schema")


def step(*, tools: bool = True, schema: bool = False, messages: tuple[Message, ...] = ()) -> RequestCompletion:
    return RequestCompletion(
        "round-1",
        "round",
        Conversation(messages or (Message("user", "go"),)),
        ToolSet((READ,)) if tools else ToolSet(),
        {"type": "object"} if schema else None,
    )


def decode_reply(reply: str, *, finish: Any = "stop", **ways: bool) -> Completion:
    return decode_text_reply(Completion(reply, finish=finish), step(**ways), "round-1")


CALL = {"name": "read_file", "arguments": {"path": "a"}}
ONE = (ToolCall("round-1/call-1", "read_file", {"path": "a"}),)

READABLE = {
    "calls": ({"tool_calls": [CALL]}, Completion("", ONE, "tool_calls")),
    "calls and what is said": ({"tool_calls": [CALL], "say": "look"}, Completion("look", ONE, "tool_calls")),
    "calls and null": ({"tool_calls": [CALL], "say": None, "final": None}, Completion("", ONE, "tool_calls")),
    "a call with an id": ({"tool_calls": [{**CALL, "id": "x"}]}, Completion("", ONE, "tool_calls")),
    "a call without arguments": (
        {"tool_calls": [{"name": "list_files"}]},
        Completion("", (ToolCall("round-1/call-1", "list_files"),), "tool_calls"),
    ),
    "a final": ({"final": "done"}, Completion("done", finish="stop")),
    "a final and no calls": ({"final": "done", "tool_calls": []}, Completion("done", finish="stop")),
    "a final object": ({"final": {"n": 3}}, Completion('{"n": 3}', finish="stop")),
}
UNREADABLE = {
    "both": {"tool_calls": [CALL], "final": "done"},
    "neither": {"say": "hm"},
    "no calls": {"tool_calls": []},
    "another key": {"final": "done", "thought": "x"},
    "another key beside calls": {"tool_calls": [CALL], "reason": "x"},
    "something said beside a final": {"final": "done", "say": "and this"},
    "a number as final": {"final": 3},
    "a list as final": {"final": ["x"]},
    "calls that are an object": {"tool_calls": CALL},
    "a call that is a text": {"tool_calls": ["read_file"]},
    "a call without a name": {"tool_calls": [{"arguments": {}}]},
    "a call with an empty name": {"tool_calls": [{"name": "", "arguments": {}}]},
    "a call with another key": {"tool_calls": [{**CALL, "why": "x"}]},
    "something said that is no text": {"tool_calls": [CALL], "say": 3},
}


@pytest.mark.parametrize("title", READABLE)
@pytest.mark.parametrize("around", ["{}", "```json\n{}\n```", "Here it is:\n{}\nThat is all."])
def test_a_reply_means_its_object_wherever_it_stands(title, around):
    said, expected = READABLE[title]
    assert decode_reply(around.replace("{}", json.dumps(said))) == expected


@pytest.mark.parametrize("title", UNREADABLE)
def test_a_reply_that_is_neither_is_unreadable_and_kept(title):
    text_of_it = json.dumps(UNREADABLE[title])
    came = decode_reply(text_of_it)
    assert came.unreadable
    assert (came.content, came.tool_calls) == (text_of_it, ())


@pytest.mark.parametrize("arguments", ["a.txt", ["a.txt"], 3, True])
def test_a_call_whose_arguments_are_no_object_spoils_no_other(arguments):
    came = decode_reply(json.dumps({"tool_calls": [{"name": "read_file", "arguments": arguments}, CALL]}))
    assert came.unreadable is None
    assert [bool(call.unreadable) for call in came.tool_calls] == [True, False]
    assert came.tool_calls[0].arguments == {}


@pytest.mark.parametrize(
    "reply",
    [
        "Plain prose.",
        '{"final": "cut of',
        '{"final": "a"} {"final": "b"}',
        '{"final": "a", "final": "b"}',
        '{"final": NaN}',
        '["final"]',
        '{"final": "' + "\\ud800" + '"}',
    ],
)
def test_what_is_no_single_object_is_unreadable_with_tools_and_the_text_itself_without(reply):
    assert decode_reply(reply).unreadable
    without = decode_reply(reply, tools=False)
    assert (without.unreadable, without.content) == (None, reply)


def test_with_a_schema_a_bare_object_is_the_final_answer():
    bare = '{"n": 3}'
    assert decode_reply(bare, schema=True) == Completion(bare, finish="stop")
    assert decode_reply(bare).unreadable
    assert decode_reply('{"final": {"n": 3}}', schema=True).content == bare
    assert decode_reply('{"n": 3, "final": "x"}', schema=True).unreadable  # it has a key of ours and one of its own


@pytest.mark.parametrize("finish", ["length", "content_filter", "refusal"])
def test_a_turn_that_was_cut_off_is_not_taken_apart(finish):
    whole = json.dumps({"tool_calls": [CALL]})
    assert decode_reply(whole, finish=finish) == Completion(whole, finish=finish)


def test_calls_that_come_natively_to_a_question_in_text_are_not_run():
    native = Completion("", (ToolCall("round-1/call-1", "read_file", {}),), "tool_calls")
    assert decode_text_reply(native, step(), "round-1").unreadable


def test_results_after_a_turn_are_one_message_and_the_tail_ends_the_newest():
    calls = (ToolCall("round-1/call-1", "read_file", {"path": "a"}), ToolCall("round-1/call-2", "x", {}))
    talk = (
        Message("system", "be good"),
        Message("user", "go"),
        Message("assistant", "look", calls),
        Message("tool", "one", tool_call_id="round-1/call-1"),
        Message("tool", "two", tool_call_id="round-1/call-2"),
    )
    encoded = encode_text(step(messages=talk), Sent(tail="[round 2 of 5]"), PROMPTS)
    assert [message.role for message in encoded.messages] == ["user", "assistant", "user"]
    assert encoded.messages[-1].content == "one\n\ntwo\n\n[round 2 of 5]"
    assert json.loads(encoded.messages[1].content)["say"] == "look"
    assert len(encoded.tools) == 0
    assert encoded.system.startswith("be good\n\ncall: ")


WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63) + 1, 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=8,
)
CALLS = st.lists(st.tuples(WORDS.filter(bool), st.dictionaries(WORDS, VALUES, max_size=3)), max_size=4)


@law
@given(content=WORDS, calls=CALLS, around=st.sampled_from(["{}", "```json\n{}\n```"]))
def test_a_completion_told_in_the_dialect_means_itself(content, calls, around):
    asked = tuple(ToolCall(f"round-1/call-{n}", name, given) for n, (name, given) in enumerate(calls, 1))
    whole = Completion(content, asked, "tool_calls" if asked else "stop")
    assert decode_reply(around.replace("{}", encode_text_turn(content, asked))) == whole


@law
@given(reply=st.text(max_size=200), tools=st.booleans(), schema=st.booleans())
def test_any_text_at_all_gives_a_completion(reply, tools, schema):
    came = decode_reply(reply, tools=tools, schema=schema)
    assert came.kind == "completion"
    assert came.unreadable is None or came.content == reply
