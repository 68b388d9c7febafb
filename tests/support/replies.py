"""Raw replies of providers, taken through the pass before a library sees them, without a server or a library."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from kairos_mcp.core.steps import Failure
from kairos_mcp.models.pricing import Tariff
from kairos_mcp.models.provider_errors import request_failure
from kairos_mcp.models.provider_messages import with_reported_usage
from kairos_mcp.models.replies.border import CHAT, MESSAGE, Form, encode_reply, read_reply
from kairos_mcp.models.replies.exchange import BadProviderReply, Exchange

Parts = Sequence[bytes]


@dataclass(frozen=True)
class Taken:
    """What was taken of a reply. `calls`: (id, name, arguments as a value); `usage`: (in, out, cached)."""

    content: str
    calls: tuple[tuple[str, str, Any], ...]
    finish: str | None
    usage: tuple[int, int, int] | None
    notes: tuple[str, ...] = ()
    heard: str = ""


def take(parts: Parts, form: Form = CHAT, kind: str = "application/json") -> Taken | Failure:
    """Return what is taken of these bytes; the failure that comes of them where nothing is."""
    notes: list[str] = []
    pieces: list[str] = []
    exchange = Exchange("ours-{}".format, pieces.append, notes.append)
    try:
        reply = asyncio.run(_read(parts, kind, form, exchange))
    except BadProviderReply as error:
        tariff = Tariff("openai:small")
        return with_reported_usage(request_failure(error, tariff, {}, None, exchange), exchange, tariff)
    content, calls = _chat_parts(reply) if form is CHAT else _message_parts(reply)
    usage = exchange.usage
    tokens = None if usage is None else (usage.input_tokens, usage.output_tokens, usage.cached_tokens)
    return Taken(content, calls, exchange.finish, tokens, tuple(notes), "".join(pieces))


def taken_of(parts: Parts, form: Form = CHAT, kind: str = "application/json") -> Taken:
    """Return what is taken of these bytes, which is no failure."""
    taken = take(parts, form, kind)
    assert isinstance(taken, Taken), taken
    return taken


def read_whole(parts: Parts, form: Form) -> Any:
    """Return what a library is given of these bytes."""
    return asyncio.run(_read(parts, "application/json", form, Exchange()))


async def _read(parts: Parts, kind: str, form: Form, exchange: Exchange) -> Any:
    async def each() -> AsyncIterator[bytes]:
        for part in parts:
            yield part

    return json.loads(encode_reply(await read_reply(each(), kind, form, exchange)))


def _chat_parts(reply: Any) -> tuple[str, tuple[tuple[str, str, Any], ...]]:
    message = reply["choices"][0]["message"]
    calls = tuple(
        (call["id"], call["function"]["name"], _parsed(call["function"]["arguments"]))
        for call in message.get("tool_calls", ())
    )
    return message["content"] or "", calls


def _message_parts(reply: Any) -> tuple[str, tuple[tuple[str, str, Any], ...]]:
    blocks = reply["content"]
    calls = tuple((block["id"], block["name"], block["input"]) for block in blocks if block["type"] == "tool_use")
    return "".join(block["text"] for block in blocks if block["type"] == "text"), calls


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def whole(value: Any) -> Parts:
    return [json.dumps(value).encode()]


def events(values: Iterable[Any], end: str = "\n\n", *, done: bool = True) -> Parts:
    """These values as events, each a part of its own."""
    return [*(f"data: {json.dumps(value)}{end}".encode() for value in values), *([b"data: [DONE]\n\n"] if done else [])]


def chat_reply(content: Any = "Well.", finish: Any = "stop", usage: Any = None, **message: Any) -> dict[str, Any]:
    said = {"role": "assistant", "content": content, **message}
    reply = {
        "id": "c1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "message": said, "finish_reason": finish}],
    }
    return reply if usage is None else {**reply, "usage": usage}


def chunk(delta: Any = None, finish: Any = None, **more: Any) -> dict[str, Any]:
    head = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    return {**head, "choices": [{"index": 0, "delta": delta or {}, "finish_reason": finish}], **more}


def message_reply(*blocks: Any, stop: Any = "end_turn", usage: Any = None) -> dict[str, Any]:
    content = list(blocks) or [{"type": "text", "text": "Well."}]
    reply = {"id": "m1", "type": "message", "role": "assistant", "model": "m", "content": content, "stop_reason": stop}
    return reply if usage is None else {**reply, "usage": usage}


def message_stream(stop: Any = "end_turn", start: Any = None, end: Any = None) -> list[dict[str, Any]]:
    """The events of a message that says `Well.`; `start`, `end`: what is reported in its first event and its last."""
    begun = {"id": "m1", "type": "message", "role": "assistant", "content": [], "model": "m", "usage": start}
    return [
        {"type": "message_start", "message": begun},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Well."}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": stop, "stop_sequence": None}, "usage": end},
        {"type": "message_stop"},
    ]


MESSAGES = MESSAGE
