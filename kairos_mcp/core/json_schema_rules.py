"""How JSON Schemas are validated here: RE2 for patterns, strict numbers, counted work, our own texts for problems."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any

from kairos_mcp.core.messages import JsonObject, canonical_json
from kairos_mcp.core.safe_patterns import search_safely
from kairos_mcp.core.text import truncate
from kairos_mcp.core.work import current_work

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError


@lru_cache(maxsize=8)
def guarded_validator(meta_schema: str) -> Any:
    """Return the validator class of a draft with our own checks: safe patterns, strict integers, bounded work."""
    from jsonschema import Draft202012Validator, validators

    plain = validators.validator_for({"$schema": meta_schema}, Draft202012Validator)
    types = plain.TYPE_CHECKER.redefine(  # in most drafts 1.0 is one too
        "integer", lambda _, value: isinstance(value, int) and not isinstance(value, bool)
    )
    own: dict[str, Callable[..., Iterator[ValidationError]]] = {
        "pattern": _check_pattern,
        "patternProperties": _check_pattern_properties,
        "additionalProperties": _check_additional,
        "anyOf": _check_any_of,
        "oneOf": _check_one_of,
        "required": _check_required,
        "uniqueItems": _check_unique,
    }
    charged = {keyword: _charge_before(keyword, own.get(keyword, check)) for keyword, check in plain.VALIDATORS.items()}
    return validators.extend(plain, charged, type_checker=types)  # type: ignore[no-untyped-call] # its stub has none


_KEYWORD_UNITS = 40  # of the library's way to one keyword, some 8 microseconds
_UNITS_OF_PARTS = {"properties": 1, "required": 1, "enum": 4}  # each part of these costs less
_OVER_VALUE = {
    "additionalItems",
    "additionalProperties",
    "contains",
    "items",
    "prefixItems",
    "propertyNames",
    "unevaluatedItems",
    "unevaluatedProperties",
}
"""The keywords whose checks go through all parts of a value, or step into each."""


def _charge_before(keyword: str, check: Any) -> Callable[..., Any]:
    """Return a check that is charged before it begins, by what it goes through itself. What it has others check is
    charged there."""

    def charge_and_check(validator: Any, rule: Any, value: Any, schema: Any) -> Any:
        work = current_work()
        parts = len(rule) if isinstance(rule, dict | list) else 0
        size = len(value) if isinstance(value, dict | list) else 0
        units = _KEYWORD_UNITS + _UNITS_OF_PARTS.get(keyword, _KEYWORD_UNITS) * parts
        if keyword == "$ref":
            units += 8 * _KEYWORD_UNITS
        if keyword in _OVER_VALUE:  # where each part has a keyword to keep to, it is charged as the check comes to it
            is_charged_later = isinstance(rule, dict) and not rule.keys().isdisjoint(validator.VALIDATORS)
            units += 0 if is_charged_later else _KEYWORD_UNITS * size
        if keyword.startswith("unevaluated"):  # each name is looked for among all that each part of the schema finds
            units += size * (size + work.schema_nodes) // 4
        if keyword == "uniqueItems" and size:
            units += 25 * sum(not isinstance(item, str) for item in value) + 3 * _measure_value(value)
        elif keyword in ("enum", "const") and size:
            units += 3 * _measure_value(rule)
        work.spend(units)
        return check(validator, rule, value, schema)

    return charge_and_check


def _measure_value(value: object) -> int:
    """Count the parts of a value, and its characters by fifties: what it takes to compare it, or to write it out."""
    pending, parts = [value], 0
    while pending:
        part = pending.pop()
        parts += 1 + (len(part) // 50 if isinstance(part, str) else 0)
        if isinstance(part, dict):
            pending += part
            pending += part.values()
        elif isinstance(part, list):
            pending += part
    return parts


def _error(message: str) -> ValidationError:
    from jsonschema.exceptions import ValidationError

    return ValidationError(message)


def _check_pattern(_: object, pattern: str, value: object, __: object) -> Iterator[ValidationError]:
    if isinstance(value, str) and not search_safely(pattern, value, current_work()):
        yield _error(f"must keep to pattern {shorten(canonical_json(pattern))}")


def _check_pattern_properties(
    validator: Any, patterns: Mapping[str, Any], value: object, _: object
) -> Iterator[ValidationError]:
    if not isinstance(value, dict):
        return
    work = current_work()
    for pattern, inner in patterns.items():
        for key in value:
            if search_safely(pattern, key, work):
                yield from validator.descend(value[key], inner, path=key, schema_path=pattern)


def _check_additional(validator: Any, rule: Any, value: object, schema: JsonObject) -> Iterator[ValidationError]:
    if not isinstance(value, dict):
        return
    work, patterns, named = current_work(), schema.get("patternProperties", ()), schema.get("properties", {})
    extra = [key for key in value if key not in named and not any(search_safely(p, key, work) for p in patterns)]
    if isinstance(rule, dict):
        for key in extra:
            yield from validator.descend(value[key], rule, path=key)
    elif rule is False and extra:
        valid = shorten(", ".join(named), 300) or "none"
        yield _error(f"unknown keys ({', '.join(shorten(key) for key in extra[:3])}); valid: {valid}")


def _fits(validator: Any, value: object, schemas: Sequence[Any]) -> Iterator[Any]:
    """Yield the schemas that the value fits. Each is left at its first problem: the library lists all of them."""
    return (schema for schema in schemas if validator.evolve(schema=schema).is_valid(value))


def _check_any_of(validator: Any, schemas: Sequence[Any], value: object, _: object) -> Iterator[ValidationError]:
    if not any(True for _ in _fits(validator, value, schemas)):
        yield _error(f"must fit one of {len(schemas)} alternatives")


def _check_one_of(validator: Any, schemas: Sequence[Any], value: object, _: object) -> Iterator[ValidationError]:
    if len(list(islice(_fits(validator, value, schemas), 2))) != 1:
        yield _error(f"must fit exactly one of {len(schemas)} alternatives")


def _check_required(_: object, names: Sequence[str], value: object, __: object) -> Iterator[ValidationError]:
    missing = [shorten(name) for name in names if name not in value] if isinstance(value, dict) else []
    if missing:
        yield _error("needs " + ", ".join(missing))


def _check_unique(_: object, unique: bool, value: object, __: object) -> Iterator[ValidationError]:
    if not unique or not isinstance(value, list):
        return
    found = {(True, item) if isinstance(item, str) else (False, canonical_json(item)) for item in value}
    if len(found) < len(value):
        yield _error("must keep to uniqueItems true")


def describe_problem(error: ValidationError) -> str:
    """Say what a value does not keep to, by the rule alone: the value may be long or secret."""
    rule: Any = error.validator_value
    match error.validator:
        case "additionalProperties" | "anyOf" | "oneOf" | "pattern" | "required" | "uniqueItems":
            return error.message  # of our own checks; the library's texts hold the value
        case "type":
            expected = " or ".join(rule) if isinstance(rule, list) else rule
            return f"must be {expected}, is {_type_of(error.instance)}"
        case "enum":
            return "must be one of " + shorten(", ".join(canonical_json(choice) for choice in rule), 300)
        case _ if error.schema is False:  # the library does not say where
            return "a part is not allowed: its schema is false"
        case keyword:
            return f"must keep to {keyword} {shorten(canonical_json(rule))}"


def _type_of(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case str():
            return "string"
        case int():
            return "integer"
        case float():
            return "a number with a point"
        case dict():
            return "object"
        case _:
            return "array"


def shorten(text: str, limit: int = 80) -> str:
    """Shorten a name or a rule from outside for a message."""
    return truncate(text, limit, "... ({total} characters)")
