"""The protocol's tool result as ours: text as it is, all else said in words, nothing without a bound."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

import mcp_types as wire
from pydantic_core import to_json

from kairos_mcp.core.json_schema import compile_schema
from kairos_mcp.core.messages import JsonObject, ToolResult
from kairos_mcp.core.outside import show_with_note
from kairos_mcp.core.text import truncate
from kairos_mcp.tools.mcp_servers.definition import plain

RESULT_CHARS = 1_000_000  # of one result; what a model is shown of it is cut far earlier, and the rest kept
CHECKED_BYTES = 1_000_000  # of structured content; to check more takes seconds
DATA_BYTES = 8_000  # a structured result that is small goes beside the text, for callers that are programs


@dataclass(frozen=True, slots=True)
class ServerResult:
    """The result with all that can be read in it, and the structured content that came with it, if any did."""

    result: ToolResult
    structured: Any = None


def answered(answer: wire.CallToolResult) -> ServerResult:
    """What a server answered as a result; an error stays one."""
    texts = [_said(block) for block in answer.content]
    structured = _plain_json(answer.structured_content)
    if structured is not None and not _repeats(structured, texts):
        texts.append(f"[structured content]\n{to_json(structured).decode()}" if texts else to_json(structured).decode())
    marker = "\n[cut here: the server sent {total:,} characters, {limit:,} are kept]"
    text = show_with_note(truncate("\n".join(texts), RESULT_CHARS, marker))
    if answer.is_error:
        return ServerResult(ToolResult(text or "It failed, and said nothing more.", is_error=True))
    small = structured is not None and len(to_json(structured)) <= DATA_BYTES
    result = ToolResult(text or "[it gave nothing back]", data=structured if small else None)
    return ServerResult(result, answer.structured_content)


def held_to(schema: JsonObject | None, told: ServerResult, tool: str) -> ToolResult:
    """The result, if its structured content is what the tool's `outputSchema` says; else an error that shows what came.

    It takes its time: for a worker thread. What is too large to be checked is let through, and says so.
    """
    result = told.result
    if schema is None or result.is_error:
        return result
    if told.structured is None:
        return _broken(result, tool, "it has none")
    if len(to_json(told.structured, inf_nan_mode="constants")) > CHECKED_BYTES:
        note = f"[over {CHECKED_BYTES:,} bytes of structured content: not held against the tool's outputSchema]"
        return replace(result, content=f"{result.content}\n{note}")
    if problems := compile_schema(schema).problems(told.structured):
        return _broken(result, tool, "; ".join(plain(problem) for problem in problems))
    return result


def _broken(result: ToolResult, tool: str, why: str) -> ToolResult:
    return ToolResult(
        f"{tool} was called, and may have done its work, but its structured content does not fit its own outputSchema: "
        f"{why}. Don't rely on what it answered, and look before you call it again. It answered:\n{result.content}",
        is_error=True,
    )


def _said(block: wire.ContentBlock) -> str:
    match block:
        case wire.TextContent(text=text):
            return text
        case wire.ImageContent(mime_type=kind, data=encoded):
            return f"[an image, {plain(kind, 40)}, {_bytes(encoded)} bytes; not shown]"
        case wire.AudioContent(mime_type=kind, data=encoded):
            return f"[a sound, {plain(kind, 40)}, {_bytes(encoded)} bytes; not shown]"
        case wire.ResourceLink(uri=uri, name=name):
            return f"[a link to the resource {plain(name, 80)}: {plain(str(uri), 300)}; not fetched]"
        case wire.EmbeddedResource(resource=resource):
            return _held(resource)


def _held(resource: wire.TextResourceContents | wire.BlobResourceContents) -> str:
    where = plain(str(resource.uri), 300)
    match resource:
        case wire.TextResourceContents(text=text):
            return f"[the resource {where}]\n{text}"
        case wire.BlobResourceContents(blob=encoded):
            return f"[the resource {where}, {_bytes(encoded)} bytes; not shown]"


def _bytes(encoded: str) -> str:
    return f"{len(encoded) * 3 // 4:,}"


def _plain_json(structured: Any) -> Any:
    """Structured content without what no JSON holds: NaN becomes null."""
    return None if structured is None else json.loads(to_json(structured, inf_nan_mode="null"))


def _repeats(structured: Any, texts: list[str]) -> bool:
    """Whether the text says the same already, as the protocol asks of servers."""
    text = "\n".join(texts)
    if isinstance(structured, dict) and len(structured) == 1 and text in structured.values():
        return True
    try:
        return bool(json.loads(text) == structured)
    except (ValueError, RecursionError):
        return False
