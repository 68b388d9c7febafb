"""Converts a tool result of the protocol into ours: text stays text, other content is described; all within bounds."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

import mcp_types as wire
from pydantic_core import to_json

from kairos_mcp.core.json_schema import compile_schema
from kairos_mcp.core.messages import JsonObject, ToolResult
from kairos_mcp.core.text import show_with_note, truncate
from kairos_mcp.tools.mcp_servers.definition import quote_server

RESULT_CHARS = 1_000_000  # of one result; a model is shown far less, and the rest is kept for it to read
CHECKED_BYTES = 1_000_000  # of structured content; checking more would take seconds
DATA_BYTES = 8_000  # structured content up to this size is also returned as data, for callers that are programs


@dataclass(frozen=True, slots=True)
class ServerResult:
    """A result as a model reads it, and the structured content that came with it, if any."""

    result: ToolResult
    structured: Any = None


def convert_answer(answer: wire.CallToolResult) -> ServerResult:
    """Convert a server's answer; an error stays an error."""
    texts = [_describe_block(block) for block in answer.content]
    structured = _plain_json(answer.structured_content)
    if structured is not None and not _is_repeated(structured, texts):
        texts.append(f"[structured content]\n{to_json(structured).decode()}" if texts else to_json(structured).decode())
    marker = "\n[cut here: the server sent {total:,} characters, {limit:,} are kept]"
    text = show_with_note(truncate("\n".join(texts), RESULT_CHARS, marker))
    if answer.is_error:
        return ServerResult(ToolResult(text or "It failed, and said nothing more.", is_error=True))
    is_small = structured is not None and len(to_json(structured)) <= DATA_BYTES
    result = ToolResult(text or "[it returned nothing]", data=structured if is_small else None)
    return ServerResult(result, answer.structured_content)


def check_output_schema(schema: JsonObject | None, answer: ServerResult, tool: str) -> ToolResult:
    """Check structured content against the tool's `outputSchema`. Returns the result, or an error that shows it.

    Slow, so call it in a worker thread. Content that is too large to check is accepted, with a note.
    """
    result = answer.result
    if schema is None or result.is_error:
        return result
    if answer.structured is None:
        return _schema_broken_result(result, tool, "it has none")
    if len(to_json(answer.structured, inf_nan_mode="constants")) > CHECKED_BYTES:
        note = f"[over {CHECKED_BYTES:,} bytes of structured content: not held against the tool's outputSchema]"
        return replace(result, content=f"{result.content}\n{note}")
    if problems := compile_schema(schema).problems(answer.structured):
        return _schema_broken_result(result, tool, "; ".join(quote_server(problem) for problem in problems))
    return result


def _schema_broken_result(result: ToolResult, tool: str, problem: str) -> ToolResult:
    return ToolResult(
        f"{tool} was called, and may have done its work, but its structured content does not fit its own outputSchema: "
        f"{problem}. Don't rely on what it answered, and look before you call it again. It answered:\n{result.content}",
        is_error=True,
    )


def _describe_block(block: wire.ContentBlock) -> str:
    match block:
        case wire.TextContent(text=text):
            return text
        case wire.ImageContent(mime_type=kind, data=encoded):
            return f"[an image, {quote_server(kind, 40)}, {_format_size(encoded)} bytes; not shown]"
        case wire.AudioContent(mime_type=kind, data=encoded):
            return f"[a sound, {quote_server(kind, 40)}, {_format_size(encoded)} bytes; not shown]"
        case wire.ResourceLink(uri=uri, name=name):
            return f"[a link to the resource {quote_server(name, 80)}: {quote_server(str(uri), 300)}; not fetched]"
        case wire.EmbeddedResource(resource=resource):
            return _describe_resource(resource)


def _describe_resource(resource: wire.TextResourceContents | wire.BlobResourceContents) -> str:
    where = quote_server(str(resource.uri), 300)
    match resource:
        case wire.TextResourceContents(text=text):
            return f"[the resource {where}]\n{text}"
        case wire.BlobResourceContents(blob=encoded):
            return f"[the resource {where}, {_format_size(encoded)} bytes; not shown]"


def _format_size(encoded: str) -> str:
    return f"{len(encoded) * 3 // 4:,}"


def _plain_json(structured: Any) -> Any:
    """Return structured content as plain JSON: NaN becomes null."""
    return None if structured is None else json.loads(to_json(structured, inf_nan_mode="null"))


def _is_repeated(structured: Any, texts: list[str]) -> bool:
    """Return whether the text holds the structured content already, as the protocol asks of servers."""
    text = "\n".join(texts)
    if isinstance(structured, dict) and len(structured) == 1 and text in structured.values():
        return True
    try:
        return bool(json.loads(text) == structured)
    except (ValueError, RecursionError):
        return False
