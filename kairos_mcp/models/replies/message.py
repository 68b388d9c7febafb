"""Make a message well-formed, as Anthropic defines it: also what servers send that only claim to speak its form."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from kairos_mcp.core.messages import JsonObject
from kairos_mcp.models.replies.calls import (
    arguments_of,
    calls_of,
    function_of,
    is_call_block,
    mend_arguments,
    once_each,
    repair_call_id,
    repair_name,
)
from kairos_mcp.models.replies.chat import take_finish, take_usage
from kairos_mcp.models.replies.errors import error_of, read_error
from kairos_mcp.models.replies.exchange import BadProviderReply, ErrorInReply, Exchange
from kairos_mcp.models.replies.layout import finish_of, snake_keys, usages_of

_STOP_REASONS: Mapping[str, str] = {
    "stop": "end_turn",
    "tool_calls": "tool_use",
    "length": "max_tokens",
    "content_filter": "refusal",
    "refusal": "refusal",
    "paused": "pause_turn",
}


def repair_message(reply: JsonObject, exchange: Exchange) -> JsonObject:
    """Return a message with nothing in it but what its definition has. Raises BadProviderReply."""
    reply = snake_keys(reply)
    take_usage(exchange, usages_of(reply, {}), cache_is_apart=True)
    blocks = list(_read_blocks(reply, exchange))
    meaning = take_finish(exchange, finish_of(reply, {}))
    has_calls = any(block["type"] == "tool_use" for block in blocks)
    report = exchange.usage
    return {
        "id": found if isinstance(found := reply.get("id"), str) and found else "reply",
        "type": "message",
        "role": "assistant",
        "model": model if isinstance(model := reply.get("model"), str) else "",
        "content": blocks,
        "stop_reason": _STOP_REASONS.get(str(meaning), "tool_use" if has_calls else "end_turn"),
        "stop_sequence": None,
        "usage": {
            "input_tokens": 0 if report is None else report.input_tokens,
            "output_tokens": 0 if report is None else report.output_tokens,
        },
    }


def _read_blocks(reply: JsonObject, exchange: Exchange) -> Iterator[JsonObject]:
    """Yield the blocks that have a meaning here. Raises as `_list_blocks`."""
    listed = _list_blocks(reply, exchange)
    once = {id(call) for call in once_each([block for block in listed if is_call_block(block)], exchange)}
    taken: set[str] = set()
    number = 0
    for block in listed:
        match block:
            case dict() if is_call_block(block):
                if id(block) in once:
                    number += 1
                    yield _repair_call(block, number, taken, exchange)
            case {"type": "thinking", "thinking": str(text), **rest}:
                signature = rest.get("signature")
                yield {
                    "type": "thinking",
                    "thinking": text,
                    "signature": signature if isinstance(signature, str) else "",
                }
            case {"type": "redacted_thinking", "data": str(data)}:
                yield {"type": "redacted_thinking", "data": data}
            case {"type": "text", "text": str(text)} | str(text) if text:
                yield {"type": "text", "text": text}
            case {"type": "text" | "thinking"} | None | "":
                pass
            case {"type": str(kind)}:
                exchange.note_repair(f"a block of the unknown kind {kind[:60]!r} was left out")
            case _:
                exchange.note_repair("a block of no kind was left out")


def _list_blocks(reply: JsonObject, exchange: Exchange) -> list[Any]:
    """Return the blocks of a reply. Raises ErrorInReply, and BadProviderReply without content and calls."""
    content = reply.get("content")
    if (error := error_of(reply)) is not None:
        raise ErrorInReply(error, has_begun=bool(content) or exchange.reports_usage)
    beside = calls_of(({**reply, "content": None},))
    if "content" not in reply and not beside:
        if isinstance(reply.get("choices"), list):
            raise BadProviderReply("it is a chat completion of OpenAI's form; set KAIROS_MODEL=openai:NAME")
        if read_error(reply).words:
            raise ErrorInReply(reply, has_begun=exchange.reports_usage)
        raise BadProviderReply("it is no message")
    listed: list[Any] = content if isinstance(content, list) else [content]
    if not beside or any(map(is_call_block, listed)):
        return listed
    exchange.note_repair("calls that stood beside their message were taken")
    return [*listed, *({**call, "type": "tool_use"} for call in beside)]


def _repair_call(call: JsonObject, number: int, taken: set[str], exchange: Exchange) -> JsonObject:
    function = function_of(call)
    return {
        "type": "tool_use",
        "id": repair_call_id(call.get("id"), number, taken, exchange),
        "name": repair_name(function.get("name"), exchange),
        "input": _read_input(arguments_of(function), exchange),
    }


def _read_input(given: object, exchange: Exchange) -> JsonObject | str:
    """Return a call's input as an object; anything else as a text, so that the call can be answered with an error."""
    if given is None or (isinstance(given, str) and not given.strip()):
        return {}
    if isinstance(given, dict):
        return given
    exchange.note_repair("arguments that were no object were taken as what they are")
    if not isinstance(given, str):
        return json.dumps(given)
    try:
        value = json.loads(mend_arguments(given, exchange))
    except (ValueError, RecursionError):
        return given
    return value if isinstance(value, dict) else given
