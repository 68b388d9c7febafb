"""Texts that were too long for a conversation, read back in pages or by pattern: read_result."""

from __future__ import annotations

import time

from kairos_mcp.core.errors import BadArguments, NotFound
from kairos_mcp.core.messages import JsonObject, ToolResult, ToolSpec
from kairos_mcp.core.paths import said
from kairos_mcp.core.patterns import line_pattern
from kairos_mcp.tools.around import ToolContext
from kairos_mcp.tools.files.listings import stop_at
from kairos_mcp.tools.files.matching import hits, preview
from kairos_mcp.tools.tool import Tool

PAGE_CHARS = 8_000
HITS = 50
REF_CHARS = 512

RESULT_SPEC = ToolSpec(
    "read_result",
    "Read one page of an earlier result that was too long to show in full, by its ref.\n"
    "With grep (RE2), returns the matching lines from offset on, and the offset of each.",
    {
        "type": "object",
        "properties": {
            "ref": {
                "type": "string",
                "maxLength": REF_CHARS,
                "description": "The ref that the shortened result names",
            },
            "offset": {"type": "integer", "minimum": 0, "description": "Character to start at; default 0"},
            "grep": {"type": "string", "description": "Regular expression (RE2), matched line by line"},
        },
        "required": ["ref"],
        "additionalProperties": False,
    },
    effect="read",
    category="record",
)


def kept_tool(page_chars: int = PAGE_CHARS) -> Tool:
    """`page_chars`: how much of a text one call gives; less than what is shown without shortening."""

    def read_result(arguments: JsonObject, around: ToolContext) -> ToolResult:
        ref: str = arguments["ref"]
        text = around.kept(ref)
        if text is None:
            raise NotFound(f"Nothing is kept under {said(ref)!r}.", "A shortened result names its ref.")
        offset: int = arguments.get("offset", 0)
        if offset > len(text):
            raise BadArguments(f"offset {offset} is past the end: {len(text)} characters.", "Start at 0.")
        if "grep" in arguments:
            return _found(ref, text, offset, arguments["grep"], stop_at(around))
        return _page(ref, text, offset, page_chars)

    return Tool(RESULT_SPEC, read_result, examples=({"ref": "round-2/call-1", "grep": "(?i)error"},))


def _page(ref: str, text: str, offset: int, page_chars: int) -> ToolResult:
    end = min(offset + page_chars, len(text))
    told: JsonObject = {"ref": ref, "chars": len(text), "offset": offset, "next_offset": None}
    note = f"characters {offset:,} to {end:,} of {len(text):,}"
    if end < len(text):
        told["next_offset"] = end
        note += f"; go on with offset={end}"
    return ToolResult(f"{text[offset:end]}\n[{note}]", data=told)


def _found(ref: str, text: str, offset: int, pattern: str, until: float) -> ToolResult:
    compiled = line_pattern(pattern)
    begin = text.rfind("\n", 0, offset) + 1
    content = text.encode("utf-8", "replace")
    lines: list[str] = []
    at = 0
    chars, following = 0, None
    late = False

    def over() -> bool:
        nonlocal late
        late = time.monotonic() >= until
        return late

    for hit in hits(content, compiled, over, len(text[:begin].encode("utf-8", "replace"))):
        chars += len(content[at : hit.start].decode("utf-8", "replace"))
        at = hit.start
        if len(lines) == HITS:
            following = chars
            break
        lines.append(f"{hit.number} (offset {chars}): {preview(content, hit)}")
    notes = [f"more lines match; go on with offset={following}"] if following is not None else []
    notes += ["partial: the time ran out"] if late else []
    told: JsonObject = {"ref": ref, "chars": len(text), "matches": len(lines), "next_offset": following}
    body = "\n".join(lines) or f"No line of the {len(text):,} characters matches."
    return ToolResult(body + "".join(f"\n[{note}]" for note in notes), data=told | {"partial": late})
