"""Converts a tool result of the protocol into ours: text stays text, other content is described; all within bounds."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from typing import Any

from pydantic_core import to_json

from kairos_mcp.core.hidden_text import show_with_note
from kairos_mcp.core.json_bounds import MAX_VALUES, has_more_values
from kairos_mcp.core.json_schema import TOO_COSTLY, compile_schema
from kairos_mcp.core.messages import JsonObject, ToolResult
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.text import FindParted, find_nothing_parted, truncate
from kairos_mcp.core.work import THREAD_UNITS
from kairos_mcp.tools.mcp_servers.definition import quote_server

RESULT_CHARS = 1_000_000  # of one result; a model is shown far less, and the rest is kept for it to read
CHECKED_BYTES = 1_000_000  # of structured content; checking more would take seconds
_RESULT_KEYS = {"content", "structuredContent", "toolResult", "isError", "resultType", "_meta"}
UNKNOWN_CHARS = 2_000  # of a block of an unknown kind
DATA_BYTES = 8_000  # structured content up to this size is also returned as data, for callers that are programs


@dataclass(frozen=True, slots=True)
class ServerResult:
    """A result as a model reads it, and the structured content that came with it, if any."""

    result: ToolResult
    structured: Any = None


def convert_answer(sent: Any, find_parted: FindParted = find_nothing_parted) -> ServerResult:
    """Convert what a server sent as a result, block by block; an error stays an error. What is not as the protocol has
    it is shown as it is, or named: the call has been made, and its result is needed."""
    given: JsonObject = sent if isinstance(sent, dict) else {"content": sent}
    structured = given.get("structuredContent", given.get("toolResult"))  # the latter: of 2024-10-07
    if structured is not None:
        structured = json.loads(to_json(structured, inf_nan_mode="null"))
    texts = [_describe_block(block, find_parted) for block in _list_blocks(given)]
    if structured is not None and not _is_repeated(structured, texts):
        texts.append(f"[structured content]\n{to_json(structured).decode()}" if texts else to_json(structured).decode())
    if not texts and (others := {key: given[key] for key in given if key not in _RESULT_KEYS}):
        texts.append(to_json(others, inf_nan_mode="null").decode())
    marker = "\n[cut here: the server sent {total:,} characters, {limit:,} are kept]"
    text = show_with_note(truncate("\n".join(texts), RESULT_CHARS, marker, find_parted))
    if given.get("isError") in (True, "true", 1):
        return ServerResult(ToolResult(text or "It failed, and said nothing more.", is_error=True))
    is_small = structured is not None and len(to_json(structured)) <= DATA_BYTES
    result = ToolResult(text or "[it returned nothing]", data=structured if is_small else None)
    return ServerResult(result, given.get("structuredContent"))


def _list_blocks(given: JsonObject) -> list[Any]:
    """Return the blocks of a result. One that has none of a result's keys is itself what the server says."""
    content = given.get("content")
    if isinstance(content, list):
        return content
    if content is not None:
        return [content]
    return [given] if given and not given.keys() & _RESULT_KEYS else []


def check_output_schema(schema: JsonObject | None, answer: ServerResult, tool: str) -> ToolResult:
    """Check structured content against the tool's `outputSchema`. Returns the result, or an error that shows it.

    Slow, so call it in a worker thread. Content that is too large to check is accepted, with a note.
    """
    result = answer.result
    if schema is None or result.is_error:
        return result
    if answer.structured is None:
        return _schema_broken_result(result, tool, "it has none")
    text = to_json(answer.structured, inf_nan_mode="constants")
    if len(text) > CHECKED_BYTES or has_more_values(text, MAX_VALUES):
        return _unchecked_result(result, f"over {CHECKED_BYTES:,} bytes or {MAX_VALUES:,} values")
    problems = compile_schema(schema).problems(answer.structured, THREAD_UNITS)
    if problems == [TOO_COSTLY]:
        return _unchecked_result(result, "too large to be checked")
    if problems:
        return _schema_broken_result(result, tool, "; ".join(quote_server(problem) for problem in problems))
    return result


def _unchecked_result(result: ToolResult, reason: str) -> ToolResult:
    note = f"[structured content {reason}: not held against the tool's outputSchema]"
    return replace(result, content=f"{result.content}\n{note}")


def _schema_broken_result(result: ToolResult, tool: str, problem: str) -> ToolResult:
    return ToolResult(
        f"{tool} was called, and may have done its work, but its structured content does not fit its own outputSchema: "
        f"{problem}. Don't rely on what it answered, and look before you call it again. It answered:\n{result.content}",
        is_error=True,
    )


def _describe_block(block: Any, find_parted: FindParted) -> str:
    match block:
        case str():
            return block
        case {"text": str(text)} if block.get("type") in ("text", None):
            return text
        case {"type": "image", "data": str(encoded)}:
            return f"[an image{_kind_of(block)}, {_format_size(encoded)} bytes; not shown]"
        case {"type": "audio", "data": str(encoded)}:
            return f"[a sound{_kind_of(block)}, {_format_size(encoded)} bytes; not shown]"
        case {"type": "resource_link", "uri": str(uri)}:
            name = block.get("name") if isinstance(block.get("name"), str) else "without a name"
            return f"[a link to the resource {quote_server(name, 80)}: {quote_server(uri, 300)}; not fetched]"
        case {"type": "resource", "resource": dict(resource)}:
            return _describe_resource(resource)
        case {"type": str(kind)}:
            note = f"[a block of the type {quote_server(kind, 40)}, which is not known or not whole]"
            return f"{note}\n{_as_json(block, find_parted)}"
        case _:
            return _as_json(block, find_parted)


def _describe_resource(resource: JsonObject) -> str:
    where = f"[the resource {quote_server(str(resource.get('uri')), 300)}"
    match resource:
        case {"text": str(text)}:
            return f"{where}]\n{text}"
        case {"blob": str(encoded)}:
            return f"{where}, {_format_size(encoded)} bytes; not shown]"
        case _:
            return f"{where}; it has neither text nor bytes]"


def _kind_of(block: JsonObject) -> str:
    kind = block.get("mimeType")
    return f", {quote_server(kind, 40)}" if isinstance(kind, str) else " of no stated type"


def _as_json(value: Any, find_parted: FindParted) -> str:
    """Return a value as JSON, cut: what is not known may be of any size, an image of a later version for one."""
    text = to_json(value, inf_nan_mode="constants").decode()
    return truncate(text, UNKNOWN_CHARS, " [cut here: {total:,} characters]", find_parted)


def _format_size(encoded: str) -> str:
    return f"{len(encoded) * 3 // 4:,}"


def _is_repeated(structured: Any, texts: list[str]) -> bool:
    """Return whether the text holds the structured content already, as the protocol asks of servers.

    Libraries wrap what is no object into one of a single name, and give each part of a list a text of its own.
    """
    is_wrapped = isinstance(structured, dict) and len(structured) == 1
    wholes = (structured, *structured.values()) if is_wrapped else (structured,)
    text = "\n".join(texts)
    if text in wholes or texts in wholes:
        return True
    if has_more_values(text, MAX_VALUES):  # a thread that parses it holds up all others
        return False
    for shown in ([text], texts):
        with suppress(ValueError, RecursionError):
            parts = [json.loads(each) for each in shown]
            if parts in wholes or (len(parts) == 1 and parts[0] in wholes):
                return True
    return False
