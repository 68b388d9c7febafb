"""How JSON Schemas are validated here: RE2 for patterns, strict numbers, and our own sentence for each problem."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from kairos_mcp.core.errors import SchemaRejected
from kairos_mcp.core.messages import JsonObject, canonical_json

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError


@lru_cache(maxsize=1024)
def compile_safe_pattern(pattern: str) -> Any:
    """Compile a pattern with RE2, whose time is linear. Raises SchemaRejected for what RE2 can't do."""
    import re2

    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options=options)
    except re2.error:
        raise SchemaRejected(f"Pattern {shorten(pattern)} is not RE2.", "No look-around, no back-references.") from None


@lru_cache(maxsize=8)
def guarded_validator(meta_schema: str) -> Any:
    """Return the validator class of a draft with our own checks of types, patterns and unique items."""
    from jsonschema import Draft202012Validator, validators

    plain = validators.validator_for({"$schema": meta_schema}, Draft202012Validator)
    types = plain.TYPE_CHECKER.redefine_many({"integer": _is_integer, "number": _is_number})
    own = {
        "pattern": _check_pattern,
        "patternProperties": _check_pattern_properties,
        "additionalProperties": _check_additional,
        "uniqueItems": _check_unique,
    }
    return validators.extend(plain, own, type_checker=types)  # type: ignore[no-untyped-call] # its stub has none


def _is_integer(_: object, value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(_: object, value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _error(message: str) -> ValidationError:
    from jsonschema.exceptions import ValidationError

    return ValidationError(message)


def _check_pattern(_: object, pattern: str, value: object, __: object) -> Iterator[ValidationError]:
    if isinstance(value, str) and not compile_safe_pattern(pattern).search(value):
        yield _error("pattern")


def _check_pattern_properties(
    validator: Any, patterns: Mapping[str, Any], value: object, _: object
) -> Iterator[ValidationError]:
    if not isinstance(value, dict):
        return
    for pattern, inner in patterns.items():
        for key in value:
            if compile_safe_pattern(pattern).search(key):
                yield from validator.descend(value[key], inner, path=key, schema_path=pattern)


def _check_additional(validator: Any, rule: Any, value: object, schema: JsonObject) -> Iterator[ValidationError]:
    if not isinstance(value, dict):
        return
    patterns = [compile_safe_pattern(pattern) for pattern in schema.get("patternProperties", ())]
    named = schema.get("properties", {})
    extra = [key for key in value if key not in named and not any(p.search(key) for p in patterns)]
    if isinstance(rule, dict):
        for key in extra:
            yield from validator.descend(value[key], rule, path=key)
    elif rule is False and extra:
        yield _error("additionalProperties: " + ", ".join(shorten(key) for key in extra[:3]))


def _check_unique(_: object, unique: bool, value: object, __: object) -> Iterator[ValidationError]:
    if unique and isinstance(value, list) and len({canonical_json(item) for item in value}) < len(value):
        yield _error("uniqueItems")


def problem_text(error: ValidationError) -> str:
    """Return `at /a/b: ...`, made of the rule alone: the value may be long or secret."""
    return f"at /{'/'.join(shorten(str(part)) for part in error.absolute_path)}: {_describe_problem(error)}"


def _describe_problem(error: ValidationError) -> str:
    rule: Any = error.validator_value
    instance: Any = error.instance
    match error.validator:
        case "type":
            expected = " or ".join(rule) if isinstance(rule, list) else rule
            return f"must be {expected}, is {_type_of(instance)}"
        case "required":
            return "needs " + ", ".join(shorten(key) for key in rule if key not in instance)
        case "additionalProperties":
            valid = ", ".join(error.schema.get("properties", {})) if isinstance(error.schema, dict) else ""
            return f"unknown keys ({error.message.partition(': ')[2]}); valid: {shorten(valid, 300) or 'none'}"
        case "enum":
            return "must be one of " + shorten(", ".join(canonical_json(choice) for choice in rule), 300)
        case "anyOf" | "oneOf":
            expected = "exactly one" if error.validator == "oneOf" else "one"
            return f"must fit {expected} of {len(rule)} alternatives"
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
            return "a number with a point" if math.isfinite(value) else "no finite number"
        case dict():
            return "object"
        case _:
            return "array"


def shorten(text: str, limit: int = 80) -> str:
    """Shorten a name or a rule from outside for a message."""
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text)} characters)"
