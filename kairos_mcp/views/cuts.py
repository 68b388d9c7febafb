"""How a field of a result is cut where the whole is too long: each of these functions makes a value shorter.

They take the value, the characters of JSON that are left for it, and the result that it is of.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic_core import to_json

from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.text import on_one_line, truncate
from kairos_mcp.specs.kinds import kind_of

PREVIEW_CHARS = 80
NOTE_CHARS = 120  # a note, the one that names a cut included
MAX_NOTES = 5


def size(value: Any) -> int:
    """The length of the value as compact JSON, in characters, as in a result's text."""
    return len(on_one_line(to_json(value).decode()))


def cut_texts(name: str) -> Callable[[list[JsonObject], int, JsonObject], list[JsonObject]]:
    """Return a cut that shortens the text with this name in each item."""
    return lambda items, _room, _result: [item | {name: truncate(item[name], PREVIEW_CHARS, "...")} for item in items]


def leave_out(_value: Any, _room: int, _result: JsonObject) -> list[JsonObject]:
    return []


def cut_output(output: Any, room: int, result: JsonObject) -> Any:
    """Replace a long output by its ref; of a tool's content keep head and tail. Other JSON would not stay valid."""
    length = size(output)
    if length <= room:
        return output
    match output:
        case {"content": str() as content, "is_error": bool()}:
            data = output.get("data") if size(output.get("data")) <= room // 2 else None
            return {**output, "content": _ends(content, room // 2), "data": data}
        case {"answer": str(), "tasks": [*tasks]} if (
            kind_of(result["flow"]).tells_tasks and size(tasks) <= room - NOTE_CHARS
        ):
            return {"ref": "output", "chars": length, "tasks": tasks}  # the answer is the summary
        case {"mandate_status": _}:
            brief = ("mandate_id", "mandate_status", "reason")
            return {name: output[name] for name in brief if name in output} | {"ref": "output", "chars": length}
        case _:
            return {"ref": "output", "chars": length}


def cut_text(text: str | None, room: int, _result: JsonObject) -> str | None:
    """Keep head and tail of a text."""
    return text if text is None or size(text) <= room else _ends(text, room)


def cut_notes(notes: list[str], _room: int, _result: JsonObject) -> list[str]:
    return [note if size(note) <= NOTE_CHARS else _head(note, NOTE_CHARS) for note in notes[-MAX_NOTES:]]


def _head(text: str, room: int) -> str:
    """The beginning of a text in about `room` characters of JSON."""
    return text[: max(10, len(text) * room // size(text) - 20)] + "..."


def _ends(text: str, room: int) -> str:
    """Head and tail of a text in `room` characters of JSON; between them, how much is left out."""
    kept = len(text)
    while True:
        head, tail = text[: kept * 2 // 3], text[len(text) - kept // 3 :]
        short = f"{head}\n[{len(text) - len(head) - len(tail)} characters left out]\n{tail}"
        if size(short) <= room or kept < 20:
            return short
        kept = kept * room // size(short) - 20  # again: the part that is left may have more escapes
