"""Sentences that a flow says to a model: a field each, read from a prompt file of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field, fields
from string import Template
from typing import ClassVar, Self

from kairos_mcp.core.errors import ConfigError
from kairos_mcp.core.quick_dataclass import dataclass


def prompt_field(*placeholders: str) -> str:
    """Declare a text from the prompt file of the field's name that may use these `$placeholders`."""
    text: str = field(metadata={"placeholders": placeholders})
    return text


@dataclass(frozen=True, slots=True)
class PromptTexts:
    """What a class of such sentences inherits. The `FlowSpecs` of a flow names the classes that its specs hold.

    `prefix`: what the files of all its fields begin with; in their names a dash stands for each underscore.
    """

    prefix: ClassVar[str] = ""

    @classmethod
    def files(cls) -> dict[str, str]:
        """Return the name of each field's prompt file, by field."""
        return {each.name: f"{cls.prefix}-{each.name}".replace("_", "-") for each in fields(cls)}

    @classmethod
    def load(cls, read: Callable[[str], str]) -> Self:
        """Read each text with `read(file)`. Raises ConfigError for an unknown placeholder."""
        texts, files = dict[str, str](), cls.files()
        for each in fields(cls):
            texts[each.name] = read(files[each.name]).strip()
            check_template(files[each.name], texts[each.name], each.metadata["placeholders"])
        return cls(**texts)


def check_template(name: str, text: str, placeholders: Sequence[str]) -> None:
    """Raise ConfigError where a prompt file has a `$` that starts none of its placeholders."""
    template = Template(text)
    unknown = sorted(set(template.get_identifiers()) - set(placeholders))
    if unknown or not template.is_valid():
        found = ", ".join(f"${part}" for part in unknown) or "a single $"
        known = ", ".join(f"${part}" for part in placeholders) or "no placeholder"
        raise ConfigError(f"prompts/{name}.md has {found}.", f"It knows {known}; a plain $ is written $$.")
