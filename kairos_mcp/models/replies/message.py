"""Make a message well-formed, as Anthropic defines it: also what servers send that only claim to speak its form."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from kairos_mcp.core.messages import JsonObject
from kairos_mcp.models.replies.chat import UNNAMED, decode_twice, repair_call_id, take_finish, take_usage
from kairos_mcp.models.replies.errors import error_of
from kairos_mcp.models.replies.exchange import BadProviderReply, ErrorInReply, Exchange, refuse_many_values

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
    take_usage(exchange, iter((*reply.get("usages", ()), reply.get("usage"))), cache_is_apart=True)
    blocks = list(_read_blocks(reply, exchange))
    meaning = take_finish(exchange, reply.get("stop_reason") or reply.get("finish_reason"))
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
    """Yield the blocks that have a meaning here. Raises ErrorInReply, and BadProviderReply without a content."""
    content = reply.get("content")
    if (error := error_of(reply)) is not None:
        raise ErrorInReply(error, has_begun=bool(content) or exchange.reports_usage)
    if "content" not in reply:
        is_chat = isinstance(reply.get("choices"), list)
        raise BadProviderReply(
            "it is a chat completion of OpenAI's form; set KAIROS_MODEL=openai:NAME" if is_chat else "it is no message"
        )
    taken: set[str] = set()
    number = 0
    for block in content if isinstance(content, list) else [content]:
        match block:
            case dict() if block.get("type") == "tool_use":
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


def _repair_call(call: JsonObject, number: int, taken: set[str], exchange: Exchange) -> JsonObject:
    name = call.get("name")
    if not isinstance(name, str) or not name.strip():
        exchange.note_repair(f"a call without a name was taken as one of {UNNAMED}")
        name = UNNAMED
    return {
        "type": "tool_use",
        "id": repair_call_id(call.get("id"), number, taken, exchange),
        "name": name.strip(),
        "input": _read_input(call.get("input", call.get("arguments")), exchange),
    }


def _read_input(given: object, exchange: Exchange) -> JsonObject | str:
    """Return a call's input as an object; what is none as a text, so that the call can be answered with an error."""
    if given is None or (isinstance(given, str) and not given.strip()):
        return {}
    if isinstance(given, dict):
        return given
    exchange.note_repair("arguments that were no object were taken as what they are")
    if not isinstance(given, str):
        return json.dumps(given)
    text = decode_twice(given)
    refuse_many_values(text)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return given
    return value if isinstance(value, dict) else given
