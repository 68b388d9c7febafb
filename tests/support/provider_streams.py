"""The replies of a stand-in for a provider, piece by piece: as OpenAI (chat completions) and Anthropic send events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

from starlette.responses import Response, StreamingResponse

from support.provider_server import Heard, Reply


def pieces_of(text: str, size: int) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]


def chat_events(reply: Mapping[str, Any], size: int = 3) -> Iterator[str]:
    """A chat completion as its events; texts and arguments come in pieces of this many characters."""
    (choice,) = reply["choices"]
    head = {name: reply[name] for name in ("id", "created", "model")} | {"object": "chat.completion.chunk"}
    said = choice["message"]
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{"content": piece} for piece in pieces_of(said.get("content") or "", size)]
    for index, call in enumerate(said.get("tool_calls", ())):
        function = call["function"]
        begins = {"name": function["name"], "arguments": ""}
        deltas.append({"tool_calls": [{"index": index, "id": call["id"], "type": "function", "function": begins}]})
        for piece in pieces_of(function["arguments"], size):
            deltas.append({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    for delta in deltas:
        yield _data({**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
    if choice["finish_reason"] is not None:
        yield _data({**head, "choices": [{"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}]})
    if "usage" in reply:
        yield _data({**head, "choices": [], "usage": reply["usage"]})
    yield "data: [DONE]\n\n"


def message_events(reply: Mapping[str, Any], size: int = 3) -> Iterator[str]:
    """An Anthropic message as its events."""
    usage = reply["usage"]
    begun = {**reply, "content": [], "stop_reason": None, "usage": {**usage, "output_tokens": 1}}
    yield _event({"type": "message_start", "message": begun})
    for index, block in enumerate(reply["content"]):
        match block["type"]:
            case "text":
                empty = {**block, "text": ""}
                deltas = [{"type": "text_delta", "text": piece} for piece in pieces_of(block["text"], size)]
            case _:
                empty = {**block, "input": {}}
                given = pieces_of(json.dumps(block["input"]), size)
                deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in given]
        yield _event({"type": "content_block_start", "index": index, "content_block": empty})
        for delta in deltas:
            yield _event({"type": "content_block_delta", "index": index, "delta": delta})
        yield _event({"type": "content_block_stop", "index": index})
    ended = {"stop_reason": reply["stop_reason"], "stop_sequence": None}
    yield _event({"type": "message_delta", "delta": ended, "usage": {"output_tokens": usage["output_tokens"]}})
    yield _event({"type": "message_stop"})


def response_events(reply: Mapping[str, Any], size: int = 3) -> Iterator[str]:
    """A response of OpenAI's newer interface as its events: texts and calls."""
    yield _event({"type": "response.created", "response": {**reply, "status": "in_progress", "output": []}})
    for index, item in enumerate(reply["output"]):
        at = {"item_id": item["id"], "output_index": index, "content_index": 0}
        if item["type"] == "function_call":
            yield _event({"type": "response.output_item.added", **at, "item": {**item, "arguments": ""}})
            for piece in pieces_of(item["arguments"], size):
                yield _event({"type": "response.function_call_arguments.delta", **at, "delta": piece})
        else:
            (part,) = item["content"]
            yield _event({"type": "response.output_item.added", **at, "item": {**item, "content": []}})
            yield _event({"type": "response.content_part.added", **at, "part": {**part, "text": ""}})
            for piece in pieces_of(part["text"], size):
                yield _event({"type": "response.output_text.delta", **at, "delta": piece, "logprobs": []})
            yield _event({"type": "response.output_text.done", **at, "text": part["text"], "logprobs": []})
        yield _event({"type": "response.output_item.done", **at, "item": item})
    yield _event({"type": "response.completed", "response": reply})


def streams(events: Sequence[str], *, gate: asyncio.Event | None = None, until: int = 0) -> Reply:
    """These events; where there is a gate, those from `until` on only once it is open."""

    async def reply(heard: Heard) -> Response:
        assert heard.body["stream"] is True

        async def parts() -> AsyncIterator[str]:
            for at, event in enumerate(events):
                if gate is not None and at == until:
                    await gate.wait()
                yield event

        return StreamingResponse(parts(), media_type="text/event-stream")

    return reply


def _data(value: Any) -> str:
    return f"data: {json.dumps(value)}\n\n"


def _event(value: Any) -> str:
    return f"event: {value['type']}\n{_data(value)}"
