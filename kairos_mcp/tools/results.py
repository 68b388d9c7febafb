"""How a tool's result fits into a conversation: safe to store, and shown head and tail when it is long."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from typing import Any

from kairos_mcp.core.messages import ToolResult, ToolSpec
from kairos_mcp.core.outside import seen, spelled

HEAD = 0.7  # most texts say what they are at the top, and how they ended in fewer words
LINE_SLACK = 200  # a cut moves to a line's end if that is at most this far
ABSENT = frozenset(("timeout", "unreachable", "tool_not_offered"))
ELSEWHERE = ("mcp:", "http#")
LEAST_SHOWN = 400  # below this the line that says what was left out would be most of the text


def shorten(result: ToolResult, shown_chars: int, ref: str) -> tuple[ToolResult, str | None]:
    """The result as it is shown, and its whole text when that must be kept in the store under `ref`.

    What is shown has at most `shown_chars` characters (400 at least), its own note included. What can't be seen, or
    imitates a role, is spelled out; secrets have been taken out before (masked.py).
    """
    text, data = seen(result.content), _spelled(result.data)
    if text is not result.content or data is not result.data:
        result = replace(result, content=text, data=data)
    allowed = max(shown_chars, LEAST_SHOWN)
    if len(text) <= allowed:
        return result, None
    room = allowed - len(_note(len(text), len(text), ref))
    head = _to_line_end(text[: int(room * HEAD)])
    tail = _from_line_start(text[len(text) - (room - int(room * HEAD)) :])
    shown = head + _note(len(text) - len(head) - len(tail), len(text), ref) + tail
    kept = sha256(text.encode()).hexdigest()
    return replace(result, content=shown, kept=kept, chars=len(text)), text


def absences(tool: ToolSpec | None, result: ToolResult) -> tuple[str, ...]:
    """What a run's result says of a call that somebody else's server did not answer as it should: it died, hung,
    flooded, can't be reached, or defines the tool otherwise now. The same trouble is one note, however often."""
    if tool is None or result.code not in ABSENT or not tool.source.startswith(ELSEWHERE):
        return ()
    message = result.data.get("message") if isinstance(result.data, dict) else None
    return (f"{tool.name}: {message if isinstance(message, str) else result.code}",)


def _spelled(value: Any) -> Any:
    """A JSON value as its texts may be read; the very value where nothing has to change."""
    match value:
        case str():
            return spelled(value)
        case dict():
            told = {spelled(name): _spelled(item) for name, item in value.items()}
            return value if told == value else told
        case list() | tuple():
            items = [_spelled(item) for item in value]
            return value if items == value else items
        case _:
            return value


def _note(left_out: int, whole: int, ref: str) -> str:
    return f'\n[{left_out:,} of {whole:,} characters left out here; read_result(ref="{ref}") has the whole]\n'


def _to_line_end(head: str) -> str:
    end = head.rfind("\n")
    return head[:end] if end >= len(head) - LINE_SLACK and end > 0 else head


def _from_line_start(tail: str) -> str:
    start = tail.find("\n")
    return tail[start + 1 :] if 0 <= start < min(LINE_SLACK, len(tail) - 1) else tail
