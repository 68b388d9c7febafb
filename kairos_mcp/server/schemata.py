"""From a model of arguments to a JSON Schema: flat and whole for us, short for what clients are sent."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

from kairos_mcp.core.messages import JsonObject

if TYPE_CHECKING:
    from kairos_mcp.server.arguments.base import Arguments

LISTED = frozenset({"type", "enum", "description", "properties", "required", "items"})
"""What a model needs to make a call. Bounds and patterns cost room in every session; a refusal names them."""


@cache
def flat_schema(model: type[Arguments]) -> JsonObject:
    """The model's schema without $defs, and without null for what may be absent."""
    whole = model.model_json_schema()
    definitions = whole.pop("$defs", {})
    return _flat(whole, definitions)


def listed_schema(model: type[Arguments]) -> JsonObject:
    """The schema as listed. The elements of an array are told in its description."""
    return _short(flat_schema(model)) | {"additionalProperties": False}


def _flat(node: JsonObject, definitions: JsonObject) -> JsonObject:
    if "$ref" in node:
        return _flat(_instead(node, "$ref", definitions[node["$ref"].rpartition("/")[2]]), definitions)
    if "anyOf" in node:
        options = [option for option in node["anyOf"] if option != {"type": "null"}]
        first = options[0]  # of several types the others stand in the description: hosts want one, and only one
        return _flat(_instead(node, "anyOf", first), definitions)
    return _deep(node, lambda inner: _flat(inner, definitions))


def _instead(node: JsonObject, key: str, meant: JsonObject) -> JsonObject:
    return {**meant, **{name: value for name, value in node.items() if name != key}}


def _short(node: JsonObject) -> JsonObject:
    kept = {key: value for key, value in node.items() if key in LISTED}
    if kept.get("items", {}).get("type") == "object":
        kept["items"] = {"type": "object"}
    return _deep(kept, _short)


def _deep(node: JsonObject, change: Callable[[JsonObject], JsonObject]) -> JsonObject:
    """The node with `change` done to each schema right below it."""
    changed: dict[str, Any] = dict(node)
    if "properties" in node:
        changed["properties"] = {name: change(inner) for name, inner in node["properties"].items()}
    if "items" in node:
        changed["items"] = change(node["items"])
    return changed
