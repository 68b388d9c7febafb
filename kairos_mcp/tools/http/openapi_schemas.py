"""Schemas of an OpenAPI document as JSON Schema that stands alone.

Refs are followed within the document, words of 3.0 turned into those of JSON Schema, and what is only read is left out.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

from kairos_mcp.core.errors import ConfigError, SchemaRejected
from kairos_mcp.core.json_schema_rules import compile_safe_pattern
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.text import truncate

PARTS = 2_000  # of one operation, as a schema may have (schemas/safe.py)
DEPTH = 24
REF_STEPS = 16
SAID_CHARS = 80
_COPIED = (
    *("type", "format", "title", "description", "default", "enum", "const", "required"),
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    *("minLength", "maxLength", "minItems", "maxItems", "uniqueItems", "minProperties", "maxProperties"),
)
_ONE = ("items", "additionalProperties", "not")
_MANY = ("allOf", "anyOf", "oneOf")


class SchemaInliner:
    """A document as one operation sees it. Counts what is unfolded, since refs can make little stand for much."""

    def __init__(self, document: JsonObject, operation: str) -> None:
        self._document = document
        self._operation = operation
        self._parts = 0

    def at(self, value: object) -> JsonObject:
        """The object itself, or what it refers to. Raises ConfigError for a ref to elsewhere or to nothing."""
        for _ in range(REF_STEPS):
            match value:
                case {"$ref": str(ref)}:
                    value = self._referred(ref)
                case dict():
                    return value
                case _:
                    return {}
        raise refuse(self._operation, "a $ref leads to itself", "Repair the document.")

    def schema(self, value: object, above: tuple[str, ...] = ()) -> JsonObject:
        """The schema, unfolded. One that holds itself is spelled out once; below that anything is taken, and said."""
        self._parts += 1
        if self._parts > PARTS or len(above) > DEPTH:
            raise refuse(self._operation, "its schemas are too large", "Write the tool by hand, with what is needed.")
        if value is True:
            return {}
        if not isinstance(value, dict):
            return {"not": {}} if value is False else {}
        ref = value.get("$ref")
        if isinstance(ref, str):
            if ref in above:
                return {"description": f"{said(ref.rpartition('/')[2])} again, not spelled out; anything is taken."}
            return self.schema(self._referred(ref), (*above, ref))
        return self._members(value, (*above, ""))

    def _members(self, value: JsonObject, above: tuple[str, ...]) -> JsonObject:
        schema: JsonObject = {name: value[name] for name in _COPIED if name in value}
        schema |= {name: self._inner(value[name], above) for name in _ONE if name in value}
        schema |= {
            name: [self.schema(each, above) for each in value[name]]
            for name in _MANY
            if isinstance(value.get(name), list)
        }
        if isinstance(properties := value.get("properties"), dict):
            own = {name: each for name, each in properties.items() if self.at(each).get("readOnly") is not True}
            schema["properties"] = {name: self.schema(each, above) for name, each in own.items()}
            if isinstance(required := schema.get("required"), list):
                schema["required"] = [name for name in required if name in own or name not in properties]
        _state_pattern(schema, value.get("pattern"))
        return _modernize(schema, nullable=value.get("nullable") is True)

    def _inner(self, value: object, above: tuple[str, ...]) -> Any:
        return value if isinstance(value, bool) else self.schema(value, above)

    def _referred(self, ref: str) -> Any:
        if not ref.startswith("#/"):
            raise refuse(self._operation, f"{said(ref)} lies outside the document", "Put everything into one document.")
        found: Any = self._document
        for part in ref[2:].split("/"):
            name = unquote(part).replace("~1", "/").replace("~0", "~")
            if not isinstance(found, dict) or name not in found:
                raise refuse(self._operation, f"nothing stands at {said(ref)}", "Repair the document.")
            found = found[name]
        return found


def _state_pattern(schema: JsonObject, pattern: object) -> None:
    """A pattern that RE2 can't apply is told instead of checked."""
    if not isinstance(pattern, str):
        return
    try:
        compile_safe_pattern(pattern)
    except SchemaRejected:
        schema["description"] = f"{schema.get('description', '')} Pattern: {pattern[:SAID_CHARS]}".strip()
    else:
        schema["pattern"] = pattern


def _modernize(schema: JsonObject, *, nullable: bool) -> JsonObject:
    """OpenAPI 3.0 said `nullable` and a boolean `exclusiveMinimum`."""
    for bound, limit in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if isinstance(schema.get(bound), bool):
            exclusive = schema.pop(bound)
            if exclusive and limit in schema:
                schema[bound] = schema.pop(limit)
    if nullable and isinstance(schema.get("type"), str):
        schema["type"] = [schema["type"], "null"]
        if isinstance(schema.get("enum"), list) and None not in schema["enum"]:
            schema["enum"] = [*schema["enum"], None]
    return schema


def refuse(operation: str, why: str, cure: str) -> ConfigError:
    return ConfigError(f"The operation {said(operation)}: {why}.", cure)


def said(text: str) -> str:
    """Somebody else's words in a sentence of ours: short, and on one line."""
    return truncate("".join(letter if letter.isprintable() else "?" for letter in text), SAID_CHARS)
