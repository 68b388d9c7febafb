"""Answers from outside: what fits becomes a value of ours, all else is refused without an echo."""

from typing import Any

import pytest

from kairos_mcp.core.errors import BadArguments
from kairos_mcp.core.messages import Completion, ToolCall, ToolResult, Usage
from kairos_mcp.models.answers import parse_caller_completion, parse_completion, parse_tool_result

CALL = {"name": "look", "arguments": {"n": 1}}


def test_a_whole_answer_becomes_a_completion_with_ordinals_for_ids() -> None:
    value = {
        "content": "I look.",
        "tool_calls": [{"id": "toolu_01", **CALL}, {"name": "find", "arguments": {}}],
        "usage": {"input_tokens": 10, "output_tokens": 3, "cached_tokens": 2},
        "finish": "tool_calls",
    }
    assert parse_completion(value, "task-1/round-3") == Completion(
        "I look.",
        (ToolCall("task-1/round-3/call-1", "look", {"n": 1}), ToolCall("task-1/round-3/call-2", "find")),
        "tool_calls",
        Usage(10, 3, 2),
    )


def test_absent_and_null_are_the_same_and_an_empty_turn_is_legal() -> None:
    nulls = {"content": None, "tool_calls": None, "usage": None, "finish": None}
    assert parse_completion({}, "round-1") == parse_completion(nulls, "round-1") == Completion()


NOTHING = [
    {},
    {"content": None},
    {"tool_calls": []},
    {"usage": {"input_tokens": 1, "output_tokens": 1}},
    {"finish": "stop"},
]


@pytest.mark.parametrize("value", NOTHING)
def test_a_caller_who_answers_with_nothing_is_told_so(value: Any) -> None:
    with pytest.raises(BadArguments) as refused:
        parse_caller_completion(value, "round-1")
    assert '{"content": "text"}' in refused.value.hint


@pytest.mark.parametrize(
    "value", [{"content": ""}, {"tool_calls": [CALL]}, {"finish": "refusal"}, {"finish": "length"}]
)
def test_a_caller_s_model_may_fall_silent_decline_or_call(value: Any) -> None:
    assert parse_caller_completion(value, "round-1") == parse_completion(value, "round-1")


def test_arguments_as_a_text_are_marked_unreadable_and_never_decoded() -> None:
    (call,) = parse_completion({"tool_calls": [{"name": "look", "arguments": '{"n": 1}'}]}, "round-1").tool_calls
    assert call.arguments == {}
    assert call.unreadable


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        "text",
        {"contents": "x"},
        {"content": 1},
        {"content": "\ud800"},
        {"tool_calls": {}},
        {"tool_calls": [{"name": "look"}]},
        {"tool_calls": [{"name": "look", "arguments": None}]},
        {"tool_calls": [{"name": "look", "arguments": [1]}]},
        {"tool_calls": [{"name": "", "arguments": {}}]},
        {"tool_calls": [{"name": "look", "arguments": {"n": float("nan")}}]},
        {"tool_calls": [{"name": "look", "arguments": {"n": "\udfff"}}]},
        {"tool_calls": [{**CALL, "type": "function"}]},
        {"finish": "done"},
        {"content": "x" * (4 * 1024 * 1024 + 1)},
    ],
)
def test_what_does_not_fit_is_refused_as_bad_arguments(value: Any) -> None:
    with pytest.raises(BadArguments) as refusal:
        parse_completion(value, "round-1")
    assert refusal.value.code == "bad_arguments"
    assert len(str(refusal.value)) < 1_000


def test_an_answer_nested_deeper_than_any_reader_goes_is_refused() -> None:
    deep: Any = {}
    for _ in range(10_000):
        deep = {"a": deep}
    with pytest.raises(BadArguments):
        parse_completion({"tool_calls": [{"name": "look", "arguments": deep}]}, "round-1")


@pytest.mark.parametrize("count", [-5, "12", True, 1.5, 2**53, None])  # BUDGET-002, -003, -004
def test_usage_that_is_no_count_of_tokens_is_usage_invalid(count: Any) -> None:
    with pytest.raises(BadArguments) as refusal:
        parse_completion({"content": "x", "usage": {"input_tokens": count, "output_tokens": 1}}, "round-1")
    assert refusal.value.code == "usage_invalid"


def test_a_refusal_names_what_is_wrong_and_what_is_valid_and_echoes_nothing() -> None:
    with pytest.raises(BadArguments) as refusal:
        parse_completion({"content": 12345678, "k" * 5_000: "s3cret"}, "round-1")
    text = str(refusal.value)
    assert "content" in text
    assert "tool_calls" in refusal.value.hint
    assert "12345678" not in text
    assert "s3cret" not in text
    assert len(text) < 1_000


def test_a_tool_result_from_outside() -> None:
    assert parse_tool_result({"content": "a\0b"}) == ToolResult("a\0b")
    value = {"content": "no", "is_error": True, "data": {"n": 1}}
    assert parse_tool_result(value) == ToolResult("no", is_error=True, data={"n": 1})
    for bad in (
        {},
        {"content": None},
        {"content": "x", "is_error": "no"},
        {"content": "x", "data": float("inf")},
    ):
        with pytest.raises(BadArguments):
            parse_tool_result(bad)
