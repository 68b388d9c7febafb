"""How JSON Schemas are validated here: RE2 for patterns, strict numbers, and our own sentence for each problem."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any

from kairos_mcp.core.errors import SchemaRejected
from kairos_mcp.core.messages import JsonObject, canonical_json
from kairos_mcp.core.text import truncate

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
    """Return the validator class of a draft with our own checks: safe patterns, strict integers, bounded work."""
    from jsonschema import Draft202012Validator, validators

    plain = validators.validator_for({"$schema": meta_schema}, Draft202012Validator)
    types = plain.TYPE_CHECKER.redefine("integer", _is_integer)
    own: dict[str, Callable[..., Iterator[ValidationError]]] = {
        "pattern": _check_pattern,
        "patternProperties": _check_pattern_properties,
        "additionalProperties": _check_additional,
        "anyOf": _check_any_of,
        "oneOf": _check_one_of,
        "required": _check_required,
        "uniqueItems": _check_unique,
    }
    own = {keyword: check for keyword, check in own.items() if keyword in plain.VALIDATORS}  # draft 3 lacks some
    return validators.extend(plain, own, type_checker=types)  # type: ignore[no-untyped-call] # its stub has none


def _is_integer(_: object, value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)  # in most drafts 1.0 is one too


def _error(message: str) -> ValidationError:
    from jsonschema.exceptions import ValidationError

    return ValidationError(message)


def _check_pattern(_: object, pattern: str, value: object, __: object) -> Iterator[ValidationError]:
    if isinstance(value, str) and not compile_safe_pattern(pattern).search(value):
        yield _error(f"must keep to pattern {shorten(canonical_json(pattern))}")


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
    if unique and isinstance(value, list) and len({canonical_json(item) for item in value}) < len(value):
        yield _error("must keep to uniqueItems true")


def problem_text(error: ValidationError) -> str:
    """Return `at /a/b: ...`, made of the rule alone: the value may be long or secret."""
    return f"at /{'/'.join(shorten(str(part)) for part in error.absolute_path)}: {_describe_problem(error)}"


def _describe_problem(error: ValidationError) -> str:
    rule: Any = error.validator_value
    match error.validator:
        case "additionalProperties" | "anyOf" | "oneOf" | "pattern" | "required" | "uniqueItems":
            return error.message  # of our own checks; the library's texts hold the value
        case "type":
            expected = " or ".join(rule) if isinstance(rule, list) else rule
            return f"must be {expected}, is {_type_of(error.instance)}"
        case "enum":
            return "must be one of " + shorten(", ".join(canonical_json(choice) for choice in rule), 300)
        case _ if error.schema is False:  # of which the library does not say where
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
