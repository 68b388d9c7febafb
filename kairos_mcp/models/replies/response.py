"""Make a response well-formed, as OpenAI's newer interface defines it: also what local servers send under its name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kairos_mcp.core.messages import JsonObject
from kairos_mcp.models.replies.calls import (
    arguments_of,
    arguments_text,
    function_of,
    once_each,
    repair_call_id,
    repair_name,
)
from kairos_mcp.models.replies.chat import is_time, take_usage
from kairos_mcp.models.replies.errors import error_of, read_error
from kairos_mcp.models.replies.exchange import BadProviderReply, ErrorInReply, Exchange

_STATES = ("completed", "failed", "incomplete", "cancelled")


def repair_response(reply: JsonObject, exchange: Exchange) -> JsonObject:
    """Return a response with nothing in it but what its definition has. Raises BadProviderReply."""
    take_usage(exchange, iter((reply.get("usage"),)))
    output = reply.get("output")
    if (error := error_of(reply)) is not None:
        raise ErrorInReply(error, has_begun=bool(output) or exchange.reports_usage)
    if not isinstance(output, list):
        if isinstance(reply.get("choices"), list):
            raise BadProviderReply("it is a chat completion; set KAIROS_MODEL=openai-chat:NAME")
        if read_error(reply).words:
            raise ErrorInReply(reply, has_begun=exchange.reports_usage)
        raise BadProviderReply("it is no response")
    report, details = exchange.usage, reply.get("incomplete_details")
    reason = details.get("reason") if isinstance(details, dict) else None
    return {
        "id": _text(reply.get("id")) or "reply",
        "object": "response",
        "created_at": created if is_time(created := reply.get("created_at")) else 0,
        "model": _text(reply.get("model")),
        "status": status if (status := reply.get("status")) in _STATES else "completed",
        "incomplete_details": {"reason": reason} if isinstance(reason, str) and reason else None,
        "error": None,
        "output": list(_repair_items(output, exchange)),
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": report
        and {
            "input_tokens": report.input_tokens,
            "input_tokens_details": {"cached_tokens": report.cached_tokens},
            "output_tokens": report.output_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": report.total_tokens,
        },
    }


def response_text(reply: JsonObject) -> str:
    """Return the text of a repaired response."""
    parts = (part for item in reply["output"] if item["type"] == "message" for part in item["content"])
    return "".join(part["text"] for part in parts if part["type"] == "output_text")


def _repair_items(output: list[Any], exchange: Exchange) -> Iterator[JsonObject]:
    calls = [item for item in output if isinstance(item, dict) and item.get("type") == "function_call"]
    once = {id(call) for call in once_each(calls, exchange)}
    taken: set[str] = set()
    for item in output:
        match item:
            case {"type": "message", "content": content}:
                yield {
                    **_head(item),
                    "role": "assistant",
                    "content": list(_repair_parts(content)),
                    **_kept(item, "phase"),
                }
            case {"type": "function_call"}:
                if id(item) in once:
                    yield _repair_call(item, taken, exchange)
            case {"type": "reasoning"}:
                yield {
                    **_head(item),
                    "summary": _texts(item.get("summary"), "summary_text"),
                    "content": _texts(item.get("content"), "reasoning_text"),
                    **_kept(item, "encrypted_content"),
                }
            case {"type": "message"} | None:
                pass
            case _:
                kind = item.get("type") if isinstance(item, dict) else None
                exchange.note_repair(f"an item of the unknown kind {str(kind)[:60]!r} was left out")


def _repair_call(item: JsonObject, taken: set[str], exchange: Exchange) -> JsonObject:
    function = function_of(item)
    return {
        **_head(item),
        "call_id": repair_call_id(item.get("call_id") or item.get("id"), len(taken) + 1, taken, exchange),
        "name": repair_name(function.get("name"), exchange),
        "arguments": arguments_text(arguments_of(function), exchange),
        **_kept(item, "namespace"),
    }


def _repair_parts(content: object) -> Iterator[JsonObject]:
    for part in content if isinstance(content, list) else [content]:
        match part:
            case {"type": "refusal", "refusal": str(text)}:
                yield {"type": "refusal", "refusal": text}
            case {"text": str(text)} | str(text):
                yield {"type": "output_text", "text": text, "annotations": []}
            case _:
                pass


def _texts(parts: object, kind: str) -> list[JsonObject]:
    listed = parts if isinstance(parts, list) else []
    return [
        {"type": kind, "text": part["text"]} for part in listed if isinstance(part, dict) and _text(part.get("text"))
    ]


def _head(item: JsonObject) -> JsonObject:
    return {"type": item["type"], "id": _text(item.get("id")) or None, "status": "completed"}


def _kept(item: JsonObject, name: str) -> JsonObject:
    return {name: item[name]} if isinstance(item.get(name), str) else {}


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
