"""The protocol's tool result as ours: text as it is, all else said in words, nothing without a bound."""

from __future__ import annotations

import json
from typing import Any

import mcp_types as wire
from pydantic_core import to_json

from kairos_mcp.messages import ToolResult
from kairos_mcp.tools.downstream.definition import plain
from kairos_mcp.tools.outside import seen

RESULT_CHARS = 1_000_000  # of one result; what a model is shown of it is cut far earlier, and the rest kept
DATA_BYTES = 8_000  # a structured result that is small goes beside the text, for callers that are programs


def result_of(answer: wire.CallToolResult) -> ToolResult:
    """The result with all that can be read in it; an error stays one."""
    texts = [_said(block) for block in answer.content]
    structured = _plain_json(answer.structured_content)
    if structured is not None and not _repeats(structured, texts):
        texts.append(f"[structured content]\n{to_json(structured).decode()}" if texts else to_json(structured).decode())
    text = "\n".join(texts)
    if len(text) > RESULT_CHARS:
        text = f"{text[:RESULT_CHARS]}\n[cut here: the server sent {len(text):,} characters, {RESULT_CHARS:,} are kept]"
    text = seen(text)
    if answer.is_error:
        return ToolResult(text or "It failed, and said nothing more.", is_error=True)
    small = structured is not None and len(to_json(structured)) <= DATA_BYTES
    return ToolResult(text or "[it gave nothing back]", data=structured if small else None)


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
