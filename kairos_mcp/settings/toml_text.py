"""Writes values as TOML, each in one line, for lines of the settings file."""

from __future__ import annotations

import json
import re
from typing import Any

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def toml_text(value: Any) -> str:
    """Return a text, a number, a list or a table of these as TOML."""
    match value:
        case bool():
            return str(value).lower()
        case int() | float():
            return f"{value:_}".removesuffix(".0")
        case dict():
            pairs = [f"{_key_text(name)} = {toml_text(inner)}" for name, inner in value.items()]
            return f"{{ {', '.join(pairs)} }}" if pairs else "{}"
        case list() | tuple():
            return f"[{', '.join(map(toml_text, value))}]"
        case _:  # its escapes are those of JSON, and DEL, which JSON leaves as it is
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _key_text(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else toml_text(name)
