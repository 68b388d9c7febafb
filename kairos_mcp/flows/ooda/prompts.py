"""Every sentence that a phase says to a model, each from a file of its own, and how one is filled."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from string import Template

from kairos_mcp.flows.planner_input import check_template


def _prompt_field(*placeholders: str) -> str:
    """A text from `config/prompts/ooda-<field>.md` that may use these `$placeholders`."""
    text: str = field(metadata={"placeholders": placeholders})
    return text


@dataclass(frozen=True, slots=True)
class PhasePrompts:
    """The three thinking phases have a system prompt and a user prompt each; the others stand in between."""

    orient: str = _prompt_field()
    orient_user: str = _prompt_field("goal", "acceptance", "lessons", "acts", "observations")
    decide: str = _prompt_field()
    decide_user: str = _prompt_field(
        "goal", "acceptance", "allowed", "tools", "lessons", "acts", "orientation", "files"
    )
    reflect: str = _prompt_field()
    reflect_user: str = _prompt_field("goal", "act", "checks", "lessons")
    repair: str = _prompt_field("problems")  # the answer is not what was asked for
    cut_off: str = _prompt_field("tokens")  # it ended at its length limit
    loop: str = _prompt_field()  # reminder: the same effect again
    excerpt: str = _prompt_field("path", "lines", "sha256")  # the line above a file's lines
    left_out: str = _prompt_field("left", "whole", "ref")  # at the end of a text that was cut

    @classmethod
    def load(cls, read: Callable[[str], str]) -> PhasePrompts:
        """The prompts as `read(name)` gives them. Raises ConfigError for an unknown placeholder."""
        texts: dict[str, str] = {}
        for part in fields(cls):
            name = f"ooda-{part.name.replace('_', '-')}"
            texts[part.name] = read(name).strip()
            check_template(name, texts[part.name], part.metadata["placeholders"])
        return cls(**texts)


def render_sections(template: str, **values: str) -> str:
    """A user prompt filled. A section (from one `## ` heading to the next) whose placeholders are all empty is left
    out; what is filled in is not taken apart."""
    parts = [Template(part) for part in re.split(r"(?m)^(?=## )", template)]
    kept = [part for part in parts if not (names := part.get_identifiers()) or any(values[name] for name in names)]
    return "\n\n".join(text for part in kept if (text := part.substitute(values).strip()))


def format_list(lines: tuple[str, ...]) -> str:
    """Texts as a list; line breaks inside one are kept."""
    return "\n".join(f"- {line}" for line in lines)
