"""Writes an HTTP tool as a table of the settings file, ready to be pasted into it."""

from __future__ import annotations

import json
from typing import Any

from kairos_mcp.core.messages import JsonObject
from kairos_mcp.settings.http_definition import READ_METHODS, HttpDefinition
from kairos_mcp.settings.toml_text import toml_text


def format_http_tool(definition: HttpDefinition) -> str:
    """Write the table `[[http_tools]]` of kairos.toml that defines exactly this tool. What its method suggests stands
    there as a comment, for a person to confirm."""
    lines = ["[[http_tools]]"]
    for name, value in definition.as_json().items():
        if name == "parameters":
            lines += ["parameters = [", *(f"  {_format_parameter(parameter)}," for parameter in value), "]"]
        else:
            lines.append(f"{name} = {toml_text(value)}")
        if name == "effect" and value != "read" and definition.method in READ_METHODS:
            lines.append(
                f'# effect = "read"  # a {definition.method} suggests it: confirm it in place of the line above'
            )
    return "\n".join(lines) + "\n"


def _format_parameter(parameter: JsonObject) -> str:
    if _has_null(parameter["schema"]):  # which TOML lacks
        parameter = parameter | {"schema": json.dumps(parameter["schema"], ensure_ascii=False)}
    return toml_text(parameter)


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
