"""Say in the few words of JSON Schema that every provider takes what arguments a tool has."""

from __future__ import annotations

from typing import Any

from kairos_mcp.core.messages import JsonObject

MAX_DEPTH = 8  # deeper parts may be anything
MAX_PARTS = 2_000  # of a schema: one that refers to itself would have no end
_TYPES = ("string", "number", "integer", "boolean", "array", "object")


def plain_schema(schema: JsonObject) -> JsonObject:
    """Return a schema of an object that admits all that the given one does, as far as these words can say it."""
    plain = _Plain(schema).of(schema, 0)
    return {**plain, "type": "object", "properties": plain.get("properties", {})}


class _Plain:
    """Makes parts of one schema plain."""

    def __init__(self, schema: JsonObject) -> None:
        holders = ((name, schema.get(name)) for name in ("$defs", "definitions"))
        self._definitions = {
            f"#/{name}/{key}": part for name, held in holders if isinstance(held, dict) for key, part in held.items()
        }
        self._left = MAX_PARTS

    def of(self, schema: Any, depth: int) -> JsonObject:
        self._left -= 1
        if not isinstance(schema, dict) or depth > MAX_DEPTH or self._left < 0:
            return {}
        described = {"description": text} if isinstance(text := schema.get("description"), str) and text else {}
        chosen = self._choose(schema)
        if chosen is not None:
            return {**self.of(chosen, depth + 1), **described}
        kind = _kind(schema)
        if kind is None:
            return described
        plain: JsonObject = {"type": kind, **described}
        if kind == "string" and _are_texts(choices := schema.get("enum") or [schema.get("const")]):
            plain["enum"] = choices
        if kind == "array":
            plain["items"] = self.of(schema.get("items"), depth + 1) or {"type": "string"}
        if kind == "object" and isinstance(parts := schema.get("properties"), dict):
            plain["properties"] = {name: self.of(part, depth + 1) for name, part in parts.items()}
            required = [name for name in _list_or_empty(schema.get("required")) if name in parts]
            plain |= {"required": required} if required else {}
        return plain

    def _choose(self, schema: JsonObject) -> Any:
        """Return the schema that stands for this one: the one that it refers to, or the first of several."""
        if isinstance(where := schema.get("$ref"), str):
            return self._definitions.get(where, {})
        for name in ("anyOf", "oneOf", "allOf"):
            several = [part for part in _list_or_empty(schema.get(name)) if isinstance(part, dict)]
            choices = [part for part in several if part.get("type") != "null"]
            if choices and "properties" not in schema:
                return choices[0]
        return None


def _kind(schema: JsonObject) -> str | None:
    stated = schema.get("type")
    kinds = [each for each in (stated if isinstance(stated, list) else [stated]) if each in _TYPES]
    if kinds:
        return str(kinds[0])
    if "properties" in schema:
        return "object"
    return "string" if _are_texts(schema.get("enum") or [schema.get("const")]) else None


def _are_texts(values: Any) -> bool:
    return bool(_list_or_empty(values)) and all(isinstance(value, str) and value for value in values)


def _list_or_empty(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
