"""Accept at once what plainly fits a plain schema, as the arguments of most calls do; a validator looks at the rest.

A schema is plain where it describes one flat object without further keys, of short texts, whole numbers, truth values
and lists of these. A test never accepts what the validator would not; False means only that this is to be found out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kairos_mcp.core.messages import JsonObject

Test = Callable[[Any], bool]

MAX_PROPERTIES, MAX_ITEMS, MAX_CHARS = 40, 20, 1_000  # so that no value is near the size that is refused
MAX_INTEGER = 2**53
_NOTES = {"title", "description", "default", "examples"}  # keywords that say nothing about a value


def compile_plain(schema: JsonObject) -> Test | None:
    """Return a test for values that certainly fit the schema; None for a schema that is not plain."""
    rules = _rules_of(schema, "object")
    properties = schema.get("properties", {})
    if rules is None or rules.keys() - {"properties", "required", "additionalProperties"}:
        return None
    if rules.get("additionalProperties") is not False or len(properties) > MAX_PROPERTIES:
        return None
    tests: dict[str, Test] = {}
    for name, inner in properties.items():
        test = _compile_part(inner) or _compile_list(inner)
        if test is None:
            return None
        tests[name] = test
    required = tuple(rules.get("required", ()))

    def fits(value: Any) -> bool:
        if type(value) is not dict:
            return False
        for name in required:
            if name not in value:
                return False
        for name, part in value.items():
            test = tests.get(name)
            if test is None or not test(part):
                return False
        return True

    return fits


def _rules_of(schema: Any, kind: str) -> JsonObject | None:
    """Return what the schema of a value of this type says besides the type; None for any other schema."""
    if not isinstance(schema, dict) or schema.get("type") != kind:
        return None
    return {keyword: rule for keyword, rule in schema.items() if keyword not in _NOTES and keyword != "type"}


def _compile_part(schema: Any) -> Test | None:
    """Return a test for a text, a whole number or a truth value."""
    if (rules := _rules_of(schema, "string")) is not None and not rules.keys() - {"minLength", "maxLength", "enum"}:
        least, most = rules.get("minLength", 0), min(rules.get("maxLength", MAX_CHARS), MAX_CHARS)
        choices = rules.get("enum")
        return lambda value: (
            type(value) is str
            and least <= len(value) <= most
            and value.isascii()
            and (choices is None or value in choices)
        )
    if (rules := _rules_of(schema, "integer")) is not None and not rules.keys() - {"minimum", "maximum"}:
        low, high = (
            max(rules.get("minimum", -MAX_INTEGER), -MAX_INTEGER),
            min(rules.get("maximum", MAX_INTEGER), MAX_INTEGER),
        )
        return lambda value: type(value) is int and low <= value <= high
    return (lambda value: type(value) is bool) if _rules_of(schema, "boolean") == {} else None


def _compile_list(schema: Any) -> Test | None:
    """Return a test for a list of texts, whole numbers or truth values."""
    rules = _rules_of(schema, "array")
    if rules is None or rules.keys() - {"items", "minItems", "maxItems"}:
        return None
    if (fits_item := _compile_part(rules.get("items"))) is None:
        return None
    test, least, most = fits_item, rules.get("minItems", 0), min(rules.get("maxItems", MAX_ITEMS), MAX_ITEMS)
    return lambda value: type(value) is list and least <= len(value) <= most and all(map(test, value))
