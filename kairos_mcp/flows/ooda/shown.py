"""What was observed, cut to what a prompt has room for: field by field, still valid JSON, and saying what is missing.

A cut is made on characters and marked; what was cut is never read as JSON again.
"""

from __future__ import annotations

import json
from typing import Any

from kairos_mcp.core.messages import JsonObject
from kairos_mcp.flows.planner_input import render_prompt

RESULT_CHARS = 2_000  # of a result that was observed
REASON_CHARS = 1_000  # of an error; of an orientation's summary, and of its priorities together
ACT_CHARS = 1_500  # of each text in the record of an act


_ENDS = {ord(end): f"\\u{ord(end):04x}" for end in "\x85\u2028\u2029"}
"""What JSON lets stand in a text and a reader may take for the end of a line."""


def truncate_text(text: str, limit: int, marker: str, ref: str, original_length: int | None = None) -> str:
    """Cut the text to `limit` characters; a marker then says how many are missing, and how to get them.

    `original_length`: how long it was before somebody else shortened it.
    """
    length = original_length if original_length is not None else len(text)
    if len(text) <= limit:
        return text
    return f"{text[:limit]}\n{render_prompt(marker, left=length - limit, whole=length, ref=ref)}"


def truncate_fields(value: Any, limit: int, marker: str, ref: str) -> Any:
    """The same JSON with each longer text in it cut."""
    match value:
        case str():
            return truncate_text(value, limit, marker, ref)
        case dict():
            return {name: truncate_fields(inner, limit, marker, ref) for name, inner in value.items()}
        case list():
            return [truncate_fields(inner, limit, marker, ref) for inner in value]
        case _:
            return value


def format_json(value: JsonObject | list[Any]) -> str:
    """JSON as a model reads it best: one key a line, no escapes that are not needed."""
    return json.dumps(value, ensure_ascii=False, indent=1).translate(_ENDS)
