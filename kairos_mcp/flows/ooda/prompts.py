"""Every sentence that a phase says to a model, each from a file of its own, and how it is filled.

What is filled in is cut to what a prompt has room for, field by field: it stays valid JSON, and says what is missing.
"""

from __future__ import annotations

import json
from typing import Any

from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.flows.planner_input import render_prompt
from kairos_mcp.flows.prompt_texts import PromptTexts, prompt_field


@dataclass(frozen=True, slots=True)
class PhasePrompts(PromptTexts):
    """The prompts of all phases: a system and a user prompt for orient, decide and reflect, and the texts between."""

    prefix = "ooda"

    orient: str = prompt_field()
    orient_user: str = prompt_field("goal", "acceptance", "lessons", "acts", "observations")
    decide: str = prompt_field()
    decide_user: str = prompt_field("goal", "acceptance", "allowed", "tools", "lessons", "acts", "orientation", "files")
    reflect: str = prompt_field()
    reflect_user: str = prompt_field("goal", "act", "checks", "lessons")
    repair: str = prompt_field("problems")  # the answer is not what was asked for
    cut_off: str = prompt_field("tokens")  # it ended at its length limit
    loop: str = prompt_field()  # reminder: the same effect again
    excerpt: str = prompt_field("path", "lines", "sha256")  # the line above a file's lines
    left_out: str = prompt_field("left", "whole", "ref")  # at the end of a text that was cut
    left_out_read: str = prompt_field("left", "whole", "ref")  # the same for decide, which can read the whole


def format_list(lines: tuple[str, ...]) -> str:
    """Format texts as a list; line breaks inside a text are kept."""
    return "\n".join(f"- {line}" for line in lines)


MAX_RESULT_CHARS = 2_000  # of a result that was observed
MAX_REASON_CHARS = 1_000  # of an error; of an orientation's summary, and of its priorities together
MAX_ACT_CHARS = 1_500  # of each text in the record of an act

_LINE_ENDS = {ord(end): f"\\u{ord(end):04x}" for end in "\x85\u2028\u2029"}
"""Characters that JSON allows inside a text, and that a reader may take for the end of a line."""


def truncate_text(text: str, limit: int, marker: str, ref: str, original_length: int | None = None) -> str:
    """Cut the text to `limit` characters, and append `marker`, which says how many are missing and how to get them.

    `original_length`: its length before it was shortened elsewhere.
    """
    length = original_length if original_length is not None else len(text)
    if len(text) <= limit:
        return text
    return f"{text[:limit]}\n{render_prompt(marker, left=length - limit, whole=length, ref=ref)}"


def truncate_fields(value: Any, limit: int, marker: str, ref: str) -> Any:
    """Return the JSON value with each text in it cut to `limit` characters."""
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
    """Format JSON as a model reads it best: one key per line, and no escapes that are not needed."""
    return json.dumps(value, ensure_ascii=False, indent=1).translate(_LINE_ENDS)
