"""Compile JSON Schemas from outside safely: no fetching, no recursion, no backtracking patterns, bounded size.

`compile_schema` refuses what is unsafe; the Schema that it returns can only validate values.

What plainly fits a plain schema, as the arguments of most calls do, is accepted at once; a validator looks at the rest.
A schema is plain where it describes one flat object without further keys, of short texts, whole numbers, truth values
and lists of these. A test never accepts what the validator would not; False means only that this is to be found out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any, TypeGuard
from urllib.parse import unquote

from kairos_mcp.core.errors import SchemaRejected
from kairos_mcp.core.input_checks import find_unfit_value
from kairos_mcp.core.json_schema_rules import compile_safe_pattern, guarded_validator, problem_text, shorten
from kairos_mcp.core.messages import JsonObject, canonical_json

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
    others = rules.get("additionalProperties", True)
    if not isinstance(others, bool) or len(properties) > MAX_PROPERTIES:
        return None
    fits_other: Test = _is_plain_value if others else _fits_nothing
    tests: dict[str, Test] = {}
    for name, inner in properties.items():
        test = _compile_part(inner) or _compile_list(inner)
        if test is None:
            return None
        tests[name] = test
    required = tuple(rules.get("required", ()))

    def fits(value: Any) -> bool:
        if type(value) is not dict or len(value) > MAX_PROPERTIES:
            return False
        for name in required:
            if name not in value:
                return False
        for name, part in value.items():
            test = tests.get(name, fits_other)
            if not test(part):
                return False
        return True

    return fits


def _is_plain_value(value: Any) -> bool:
    """Whether a value is a short text, a number or a truth value that every JSON reader takes alike."""
    if type(value) is str:
        return len(value) <= MAX_CHARS and value.isascii()
    return type(value) is bool or (type(value) is int and -MAX_INTEGER <= value <= MAX_INTEGER)


def _fits_nothing(_value: Any) -> bool:
    return False


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


SCHEMA_BYTES = 200_000
SCHEMA_NODES = 2_000
SCHEMA_DEPTH = 32
EXPANDED_NODES = 20_000  # with each $ref followed: ten small definitions can stand for a billion nodes
EXPANDED_DEPTH = 64
MAX_PROBLEMS = 5

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
_REFUSED_KEYWORDS = {"$anchor", "$dynamicAnchor", "$dynamicRef", "$recursiveAnchor", "$recursiveRef"}


@dataclass(frozen=True, slots=True)
class Schema:
    """A checked schema; made by `compile_schema` alone. `fits_plainly`: a quick test that never accepts too much."""

    validator: Any  # a jsonschema Validator, which is not imported before it is needed
    fits_plainly: Test | None = None

    def problems(self, value: object) -> list[str]:
        """List what is wrong with a value: at most 5 texts `at /a/b: ...`, which never quote the value."""
        if self.fits_plainly is not None and self.fits_plainly(value):
            return []
        if (reason := find_unfit_value(value)) is not None:
            return [f"at /: {reason}"]
        return [problem_text(error) for error in islice(self.validator.iter_errors(value), MAX_PROBLEMS)]


def compile_schema(schema: JsonObject) -> Schema:
    """Check and compile a schema; equal schemas are compiled once. Raises SchemaRejected."""
    _measure(schema)
    return _compile(_canonical_text(schema))


def _measure(schema: JsonObject) -> None:
    """Refuse a schema with too many levels or nodes, before anything recurses into it."""
    level: list[object] = [schema]
    nodes = 0
    for _ in range(SCHEMA_DEPTH + 1):
        nodes += len(level)
        if nodes > SCHEMA_NODES:
            raise SchemaRejected(f"The schema has more than {SCHEMA_NODES} parts.", "Make it smaller.")
        level = [inner for part in level for inner in _parts(part)]
        if not level:
            return
    raise SchemaRejected(f"The schema is nested deeper than {SCHEMA_DEPTH} levels.", "Make it flatter.")


def _parts(part: object) -> Iterator[object]:
    match part:
        case dict():
            yield from part.values()
        case list():
            yield from part


def _canonical_text(schema: JsonObject) -> str:
    try:
        text = canonical_json(schema)
        size = len(text.encode())
    except (TypeError, ValueError):  # NaN, a lone surrogate, a key that is no text, a value of no JSON type
        raise SchemaRejected(
            "The schema is not plain JSON.", "Send JSON with plain strings and finite numbers."
        ) from None
    if size > SCHEMA_BYTES:
        raise SchemaRejected(f"The schema has {size} bytes; {SCHEMA_BYTES} are allowed.", "Make it smaller.")
    return text


@lru_cache(maxsize=256)
def _compile(text: str) -> Schema:
    schema: JsonObject = json.loads(text)
    _Expansion(schema).measure(schema)
    return Schema(_make_validator(schema), compile_plain(schema))


class _Expansion:
    """Measures a schema with each `$ref` followed; refuses remote and recursive ones, and schemas that grow by them."""

    def __init__(self, root: JsonObject) -> None:
        self._root = root
        self._known: dict[str, tuple[int, int]] = {}  # $ref -> (nodes, depth) of what it stands for

    def measure(self, schema: object, following: tuple[str, ...] = (), above: int = 0) -> tuple[int, int]:
        """Return (nodes, depth) of the expanded schema. `following`, `above`: the refs and levels that led here."""
        if not isinstance(schema, dict):
            return 1, 1
        _refuse_growth(1, above)
        _check_keywords(schema, is_root=schema is self._root)
        nodes, depth = 1, 0
        if isinstance(ref := schema.get("$ref"), str):
            nodes, depth = self._measure_ref(ref, following, above)
        for inner in _subschemas(schema):
            inner_nodes, inner_depth = self.measure(inner, following, above + 1)
            nodes, depth = nodes + inner_nodes, max(depth, inner_depth)
        _refuse_growth(nodes, depth)
        return nodes, depth + 1

    def _measure_ref(self, ref: str, following: tuple[str, ...], above: int) -> tuple[int, int]:
        if ref in following:
            raise SchemaRejected(f"$ref {shorten(ref)} leads back to itself.", "Spell the levels out instead.")
        if ref not in self._known:
            self._known[ref] = self.measure(self._resolve(ref), (*following, ref), above + 1)
        return self._known[ref]

    def _resolve(self, ref: str) -> object:
        if ref != "#" and not ref.startswith("#/"):
            raise SchemaRejected(
                f"$ref {shorten(ref)} refers to another document; nothing is fetched.", "Use #/$defs/NAME."
            )
        target: Any = self._root
        try:
            for step in ref.split("/")[1:]:
                key = unquote(step).replace("~1", "/").replace("~0", "~")
                target = target[int(key)] if isinstance(target, list) else target[key]
        except (KeyError, ValueError, IndexError, TypeError):
            raise SchemaRejected(f"$ref {shorten(ref)} leads nowhere.", "Define it under $defs.") from None
        return target


def _refuse_growth(nodes: int, depth: int) -> None:
    if nodes > EXPANDED_NODES or depth >= EXPANDED_DEPTH:
        raise SchemaRejected("The schema grows too large when its $refs are followed.", "Use fewer $refs.")


def _subschemas(schema: JsonObject) -> Iterator[object]:
    for keyword, value in schema.items():
        match value:
            case dict() if keyword in _SCHEMA_MAP:
                yield from value.values()
            case dict() if keyword in _ONE_SCHEMA:
                yield value
            case list() if keyword in _SCHEMA_LIST:
                yield from value


def _check_keywords(schema: JsonObject, *, is_root: bool) -> None:
    if strange := sorted(_REFUSED_KEYWORDS & schema.keys()):
        raise SchemaRejected(f"{strange[0]} is not supported.", "Use $ref to #/$defs/NAME.")
    if "$id" in schema and not is_root:
        raise SchemaRejected("$id inside a schema changes what its $refs mean.", "Remove it.")
    patterns = [schema["pattern"]] if isinstance(schema.get("pattern"), str) else []
    if isinstance(named := schema.get("patternProperties"), dict):
        patterns += named
        if schema.keys() & {"unevaluatedProperties"}:
            raise SchemaRejected("unevaluatedProperties beside patternProperties is not supported.", "Drop one.")
    for pattern in patterns:
        compile_safe_pattern(pattern)


def _make_validator(schema: JsonObject) -> Any:
    from jsonschema.exceptions import SchemaError
    from referencing import Registry

    stated = schema.get("$schema")
    draft = guarded_validator(stated if isinstance(stated, str) else "")
    try:
        draft.check_schema(schema)
    except SchemaError as error:
        where = "/".join(str(part) for part in error.absolute_path)
        raise SchemaRejected(
            f"The schema is not a valid JSON Schema, at /{shorten(where)}.", "Correct the keyword there."
        ) from None
    return draft(schema, registry=Registry())


def leave_out_patterns(schema: JsonObject) -> tuple[JsonObject, tuple[str, ...]]:
    """Return a schema without the patterns that RE2 can't do, and these. For schemas of foreign tools, which are more
    useful without one check than not at all; a text's description then says what the pattern asks for.

    Raises SchemaRejected for a schema that is too large or too deep to look through.
    """
    _measure(schema)
    left_out: list[str] = []
    return _without_patterns(schema, left_out), tuple(dict.fromkeys(left_out))


def _without_patterns(schema: JsonObject, left_out: list[str]) -> JsonObject:
    kept = {keyword: _relax_part(keyword, value, left_out) for keyword, value in schema.items()}
    if _is_unsafe(pattern := kept.get("pattern")):
        left_out.append(pattern)
        del kept["pattern"]
        stated = kept.get("description")
        kept["description"] = f"{f'{stated} ' if isinstance(stated, str) else ''}(pattern: {shorten(pattern, 200)})"
    named = kept.get("patternProperties")
    if isinstance(named, dict) and (unsafe := [pattern for pattern in named if _is_unsafe(pattern)]):
        left_out += unsafe
        kept["patternProperties"] = {pattern: inner for pattern, inner in named.items() if pattern not in unsafe}
        for others in ("additionalProperties", "unevaluatedProperties"):
            kept.pop(others, None)  # it is no longer known which properties are others
    return kept


def _relax_part(keyword: str, value: Any, left_out: list[str]) -> Any:
    match value:
        case dict() if keyword in _SCHEMA_MAP:
            return {name: _relax_inner(inner, left_out) for name, inner in value.items()}
        case dict() if keyword in _ONE_SCHEMA:
            return _without_patterns(value, left_out)
        case list() if keyword in _SCHEMA_LIST:
            return [_relax_inner(inner, left_out) for inner in value]
    return value


def _relax_inner(inner: Any, left_out: list[str]) -> Any:
    return _without_patterns(inner, left_out) if isinstance(inner, dict) else inner


def _is_unsafe(pattern: Any) -> TypeGuard[str]:
    if not isinstance(pattern, str):
        return False
    try:
        compile_safe_pattern(pattern)
    except SchemaRejected:
        return True
    return False


def object_schema(required: Sequence[str] = (), /, **properties: JsonObject) -> JsonObject:
    """Return the schema of an object with these keys and no others."""
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


def text_schema(max_chars: int, min_chars: int = 1) -> JsonObject:
    """Return the schema of a text of so many characters."""
    return {"type": "string", "minLength": min_chars, "maxLength": max_chars}
