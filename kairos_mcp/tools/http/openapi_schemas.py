"""Turns the schemas of an OpenAPI document into JSON Schema without references.

References are followed within the document, keywords of OpenAPI 3.0 become those of JSON Schema, and read-only
properties are left out.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

from kairos_mcp.core.errors import ConfigError, SchemaRejected
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.safe_patterns import compile_safe_pattern
from kairos_mcp.core.text import truncate

MAX_PARTS = 2_000  # of one operation; core/json_schema.py allows as many in a schema
MAX_DEPTH = 24
REF_STEPS = 16
QUOTE_CHARS = 80
_COPIED = (
    *("type", "format", "title", "description", "default", "enum", "const", "required"),
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    *("minLength", "maxLength", "minItems", "maxItems", "uniqueItems", "minProperties", "maxProperties"),
)
_SCHEMA_KEYS = ("items", "additionalProperties", "not")
_SCHEMA_LIST_KEYS = ("allOf", "anyOf", "oneOf")


class SchemaInliner:
    """Inlines the schemas of one operation. Counts the parts, since references let a small document unfold to a huge
    one."""

    def __init__(self, document: JsonObject, operation: str) -> None:
        self._document = document
        self._operation = operation
        self._parts = 0

    def resolve(self, value: object) -> JsonObject:
        """Return the object, or what it refers to. Raises ConfigError if that lies elsewhere or doesn't exist."""
        for _ in range(REF_STEPS):
            match value:
                case {"$ref": str(ref)}:
                    value = self._follow_ref(ref)
                case dict():
                    return value
                case _:
                    return {}
        raise operation_error(self._operation, "a $ref leads to itself", "Repair the document.")

    def inline(self, value: object, above: tuple[str, ...] = ()) -> JsonObject:
        """Return the schema with all references inlined. A recursive one is inlined once; below that anything is
        accepted, and its description says so."""
        self._parts += 1
        if self._parts > MAX_PARTS or len(above) > MAX_DEPTH:
            raise operation_error(
                self._operation, "its schemas are too large", "Write the tool by hand, with what is needed."
            )
        if value is True:
            return {}
        if not isinstance(value, dict):
            return {"not": {}} if value is False else {}
        ref = value.get("$ref")
        if isinstance(ref, str):
            if ref in above:
                name = quote_document(ref.rpartition("/")[2])
                return {"description": f"{name} again, not spelled out; anything is taken."}
            return self.inline(self._follow_ref(ref), (*above, ref))
        return self._inline_members(value, (*above, ""))

    def _inline_members(self, value: JsonObject, above: tuple[str, ...]) -> JsonObject:
        schema: JsonObject = {name: value[name] for name in _COPIED if name in value}
        for name in _SCHEMA_KEYS:
            if name in value:
                schema[name] = value[name] if isinstance(value[name], bool) else self.inline(value[name], above)
        schema |= {
            name: [self.inline(member, above) for member in value[name]]
            for name in _SCHEMA_LIST_KEYS
            if isinstance(value.get(name), list)
        }
        if isinstance(properties := value.get("properties"), dict):
            own = {
                name: member for name, member in properties.items() if self.resolve(member).get("readOnly") is not True
            }
            schema["properties"] = {name: self.inline(member, above) for name, member in own.items()}
            if isinstance(required := schema.get("required"), list):
                schema["required"] = [
                    name for name in required if isinstance(name, str) and (name in own or name not in properties)
                ]
        _state_pattern(schema, value.get("pattern"))
        return _modernize(schema, nullable=value.get("nullable") is True)

    def _follow_ref(self, ref: str) -> Any:
        if not ref.startswith("#/"):
            raise operation_error(
                self._operation, f"{quote_document(ref)} lies outside the document", "Put everything into one document."
            )
        found: Any = self._document
        for part in ref[2:].split("/"):
            name = unquote(part).replace("~1", "/").replace("~0", "~")
            if not isinstance(found, dict) or name not in found:
                raise operation_error(
                    self._operation, f"nothing stands at {quote_document(ref)}", "Repair the document."
                )
            found = found[name]
        return found


def _state_pattern(schema: JsonObject, pattern: object) -> None:
    """Add a pattern to a schema; one that RE2 can't apply goes into the description instead."""
    if not isinstance(pattern, str):
        return
    try:
        compile_safe_pattern(pattern)
    except SchemaRejected:
        schema["description"] = f"{schema.get('description', '')} Pattern: {pattern[:QUOTE_CHARS]}".strip()
    else:
        schema["pattern"] = pattern


def _modernize(schema: JsonObject, *, nullable: bool) -> JsonObject:
    """Replace OpenAPI 3.0's `nullable` and boolean `exclusiveMinimum` by JSON Schema's keywords."""
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


def operation_error(operation: str, why: str, cure: str) -> ConfigError:
    return ConfigError(f"The operation {quote_document(operation)}: {why}.", cure)


def quote_document(text: str) -> str:
    """Quote a text of the document within a sentence of ours: shortened, and on one line."""
    return truncate("".join(letter if letter.isprintable() else "?" for letter in text), QUOTE_CHARS)
