"""Each part of a good reply replaced by each of many odd values: an answer or a failure, never an exception.

Nothing that comes so far is of a shape that a library does not know: whatever the pass lets through is well-formed.
"""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
from support.provider_calls import ask_model, asking, step_of
from support.provider_server import Standin, raw
from support.replies import (
    MESSAGES,
    Taken,
    chat_reply,
    chunk,
    events,
    message_reply,
    message_stream,
    read_whole,
    take,
    whole,
)

from kairos_mcp.core.messages import Completion
from kairos_mcp.core.model import ModelInput
from kairos_mcp.core.steps import Failure, Sent
from kairos_mcp.models.replies.border import CHAT, RESPONSE, Form
from kairos_mcp.models.replies.exchange import BadProviderReply

USAGE = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110, "prompt_tokens_details": {}}
CALL = {"index": 0, "id": "x1", "type": "function", "function": {"name": "read_file", "arguments": '{"path": "a"}'}}
DETAILS = [{"type": "reasoning.text", "text": "hm"}]
SAID_ITEM = {
    "type": "message",
    "id": "i1",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": "Well.", "annotations": []}],
}
CALL_ITEM = {"type": "function_call", "id": "i2", "call_id": "x1", "name": "read_file", "arguments": '{"path": "a"}'}
THOUGHT_ITEM = {"type": "reasoning", "id": "i3", "summary": [{"type": "summary_text", "text": "hm"}]}
GOOD: dict[str, Any] = {
    "chat": chat_reply("Well.", "tool_calls", USAGE, tool_calls=[CALL], reasoning="hm", reasoning_details=DETAILS),
    "chat parts": chat_reply([{"type": "text", "text": "Well."}, {"type": "thinking", "thinking": [{"text": "hm"}]}]),
    "chat events": [
        chunk({"role": "assistant", "content": "Well.", "tool_calls": [CALL]}),
        chunk({}, "stop", usage=USAGE),
    ],
    "message": message_reply(
        {"type": "thinking", "thinking": "hm", "signature": "s"},
        {"type": "text", "text": "Well."},
        {"type": "tool_use", "id": "x1", "name": "read_file", "input": {"path": "a"}},
        usage={"input_tokens": 100, "output_tokens": 10, "cache_read_input_tokens": 4},
    ),
    "message events": message_stream(start={"input_tokens": 100, "output_tokens": 1}, end={"output_tokens": 10}),
    "chat, elsewhere": {
        "result": {"choices": [{"message": {"content": "Well.", "toolCalls": [CALL]}, "finishReason": "stop"}]}
    },
    "chat, natively": {"message": {"content": "Well.", "tool_calls": [CALL]}, "done": True, "eval_count": 10},
    "response": {"output": [SAID_ITEM, CALL_ITEM, THOUGHT_ITEM], "usage": {"input_tokens": 100, "output_tokens": 10}},
    "response events": [
        {"type": "response.output_text.delta", "delta": "Well."},
        {"type": "response.output_item.done", "item": SAID_ITEM},
        {"type": "response.completed", "response": {"id": "r1", "model": "m", "output": [], "usage": None}},
    ],
    "error": {"error": {"message": "no", "type": "x", "code": 7, "details": [{"retryDelay": "1s"}]}},
}  # fmt: skip
ODD: list[Any] = [
    None, True, -1, 7, 1.5, float("nan"), 2**70, "", "odd", "{", "\ud800", [], [None], [[]], ["odd"], {}, {"odd": 1},
    {"type": "text"},
]  # fmt: skip


def places_in(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in inner:
        yield from places_in(part, (*path, key))


def replaced(value: Any, path: tuple[Any, ...], odd: Any) -> Any:
    changed = copy.deepcopy(value)
    if not path:
        return odd
    holder = changed
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = odd
    return changed


def deviations(name: str) -> Iterator[list[bytes]]:
    """The bytes of each deviation of a good reply: a part of it replaced, or left out."""
    good = GOOD[name]
    for path in places_in(good):
        for odd in ODD:
            changed = replaced(good, path, odd)
            is_stream = "events" in name and isinstance(changed, list)
            yield list(events(changed, done="message" not in name)) if is_stream else list(whole(changed))


def read_response(parts: list[bytes]) -> None:
    with contextlib.suppress(BadProviderReply):
        assert isinstance(read_whole(parts, RESPONSE)["output"], list)


def form_of(name: str) -> Form:
    return MESSAGES if name.startswith("message") else RESPONSE if name.startswith("response") else CHAT


@pytest.mark.parametrize("name", GOOD)
def test_no_part_of_a_reply_can_be_odd_enough_for_an_exception(name: str) -> None:
    form, count = form_of(name), 0
    for parts in deviations(name):
        if form is RESPONSE:
            read_response(parts)
        else:
            assert isinstance(take(parts, form), Taken | Failure), parts
        count += 1
    assert count > 100


async def check_over_http(server: Standin, name: str, every: int) -> int:
    """Have a real client read every so many of the deviations, and return how many it has read."""
    model_name = {MESSAGES: "anthropic:claude-standin", RESPONSE: "openai-responses:gpt-5"}.get(
        form_of(name), "openai:small"
    )
    count = 0
    async with asking(model_name, server.address if form_of(name) is MESSAGES else server.openai) as model:
        for number, parts in enumerate(deviations(name)):
            if number % every:
                continue
            count += 1
            server.will(raw(b"".join(parts)))
            if number % (2 * every):
                answer = await ask_model(model, step_of())
            else:
                step = step_of()
                answer = await model(ModelInput(step.name, step, Sent("provider"), on_text=lambda _: None))
            assert isinstance(answer, Completion | Failure)
            assert not isinstance(answer, Failure) or "unknown shape" not in answer.message, (parts, answer)
            json.dumps(answer.message if isinstance(answer, Failure) else answer.content)
    return count


@pytest.mark.parametrize("name", GOOD)
async def test_what_is_let_through_has_a_shape_that_its_library_knows(server: Standin, name: str) -> None:
    assert await check_over_http(server, name, 37) > 2


@pytest.mark.slow
@pytest.mark.parametrize("name", GOOD)
async def test_whatever_is_let_through_has_a_shape_that_its_library_knows(server: Standin, name: str) -> None:
    assert await check_over_http(server, name, 1) > 100
