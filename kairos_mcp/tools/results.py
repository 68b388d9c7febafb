"""Shortens results that are too long for a conversation to head and tail; read_result reads them back in full."""

from __future__ import annotations

import time
from dataclasses import replace
from hashlib import sha256
from typing import Any

from kairos_mcp.core.builtin_tools import BUILTIN
from kairos_mcp.core.errors import BadArguments, NotFound
from kairos_mcp.core.hidden_text import show_with_note, shows_all, spell_hidden
from kairos_mcp.core.messages import JsonObject, ToolResult, ToolSpec
from kairos_mcp.core.paths import shorten_path
from kairos_mcp.core.patterns import compile_line_pattern
from kairos_mcp.core.tool import Tool, ToolContext
from kairos_mcp.tools.files.listings import stop_time
from kairos_mcp.tools.files.matching import find_hits, preview_hit

HEAD_SHARE = 0.7  # of what is shown: most texts say what they are at the top, and need less to say how they end
LINE_SLACK = 200  # a cut moves to a line's end if that is at most this far
SERVER_FAILURE_CODES = frozenset(("timeout", "unreachable", "tool_not_offered"))
FOREIGN_SOURCES = ("mcp:", "http#")
MIN_SHOWN_CHARS = 400  # below this the line that says what was left out would be most of the text


def shorten(result: ToolResult, shown_chars: int, ref: str) -> tuple[ToolResult, str | None]:
    """Return the result as it is shown, and its whole text if that must be kept in the store under `ref`, else None.

    What is shown has at most `shown_chars` characters (but at least 400), including the note on what is left out.
    Invisible characters, and what imitates a role in the conversation, are spelled out. Secrets are redacted before
    (`call_redacted` in tool.py).
    """
    text, data = show_with_note(result.content), result.data
    if data is not None and not shows_all(data):
        data = _spell_out_json(data)
    if text is not result.content or data is not result.data:
        result = replace(result, content=text, data=data)
    allowed = max(shown_chars, MIN_SHOWN_CHARS)
    if len(text) <= allowed:
        return result, None
    head, tail = _take_ends(text, allowed - len(_omission_note(len(text), len(text), ref)))
    shown = head + _omission_note(len(text) - len(head) - len(tail), len(text), ref) + tail
    return replace(result, content=shown, kept=sha256(text.encode()).hexdigest(), chars=len(text)), text


def server_failures(tool: ToolSpec | None, result: ToolResult) -> tuple[str, ...]:
    """Return a note for a run's result if a foreign server did not answer a call properly: it died, hung, flooded,
    can't be reached, or defines the tool otherwise now. Equal failures give equal notes, which are stored once."""
    if tool is None or result.code not in SERVER_FAILURE_CODES or not tool.source.startswith(FOREIGN_SOURCES):
        return ()
    message = result.data.get("message") if isinstance(result.data, dict) else None
    return (f"{tool.name}: {message if isinstance(message, str) else result.code}",)


def _spell_out_json(value: Any) -> Any:
    """Spell out hidden characters in the texts of a JSON value; return the very same value if nothing changes."""
    match value:
        case str():
            return spell_hidden(value)
        case dict():
            data = {spell_hidden(name): _spell_out_json(item) for name, item in value.items()}
            return value if data == value else data
        case list() | tuple():
            items = [_spell_out_json(item) for item in value]
            return value if items == value else items
        case _:
            return value


def _omission_note(omitted: int, total: int, ref: str) -> str:
    return f'\n[{omitted:,} of {total:,} characters left out here; read_result(ref="{ref}") has the whole]\n'


def _take_ends(text: str, room: int) -> tuple[str, str]:
    """Return the beginning and the end of a text for which there is room, cut between lines if that costs little."""
    head_chars = int(room * HEAD_SHARE)
    head, tail = text[:head_chars], text[len(text) - (room - head_chars) :]
    end, start = head.rfind("\n"), tail.find("\n")
    if end >= len(head) - LINE_SLACK and end > 0:
        head = head[:end]
    if 0 <= start < min(LINE_SLACK, len(tail) - 1):
        tail = tail[start + 1 :]
    return head, tail


PAGE_CHARS = 8_000
MAX_HITS = 50
REF_CHARS = 512

RESULT_SPEC = BUILTIN["read_result"].spec(
    "Read one page of an earlier result that was cut, by its ref.\n"
    "With grep (RE2), returns the matching lines from offset on, and the offset of each.",
    {
        "type": "object",
        "properties": {
            "ref": {
                "type": "string",
                "maxLength": REF_CHARS,
                "description": "As the cut result names it",
            },
            "offset": {"type": "integer", "minimum": 0, "description": "In characters; default 0"},
            "grep": {"type": "string"},
        },
        "required": ["ref"],
        "additionalProperties": False,
    },
    category="record",
)


def read_result_tool(page_chars: int = PAGE_CHARS) -> Tool:
    """Make read_result. `page_chars` is how much of a text one call returns: less than what is shown unshortened."""

    def read_result(arguments: JsonObject, ctx: ToolContext) -> ToolResult:
        ref: str = arguments["ref"]
        text = ctx.read_kept(ref)
        if text is None:
            raise NotFound(f"Nothing is kept under {shorten_path(ref)!r}.", "A shortened result names its ref.")
        offset: int = arguments.get("offset", 0)
        if offset > len(text):
            raise BadArguments(f"offset {offset} is past the end: {len(text)} characters.", "Start at 0.")
        if "grep" in arguments:
            return _search_text(ref, text, offset, arguments["grep"], stop_time(ctx))
        return _read_page(ref, text, offset, page_chars)

    return Tool(RESULT_SPEC, read_result, examples=({"ref": "round-2/call-1", "grep": "(?i)error"},))


def _read_page(ref: str, text: str, offset: int, page_chars: int) -> ToolResult:
    end = min(offset + page_chars, len(text))
    data: JsonObject = {"ref": ref, "chars": len(text), "offset": offset, "next_offset": None}
    note = f"characters {offset:,} to {end:,} of {len(text):,}"
    if end < len(text):
        data["next_offset"] = end
        note += f"; go on with offset={end}"
    return ToolResult(f"{text[offset:end]}\n[{note}]", data=data)


def _search_text(ref: str, text: str, offset: int, pattern: str, deadline: float) -> ToolResult:
    compiled = compile_line_pattern(pattern)
    begin = text.rfind("\n", 0, offset) + 1
    content = text.encode("utf-8", "replace")
    lines: list[str] = []
    position = 0
    chars, next_offset = 0, None
    late = False

    def is_over() -> bool:
        nonlocal late
        late = time.monotonic() >= deadline
        return late

    for hit in find_hits(content, compiled, is_over, len(text[:begin].encode("utf-8", "replace"))):
        chars += len(content[position : hit.start].decode("utf-8", "replace"))
        position = hit.start
        if len(lines) == MAX_HITS:
            next_offset = chars
            break
        lines.append(f"{hit.number} (offset {chars}): {preview_hit(content, hit)}")
    notes = [f"more lines match; go on with offset={next_offset}"] if next_offset is not None else []
    notes += ["partial: the time ran out"] if late else []
    data: JsonObject = {"ref": ref, "chars": len(text), "matches": len(lines), "next_offset": next_offset}
    body = "\n".join(lines) or f"No line of the {len(text):,} characters matches."
    return ToolResult(body + "".join(f"\n[{note}]" for note in notes), data=data | {"partial": late})
