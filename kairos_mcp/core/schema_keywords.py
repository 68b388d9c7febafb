"""The keywords of JSON Schema: which say something about a value, which hold schemas, and what their own values are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from kairos_mcp.core.messages import JsonObject

_OF_BOTH = frozenset(
    {
        "$ref",
        "additionalProperties",
        "allOf",
        "anyOf",
        "const",
        "contains",
        "enum",
        "exclusiveMaximum",
        "exclusiveMinimum",
        "format",
        "if",
        "items",
        "maxItems",
        "maxLength",
        "maxProperties",
        "maximum",
        "minItems",
        "minLength",
        "minProperties",
        "minimum",
        "multipleOf",
        "not",
        "oneOf",
        "pattern",
        "patternProperties",
        "properties",
        "propertyNames",
        "required",
        "type",
        "uniqueItems",
    }
)
KEYWORDS = {
    "https://json-schema.org/draft/2020-12/schema": _OF_BOTH
    | {
        "$dynamicRef",
        "dependentRequired",
        "dependentSchemas",
        "prefixItems",
        "unevaluatedItems",
        "unevaluatedProperties",
    },
    "http://json-schema.org/draft-07/schema": _OF_BOTH | {"additionalItems", "dependencies"},
}
"""The keywords that say something about a value, by draft; others are notes."""


def find_keywords(root: JsonObject) -> frozenset[str] | None:
    """Return the keywords of the draft that a schema is written in; None for an older or unknown one."""
    stated = root.get("$schema", "https://json-schema.org/draft/2020-12/schema")
    return KEYWORDS.get(stated.removesuffix("#")) if isinstance(stated, str) else None


# The keywords whose value is one schema, a list of schemas, or schemas by name.
_ONE_SCHEMA = {
    "additionalItems",
    "additionalProperties",
    "contains",
    "contentSchema",
    "else",
    "if",
    "items",
    "not",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
}
_SCHEMA_LIST = {"allOf", "anyOf", "items", "oneOf", "prefixItems"}
_SCHEMA_MAP = {"$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties"}


def list_subschemas(schema: JsonObject) -> Iterator[object]:
    """List the schemas directly inside a schema."""
    for keyword, value in schema.items():
        match value:
            case dict() if keyword in _SCHEMA_MAP:
                yield from value.values()
            case dict() if keyword in _ONE_SCHEMA:
                yield value
            case list() if keyword in _SCHEMA_LIST:
                yield from value


def has_usual_values(schema: JsonObject) -> bool:
    """Whether each keyword of this part has a value as the drafts 2020-12 and 7 both want it. What is inside of it is
    not looked at; False means only that it is to be found out."""
    return all(keyword not in _VALUES or _VALUES[keyword](value) for keyword, value in schema.items())


_TYPE_NAMES = ("string", "integer", "number", "boolean", "object", "array", "null")


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_schema(value: Any) -> bool:
    return isinstance(value, dict | bool)


def _is_name_list(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_text, value)) and len(set(value)) == len(value)


def _is_type(value: Any) -> bool:
    return (
        value in _TYPE_NAMES
        if isinstance(value, str)
        else bool(value) and _is_name_list(value) and set(value) <= set(_TYPE_NAMES)
    )


_VALUES: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("title", "description", "$comment", "format", "contentEncoding", "contentMediaType"), _is_text),
    **dict.fromkeys(("$schema", "$ref", "pattern"), _is_text),
    **dict.fromkeys(("readOnly", "writeOnly", "deprecated", "uniqueItems"), lambda value: isinstance(value, bool)),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"), _is_count),
    **dict.fromkeys(("minContains", "maxContains"), _is_count),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), _is_number),
    **dict.fromkeys(_ONE_SCHEMA, _is_schema),
    **dict.fromkeys(
        _SCHEMA_LIST - {"items"},
        lambda value: isinstance(value, list) and bool(value) and all(map(_is_schema, value)),
    ),
    **dict.fromkeys(
        _SCHEMA_MAP - {"dependencies"},
        lambda value: isinstance(value, dict) and all(map(_is_schema, value.values())),
    ),
    **dict.fromkeys(("enum", "examples"), lambda value: isinstance(value, list)),
    "required": _is_name_list,
    "type": _is_type,
    "multipleOf": lambda value: _is_number(value) and value > 0,
    # For these the drafts differ, or a pattern decides.
    **dict.fromkeys(("$id", "$vocabulary", "dependencies", "dependentRequired"), lambda _: False),
}
