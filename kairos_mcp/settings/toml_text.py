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
            keys = [name if _BARE_KEY.fullmatch(name) else toml_text(name) for name in value]
            pairs = [f"{key} = {toml_text(inner)}" for key, inner in zip(keys, value.values(), strict=True)]
            return f"{{ {', '.join(pairs)} }}" if pairs else "{}"
        case list() | tuple():
            return f"[{', '.join(map(toml_text, value))}]"
        case _:  # its escapes are those of JSON, and DEL, which JSON leaves as it is
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
