"""The forms in which hosts ask their providers: how a request is read, and how an answer is written."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from scripted_model import Json

_number = itertools.count(1)
JSON, EVENTS = "application/json", "text/event-stream"


@dataclass(frozen=True)
class Asked:
    """A request, whatever its form: `results` of tools in their order, `text` of everything else."""

    body: Json
    tools: Sequence[str]
    results: Sequence[str]
    text: str


@dataclass(frozen=True)
class Form:
    """How requests of one kind are read and answered."""

    read: Callable[[Json], Asked]
    write: Callable[..., tuple[bytes, str]]
    is_streamed: Callable[[str, Json], bool] = lambda _path, body: bool(body.get("stream"))


def plain_text(content: Any) -> str:
    """The text of a content: a string, or parts with texts."""
    if isinstance(content, str):
        return content
    return "\n".join(part.get("text", "") for part in content or ())


def _as_events(lines: Sequence[Json], *, named: bool = False) -> bytes:
    heads = [f"event: {line['type']}\n" if named else "" for line in lines]
    return "".join(f"{head}data: {json.dumps(line)}\n\n" for head, line in zip(heads, lines, strict=True)).encode()


# -- OpenAI's chat completions ----------------------------------------------------------------------------------------


def _read_chat(body: Json) -> Asked:
    messages = body["messages"]
    return Asked(
        body,
        [tool["function"]["name"] for tool in body.get("tools") or []],
        [plain_text(message["content"]) for message in messages if message["role"] == "tool"],
        "\n".join(plain_text(message.get("content")) for message in messages if message["role"] != "tool"),
    )


def _write_chat(answer: Json, *, is_streamed: bool) -> tuple[bytes, str]:
    calls = [
        {
            "id": f"call_{next(_number)}",
            "type": "function",
            "function": {"name": call["name"], "arguments": json.dumps(call["arguments"])},
        }
        for call in answer.get("tool_calls", ())
    ]
    message = {"role": "assistant", "content": answer.get("content")} | ({"tool_calls": calls} if calls else {})
    finish = "tool_calls" if calls else "stop"
    head = {"id": f"c{next(_number)}", "created": 1, "model": "scripted"}
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    if not is_streamed:
        choice = {"index": 0, "message": message, "finish_reason": finish}
        return json.dumps({**head, "object": "chat.completion", "choices": [choice], "usage": usage}).encode(), JSON
    delta = {**message, "tool_calls": [{"index": n, **call} for n, call in enumerate(calls)]} if calls else message
    parts: list[Json] = [
        {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]},
        {"choices": [], "usage": usage},
    ]
    chunks = [{**head, "object": "chat.completion.chunk", **part} for part in parts]
    return _as_events(chunks) + b"data: [DONE]\n\n", EVENTS


# -- OpenAI's responses -----------------------------------------------------------------------------------------------


def _read_responses(body: Json) -> Asked:
    items = [{"role": "user", "content": body["input"]}] if isinstance(body["input"], str) else body["input"]
    outputs = [item for item in items if item.get("type", "").endswith("_call_output")]
    others = [item for item in items if item not in outputs and "content" in item]
    return Asked(
        body,
        list(_response_tools(body.get("tools") or ())),
        [plain_text(item["output"]) for item in outputs],
        "\n".join(plain_text(item["content"]) for item in others),
    )


def _response_tools(tools: Sequence[Json]) -> list[str]:
    """Names of functions; those of a namespace as `namespace/name`."""
    names = []
    for tool in tools:
        if tool["type"] == "namespace":
            names += [f"{tool['name']}/{name}" for name in _response_tools(tool["tools"])]
        elif "name" in tool:
            names.append(tool["name"])
    return names


def _response_call(call: Json) -> Json:
    namespace, _, name = call["name"].rpartition("/")
    item = {"type": "function_call", "id": f"fc_{next(_number)}", "call_id": f"call_{next(_number)}", "name": name}
    more = {"namespace": namespace} if namespace else {}
    return {**item, **more, "arguments": json.dumps(call["arguments"]), "status": "completed"}


def _write_responses(answer: Json, *, is_streamed: bool) -> tuple[bytes, str]:
    text = {"type": "output_text", "text": answer.get("content") or "", "annotations": []}
    message = {"type": "message", "id": "m1", "role": "assistant", "status": "completed", "content": [text]}
    output = [_response_call(call) for call in answer.get("tool_calls", ())] or [message]
    usage = {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15}
    whole = {"id": f"r{next(_number)}", "object": "response", "created_at": 1, "model": "scripted"}
    ended = {**whole, "status": "completed", "output": output, "usage": usage}
    if not is_streamed:
        return json.dumps(ended).encode(), JSON
    events: list[Json] = [{"type": "response.created", "response": {**whole, "status": "in_progress", "output": []}}]
    for n, item in enumerate(output):
        events.append({"type": "response.output_item.added", "output_index": n, "item": item})
        events.append({"type": "response.output_item.done", "output_index": n, "item": item})
    return _as_events([*events, {"type": "response.completed", "response": ended}], named=True), EVENTS


# -- Gemini's generateContent -----------------------------------------------------------------------------------------


def _read_gemini(body: Json) -> Asked:
    parts = [part for content in body["contents"] for part in content.get("parts", ())]
    declared = [each for tool in body.get("tools") or () for each in tool.get("functionDeclarations", ())]
    return Asked(
        body,
        [each["name"] for each in declared],
        [_gemini_result(part["functionResponse"]["response"]) for part in parts if "functionResponse" in part],
        "\n".join(part["text"] for part in parts if "text" in part),
    )


def _gemini_result(response: Json) -> str:
    return str(response.get("output") or response.get("error") or json.dumps(response))


def _write_gemini(answer: Json, *, is_streamed: bool) -> tuple[bytes, str]:
    calls = [{"functionCall": {"name": c["name"], "args": c["arguments"]}} for c in answer.get("tool_calls", ())]
    parts = calls or [{"text": answer.get("content") or ""}]
    candidate = {"content": {"role": "model", "parts": parts}, "finishReason": "STOP", "index": 0}
    usage = {"promptTokenCount": 10, "candidatesTokenCount": 5, "totalTokenCount": 15}
    whole = {"candidates": [candidate], "usageMetadata": usage, "modelVersion": "scripted"}
    return (_as_events([whole]), EVENTS) if is_streamed else (json.dumps(whole).encode(), JSON)


# -- Anthropic's messages ---------------------------------------------------------------------------------------------


def _read_messages(body: Json) -> Asked:
    contents = [message["content"] for message in body["messages"]]
    parts = [part for each in contents for part in ([{"text": each}] if isinstance(each, str) else each)]
    called = [part["id"] for part in parts if part.get("type") == "tool_use"]
    results = [part for part in parts if part.get("type") == "tool_result"]
    results.sort(key=lambda part: called.index(part["tool_use_id"]))  # they come as they ended
    return Asked(
        body,
        [tool["name"] for tool in body.get("tools") or ()],
        [plain_text(part.get("content")) or _found_tools(part) for part in results],
        "\n".join(part["text"] for part in parts if "text" in part),
    )


def _found_tools(result: Json) -> str:
    """The names that a search for tools gave."""
    return " ".join(part.get("tool_name", "") for part in result.get("content") or ())


def _write_messages(answer: Json, *, is_streamed: bool) -> tuple[bytes, str]:
    calls = [
        {"type": "tool_use", "id": f"toolu_{next(_number)}", "name": call["name"], "input": call["arguments"]}
        for call in answer.get("tool_calls", ())
    ]
    blocks: list[Json] = calls or [{"type": "text", "text": answer.get("content") or ""}]
    ending = {"stop_reason": "tool_use" if calls else "end_turn", "stop_sequence": None}
    usage = {"input_tokens": 10, "output_tokens": 5}
    whole = {"id": f"msg_{next(_number)}", "type": "message", "role": "assistant", "model": "scripted", "usage": usage}
    if not is_streamed:
        return json.dumps({**whole, "content": blocks, **ending}).encode(), JSON
    begun = {**whole, "content": [], "stop_reason": None, "stop_sequence": None}
    events: list[Json] = [{"type": "message_start", "message": begun}]
    for n, block in enumerate(blocks):
        events += [{"index": n, **event} for event in _stream_block(block)]
    events += [{"type": "message_delta", "delta": ending, "usage": usage}, {"type": "message_stop"}]
    return _as_events(events, named=True), EVENTS


def _stream_block(block: Json) -> list[Json]:
    if block["type"] == "text":
        empty, delta = {**block, "text": ""}, {"type": "text_delta", "text": block["text"]}
    else:
        empty, delta = {**block, "input": {}}, {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
    return [
        {"type": "content_block_start", "content_block": empty},
        {"type": "content_block_delta", "delta": delta},
        {"type": "content_block_stop"},
    ]


FORMS = {
    "/chat/completions": Form(_read_chat, _write_chat),
    "/responses": Form(_read_responses, _write_responses),
    "/v1/messages": Form(_read_messages, _write_messages),
    ":generateContent": Form(_read_gemini, _write_gemini),
    ":streamGenerateContent": Form(_read_gemini, _write_gemini, lambda _path, _body: True),
}
"""By how a request's path ends."""
