"""Usage and finish reasons that are not as their definitions say: what is charged for each, and how the turn ended."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.replies import (
    MESSAGES,
    Taken,
    chat_reply,
    chunk,
    events,
    message_reply,
    message_stream,
    take,
    taken_of,
    whole,
)

from kairos_mcp.core.steps import Failure

Tokens = tuple[int, int, int]


# -- usage ---------------------------------------------------------------------------------------------------------


def counts(read: Any, written: Any, total: Any = None, **more: Any) -> dict[str, Any]:
    return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": total, **more}


CACHED = {"prompt_tokens_details": {"cached_tokens": 40}}
REASONING = {"completion_tokens_details": {"reasoning_tokens": 900}}
USAGES: list[tuple[str, Any, Tokens | None, bool]] = [
    ("as defined", counts(100, 10, 110), (100, 10, 0), False),
    ("with a cache", counts(100, 10, 110, **CACHED), (100, 10, 40), False),
    ("without a total", {"prompt_tokens": 100, "completion_tokens": 10}, (100, 10, 0), False),
    ("null details", counts(100, 10, 110, prompt_tokens_details=None), (100, 10, 0), False),
    ("reasoning inside", counts(100, 910, 1010, **REASONING), (100, 910, 0), False),
    ("reasoning beside", counts(100, 10, 1010, **REASONING), (100, 910, 0), False),
    ("reasoning beside, by the total alone", counts(100, 10, 1010), (100, 910, 0), False),
    ("more reasoning than output, no total", counts(100, 10, **REASONING), (100, 910, 0), False),
    ("reasoning inside, no total", counts(100, 1_000, **REASONING), (100, 1_000, 0), False),
    ("reasoning at the top", counts(100, 10, 1010, reasoning_tokens=900), (100, 910, 0), False),
    ("a total that is too small", counts(100, 10, 50), (100, 10, 0), False),
    ("a total of 0", counts(100, 10, 0), (100, 10, 0), False),
    ("a cache beside the input, by the total", counts(100, 10, 150, **CACHED), (140, 10, 40), False),
    ("a cache greater than the input", counts(30, 10, **CACHED), (70, 10, 40), False),
    ("a cache greater than the input, denied by the total", counts(30, 10, 40, **CACHED), None, True),
    ("DeepSeek's names for a cache", counts(100, 10, 110, prompt_cache_hit_tokens=40), (100, 10, 40), False),
    ("a cache at the top", counts(100, 10, 110, cached_tokens=40), (100, 10, 40), False),
    ("no output, but a total", counts(100, None, 110), (100, 10, 0), False),
    ("no input, but a total", counts(None, 10, 110), (100, 10, 0), False),
    ("output 0, and a total that says more", counts(100, 0, 110), (100, 10, 0), False),
    ("newer names", {"input_tokens": 100, "output_tokens": 10, "total_tokens": 110}, (100, 10, 0), False),
    ("names in camel case", {"promptTokens": 100, "completionTokens": 10, "totalTokens": 110}, (100, 10, 0), False),
    ("names of Gemini", {"promptTokenCount": 100, "candidatesTokenCount": 10}, (100, 10, 0), False),
    ("names of Ollama", {"prompt_eval_count": 100, "eval_count": 10}, (100, 10, 0), False),
    ("both names, one of them 0", counts(100, 10, 110, input_tokens=0, output_tokens=0), (100, 10, 0), False),
    ("both names, alike", counts(100, 10, 110, input_tokens=100, output_tokens=10), (100, 10, 0), False),
    ("both names, the greater counts", {**counts(100, 10), "output_tokens": 12}, (100, 12, 0), False),
    ("whole numbers with a point", counts(100.0, 10.0, 110.0), (100, 10, 0), False),
    ("numbers in texts", counts("100", "10", "110"), (100, 10, 0), False),
    ("a detail that is no count", counts(100, 10, 110, cached_tokens=-1), (100, 10, 0), False),
    ("more names beside", counts(100, 10, 110, cost=0.1, queue_time=3, is_byok=False), (100, 10, 0), False),
    ("missing", None, None, False),
    ("empty", {}, None, False),
    ("zeros", counts(0, 0, 0), None, False),
    ("nulls", counts(None, None, None), None, False),
    ("names of nobody", {"words": 7}, None, False),
    ("a total alone", {"total_tokens": 110}, None, True),
    ("the input alone", {"prompt_tokens": 100}, None, True),
    ("the output alone", {"completion_tokens": 10}, None, True),
    ("a total below the input", counts(100, None, 50), None, True),
    ("negative input", counts(-1, 10, 9), None, True),
    ("negative output", counts(100, -10, 90), None, True),
    ("negative total", counts(100, 10, -1), None, True),
    ("a truth value", counts(True, 10, 11), None, True),
    ("a fraction", counts(100.5, 10, 110), None, True),
    ("not a number", counts(float("nan"), 10, 110), None, True),
    ("infinite", counts(float("inf"), 10, 110), None, True),
    ("too many", counts(2**60, 10, 110), None, True),
    ("a word", counts("many", 10, 110), None, True),
    ("a list", counts([100], 10, 110), None, True),
    ("an object", counts({"n": 100}, 10, 110), None, True),
    ("a text in its place", "many", None, True),
    ("a number in its place", 110, None, True),
    ("a list in its place", [100, 10], None, True),
]  # fmt: skip
USAGE_NAMES = [name for name, *_ in USAGES]


def check_usage(taken: Taken, expected: Tokens | None, is_noted: bool) -> None:
    assert (taken.content, taken.usage) == ("Well.", expected)
    assert len([note for note in taken.notes if "usage can't be read" in note]) == is_noted


@pytest.mark.parametrize(("usage", "expected", "is_noted"), [row[1:] for row in USAGES], ids=USAGE_NAMES)
@pytest.mark.parametrize("place", ["whole", "last chunk", "own chunk", "choice", "groq", "list of one"])
def test_usage_is_charged_as_it_was_meant(place: str, usage: Any, expected: Tokens | None, is_noted: bool) -> None:
    text, end = chunk({"content": "Well."}), chunk({}, "stop")
    match place:
        case "whole":
            parts = whole({**chat_reply(), "usage": usage})
        case "last chunk":
            parts = events([text, {**end, "usage": usage}])
        case "own chunk":
            parts = events([text, end, {"choices": [], "usage": usage}])
        case "choice":
            parts = events([text, {"choices": [{**end["choices"][0], "usage": usage}]}])
        case "groq":
            parts = events([text, {**end, "x_groq": {"id": "r", "usage": usage}}])
        case _:
            parts = whole([{**chat_reply(), "usage": usage}])
    check_usage(taken_of(parts), expected, is_noted)


@pytest.mark.parametrize("growing", [True, False])
@pytest.mark.parametrize("early", [None, {}, counts(100, 0, 100), counts(100, None, None), counts(0, 0, 0)])
def test_usage_in_every_chunk_is_charged_once(early: Any, growing: bool) -> None:
    chunks = [chunk({"content": "Well."}, usage=early)]
    if growing:
        chunks += [chunk({}, usage=counts(100, written, 100 + written)) for written in range(1, 10)]
    chunks += [
        chunk({}, "stop", usage=counts(100, 10, 110)),
        {"choices": [], "usage": counts(100, 10, 110)},
    ]
    check_usage(taken_of(events(chunks)), (100, 10, 0), False)


def ins(read: Any, written: Any = None, **more: Any) -> dict[str, Any]:
    given = {"input_tokens": read, "output_tokens": written}
    return {name: count for name, count in given.items() if count is not None} | more


MESSAGE_USAGES: list[tuple[str, Any, Any, Tokens | None]] = [
    ("as defined", ins(100, 1), ins(None, 10), (100, 10, 0)),
    ("with a cache", ins(60, 1, cache_read_input_tokens=40), ins(None, 10), (100, 10, 40)),
    (
        "a cache in camel case",
        {"inputTokens": 60, "cacheReadInputTokens": 30, "cacheWriteInputTokens": 10},
        {"outputTokens": 10},
        (100, 10, 30),
    ),
    ("a cache written", ins(60, cache_creation_input_tokens=40), ins(None, 10), (100, 10, 0)),
    (
        "a cache written, by its life alone",
        ins(60, cache_creation={"ephemeral_5m_input_tokens": 30, "ephemeral_1h_input_tokens": 10}),
        ins(None, 10),
        (100, 10, 0),
    ),
    (
        "a cache written, by its life and as a sum",
        ins(60, cache_creation_input_tokens=40, cache_creation={"ephemeral_5m_input_tokens": 40}),
        ins(None, 10),
        (100, 10, 0),
    ),
    (
        "a cache written, by a life that is no count",
        ins(100, cache_creation={"ephemeral_5m_input_tokens": "many", "at": 7}),
        ins(None, 10),
        (100, 10, 0),
    ),
    ("a cache written, as no object", ins(100, cache_creation=[40]), ins(None, 10), (100, 10, 0)),
    ("all at the end", ins(0, 0), ins(100, 10), (100, 10, 0)),
    ("all in both", ins(100, 1), ins(100, 10), (100, 10, 0)),
    ("zeros at the end", ins(100, 10), ins(0, 0), (100, 10, 0)),
    ("nothing at the start", None, ins(100, 10), (100, 10, 0)),
    ("nothing at the end", ins(100, 10), None, (100, 10, 0)),
    ("nulls beside", ins(100, cache_read_input_tokens=None), ins(None, 10), (100, 10, 0)),
    ("OpenAI's names", None, counts(100, 10, 110), (100, 10, 0)),
    ("missing", None, None, None),
    ("zeros", ins(0, 0), ins(None, 0), None),
    ("negative", ins(-5, 1), ins(None, 10), None),
    ("a word", ins("many"), ins(None, 10), None),
]


@pytest.mark.parametrize(
    ("start", "end", "expected"), [row[1:] for row in MESSAGE_USAGES], ids=[r[0] for r in MESSAGE_USAGES]
)
@pytest.mark.parametrize("place", ["events", "events by name", "whole"])
def test_usage_of_a_message_is_charged_as_it_was_meant(
    place: str, start: Any, end: Any, expected: Tokens | None
) -> None:
    match place:
        case "events":
            parts = events(message_stream(start=start, end=end), done=False)
        case "events by name":
            values = message_stream(start=start, end=end)
            parts = [f"event: {each['type']}\ndata: {json.dumps(each)}\n\n".encode() for each in values]
        case _:
            said_later = {name: count for name, count in (end or {}).items() if count}
            parts = whole(message_reply(usage={**(start or {}), **said_later}))
    taken = taken_of(parts, MESSAGES)
    assert (taken.content, taken.usage) == ("Well.", expected)


# -- how it ended --------------------------------------------------------------------------------------------------

FINISHES: dict[str | None, list[Any]] = {
    "stop": ["stop", "STOP", "end_turn", "eos", "stop_sequence", "completed", "COMPLETE", "end",
             "FINISH_REASON_STOP", "FinishReason.STOP", "stop_token", {"type": "stop", "matched": 7}],
    "length": ["length", "LENGTH", "max_tokens", "MAX_TOKENS", "max_output_tokens", "model_length",
               "model_context_window_exceeded", "context_length_exceeded", "maxTokens", "max_new_tokens",
               "ERROR_LIMIT", "FINISH_REASON_MAX_TOKENS", {"type": "length", "length": 7}],
    "content_filter": ["content_filter", "contentFilter", "SAFETY", "safety", "guardrail_intervened", "sensitive",
                       "RECITATION", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "content_filtered",
                       "content_filter: RECITATION", "ERROR_TOXIC", "LANGUAGE"],
    "tool_calls": ["tool_calls", "tool_use", "function_call", "toolUse"],
    "refusal": ["refusal"],
    "paused": ["pause_turn"],
    "unknown": ["banana", "eosx", "?", 7, {}, ["stop"]],
    None: ["null", "None", "", " ", "not_finished", "FINISH_REASON_UNSPECIFIED"],
}  # fmt: skip
BROKEN = ["error", "ERROR", "insufficient_system_resource", "network_error", "abort", "aborted", "cancelled", "failed",
          "MALFORMED_FUNCTION_CALL", "timeout", "internal_error", "server_error", "UNEXPECTED_TOOL_CALL",
          "function_call_filter: MALFORMED_FUNCTION_CALL", "USER_CANCEL", "malformed_tool_use",
          "TOO_MANY_TOOL_CALLS"]  # fmt: skip
MEANINGS = [(meaning, word) for meaning, words in FINISHES.items() for word in words]


def ended(place: str, word: Any) -> Taken | Failure:
    match place:
        case "whole":
            return take(whole(chat_reply(finish=word)))
        case "events":
            return take(events([chunk({"content": "Well."}), chunk({}, word)]))
        case "message":
            return take(whole(message_reply(stop=word)), MESSAGES)
        case _:
            return take(events(message_stream(stop=word), done=False), MESSAGES)


@pytest.mark.parametrize("place", ["whole", "events", "message", "message events"])
@pytest.mark.parametrize(("meaning", "word"), MEANINGS)
def test_a_finish_reason_counts_by_what_it_means(place: str, meaning: str | None, word: Any) -> None:
    taken = ended(place, word)
    assert isinstance(taken, Taken)
    if word == {}:
        assert taken.finish in (None, "unknown")  # events keep what says something
        return
    assert (taken.finish, taken.content) == (meaning, "Well.")
    assert len(taken.notes) == (meaning == "unknown")


@pytest.mark.parametrize("place", ["whole", "events", "message", "message events"])
@pytest.mark.parametrize("word", BROKEN)
def test_a_reply_that_says_it_broke_off_is_tried_again(place: str, word: str) -> None:
    failure = ended(place, word)
    assert isinstance(failure, Failure)
    assert (failure.code, failure.retryable, failure.unknown_end) == ("provider_error", True, True)
    assert word in failure.message
