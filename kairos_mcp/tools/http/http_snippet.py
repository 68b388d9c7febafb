"""An HTTP tool in the words of the file of settings, ready to be pasted into it."""

from __future__ import annotations

import json
import re
from typing import Any

from kairos_mcp.core.messages import JsonObject
from kairos_mcp.settings.http_tool import HttpDefinition

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def snippet(definition: HttpDefinition) -> str:
    """A table `[[http_tools]]` of kairos.toml that defines just this tool."""
    lines = ["[[http_tools]]"]
    for name, value in definition.as_json().items():
        if name == "parameters":
            lines += ["parameters = [", *(f"  {_parameter(each)}," for each in value), "]"]
        else:
            lines.append(f"{name} = {_toml(value)}")
    return "\n".join(lines) + "\n"


def _parameter(each: JsonObject) -> str:
    if _has_null(each["schema"]):  # which TOML lacks
        each = each | {"schema": json.dumps(each["schema"], ensure_ascii=False)}
    return _toml(each)


def _toml(value: Any) -> str:
    match value:
        case dict():
            pairs = [
                f"{name if _BARE.fullmatch(name) else _text(name)} = {_toml(item)}" for name, item in value.items()
            ]
            return f"{{ {', '.join(pairs)} }}" if pairs else "{}"
        case list():
            return f"[{', '.join(map(_toml, value))}]"
        case str():
            return _text(value)
        case _:
            return json.dumps(value)


def _text(value: str) -> str:
    """A basic string: TOML's escapes are those of JSON, but for DEL, which JSON leaves as it is."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _has_null(value: Any) -> bool:
    match value:
        case None:
            return True
        case dict():
            return any(map(_has_null, value.values()))
        case list():
            return any(map(_has_null, value))
        case _:
            return False
