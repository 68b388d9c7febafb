"""Compile JSON Schemas from outside safely: no fetching, no recursion, no backtracking patterns, bounded size and work.

`compile_schema` refuses what is unsafe; the Schema that it returns can only validate values, and counts what that
costs. A value is tested by functions compiled from the schema (`schema_tests.py`); only where these don't accept it
does the library's validator, which is some 30 times slower, say what is wrong.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache
from itertools import islice
from typing import Any
from urllib.parse import unquote

from kairos_mcp.core.errors import SchemaRejected
from kairos_mcp.core.input_checks import find_unfit_value
from kairos_mcp.core.json_schema_rules import describe_problem, guarded_validator, shorten
from kairos_mcp.core.messages import JsonObject, canonical_json
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.safe_patterns import compile_safe_pattern
from kairos_mcp.core.schema_keywords import find_keywords, has_usual_values, list_subschemas
from kairos_mcp.core.schema_tests import PlainTest, SchemaTest, compile_plain, compile_test
from kairos_mcp.core.work import LOOP_UNITS, TooMuchWork, Work

SCHEMA_BYTES = 200_000
SCHEMA_NODES = 2_000
SCHEMA_DEPTH = 32
EXPANDED_NODES = 20_000  # with each $ref followed: ten small definitions can stand for a billion nodes
EXPANDED_DEPTH = 64
MAX_PATTERNS = 32  # of one schema, fewer than are kept compiled
PATTERNS_SIZE = 20_000  # instructions of all patterns of one schema: some 7 ms to compile
UNUSUAL_CHARS = 5_000  # of a schema that the library has to look at
MAX_LEFT_OUT = 30  # keywords of one schema
SMALL_CHARS = 2_000  # of a schema; more of these are kept compiled: each takes some hundred times its size
MAX_PROBLEMS = 5

_REFUSED_KEYWORDS = {"$anchor", "$dynamicAnchor", "$dynamicRef", "$recursiveAnchor", "$recursiveRef"}


@dataclass(frozen=True)  # not slotted: the validator is made when it is first needed
class Schema:
    """A checked schema; made by `compile_schema` alone.

    `nodes`: how many parts it has with its refs followed. `fits_plainly`: a quick test that never accepts too much.
    """

    content: JsonObject
    nodes: int
    test: SchemaTest
    fits_plainly: PlainTest | None = None

    @cached_property
    def validator(self) -> Any:
        from referencing import Registry

        return _find_draft(self.content)(self.content, registry=Registry())

    def problems(self, value: object, units: int = LOOP_UNITS) -> list[str]:
        """List what is wrong with a value: at most 5 texts, of a part `at /a/b: ...`, which never quote the value.

        A value that takes more than `units` of work to check is refused, every time.
        """
        if self.fits_plainly is not None and self.fits_plainly(value):
            return []
        if (reason := find_unfit_value(value)) is not None:
            return [reason]
        try:
            work = Work(units, self.nodes)  # of both looks together
            return [] if self.test.fits(value, work) else self._list_problems(value, work)
        except TooMuchWork:
            return [TOO_COSTLY]

    def _list_problems(self, value: object, work: Work) -> list[str]:
        """List what the validator finds, as far as the work reaches. Raises TooMuchWork where that is nothing."""
        found: list[str] = []
        with work.make_current():
            try:
                for error in islice(self.validator.iter_errors(value), MAX_PROBLEMS):
                    where = "".join(f"/{shorten(str(part))}" for part in error.absolute_path)
                    found.append(f"at {where}: {describe_problem(error)}" if where else describe_problem(error))
            except TooMuchWork:
                if not found and not self.test.is_exact:
                    raise
                return found or ["it does not fit; it is too large to say where"]
        return found


TOO_COSTLY = "it is too large to be checked against its schema"


def compile_schema(schema: JsonObject) -> Schema:
    """Check and compile a schema; equal schemas are compiled once. Raises SchemaRejected."""
    _measure(schema)
    text = _canonical_text(schema)
    return _compile_small(text) if len(text) <= SMALL_CHARS else _compile_large(text)


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


def _compile(text: str) -> Schema:
    schema: JsonObject = json.loads(text)
    expansion = _Expansion(schema)
    nodes, _ = expansion.measure(schema)
    if not expansion.is_plainly_valid:
        _check_keyword_values(schema, text)
    return Schema(schema, nodes, compile_test(schema, expansion.resolve), compile_plain(schema))


_compile_small, _compile_large = lru_cache(maxsize=128)(_compile), lru_cache(maxsize=16)(_compile)


class Uncheckable(SchemaRejected):
    """A keyword that makes a schema one that can't be checked here, though it may be sound."""

    def __init__(self, schema: JsonObject, keyword: str, message: str, hint: str, pattern: str = "") -> None:
        super().__init__(message, hint)
        self._schema, self._keyword, self._pattern = schema, keyword, pattern

    def leave_out(self) -> None:
        """Take the keyword out of the schema, so that less is asked of values and nothing more."""
        if self._keyword == "patternProperties":
            del self._schema["patternProperties"][self._pattern]
            for others in ("additionalProperties", "unevaluatedProperties"):
                self._schema.pop(others, None)  # it is no longer known which properties are others
        else:
            del self._schema[self._keyword]
        if self._keyword == "pattern":  # a model may keep to it all the same
            stated = self._schema.get("description")
            said = f"{stated} " if isinstance(stated, str) else ""
            self._schema["description"] = f"{said}(pattern: {shorten(self._pattern, 200)})"


def relax_schema(schema: JsonObject) -> tuple[JsonObject, tuple[str, ...]]:
    """Return the schema without the keywords that can't be checked here, and why each of them can't.

    Of a schema of somebody else, who won't change it. Raises SchemaRejected where more is wrong than that.
    """
    _measure(schema)
    relaxed: JsonObject = json.loads(_canonical_text(schema))
    reasons: list[str] = []
    while True:
        try:
            _Expansion(relaxed).measure(relaxed)
        except Uncheckable as reason:
            if len(reasons) == MAX_LEFT_OUT:
                raise
            reason.leave_out()
            reasons.append(reason.message)
            continue
        compile_schema(relaxed)
        return relaxed if reasons else schema, tuple(dict.fromkeys(reasons))


class _Expansion:
    """Measures a schema with each `$ref` followed; refuses remote and recursive ones, and schemas that grow by them."""

    def __init__(self, root: JsonObject) -> None:
        self._root = root
        self._known: dict[str, tuple[int, int]] = {}  # $ref -> (nodes, depth) of what it stands for
        self._patterns = self._pattern_size = 0
        self._keywords = find_keywords(root)
        self.is_plainly_valid = self._keywords is not None

    def measure(self, schema: object, following: tuple[str, ...] = (), above: int = 0) -> tuple[int, int]:
        """Return (nodes, depth) of the expanded schema. `following`, `above`: the refs and levels that led here."""
        if not isinstance(schema, dict):
            return 1, 1
        _refuse_growth(1, above)
        self._check_keywords(schema)
        nodes, depth = 1, 0
        if isinstance(schema.get("$ref"), str):
            nodes, depth = self._measure_ref(schema, following, above)
        for inner in list_subschemas(schema):
            inner_nodes, inner_depth = self.measure(inner, following, above + 1)
            nodes, depth = nodes + inner_nodes, max(depth, inner_depth)
        _refuse_growth(nodes, depth)
        return nodes, depth + 1

    def _check_keywords(self, schema: JsonObject) -> None:
        """Refuse keywords that can't be checked, or not within the bounds."""
        if strange := sorted(_REFUSED_KEYWORDS & schema.keys()):
            raise SchemaRejected(f"{strange[0]} is not supported.", "Use $ref to #/$defs/NAME.")
        if "$id" in schema and schema is not self._root:
            raise SchemaRejected("$id inside a schema changes what its $refs mean.", "Remove it.")
        for keyword in ("unevaluatedItems", "unevaluatedProperties"):
            if keyword not in schema:
                continue
            if schema is not self._root:  # each level checks all levels below once more
                raise Uncheckable(
                    schema,
                    keyword,
                    f"{keyword} below the top of a schema is not supported.",
                    "Use it at the top alone.",
                )
            if "patternProperties" in schema:
                raise Uncheckable(schema, keyword, f"{keyword} beside patternProperties is not supported.", "Drop one.")
        if schema.get("enum") == []:  # which providers refuse
            raise Uncheckable(schema, "enum", "enum is empty, so that no value fits.", "List the values, or drop it.")
        if isinstance(pattern := schema.get("pattern"), str):
            self._check_pattern(pattern, schema, "pattern")
        if isinstance(named := schema.get("patternProperties"), dict):
            for pattern in tuple(named):
                self._check_pattern(pattern, schema, "patternProperties")
        self.is_plainly_valid = self.is_plainly_valid and has_usual_values(schema)

    def _check_pattern(self, pattern: str, schema: JsonObject, keyword: str) -> None:
        try:
            self._pattern_size += compile_safe_pattern(pattern).programsize
        except SchemaRejected as rejected:
            raise Uncheckable(schema, keyword, rejected.message, rejected.hint or "", pattern) from None
        self._patterns += 1
        if self._patterns > MAX_PATTERNS or self._pattern_size > PATTERNS_SIZE:
            raise Uncheckable(
                schema,
                keyword,
                f"The schema has over {MAX_PATTERNS} patterns, or too large ones together.",
                "Use fewer, or smaller ones.",
                pattern,
            )

    def _measure_ref(self, schema: JsonObject, following: tuple[str, ...], above: int) -> tuple[int, int]:
        ref: str = schema["$ref"]
        if ref in following:
            raise Uncheckable(
                schema, "$ref", f"$ref {shorten(ref)} leads back to itself.", "Spell the levels out instead."
            )
        if ref not in self._known:
            self._known[ref] = self.measure(self.resolve(ref), (*following, ref), above + 1)
        return self._known[ref]

    def resolve(self, ref: str) -> object:
        """Return the schema that a `$ref` names. Raises SchemaRejected."""
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
            target = None
        if not isinstance(target, dict | bool):
            raise SchemaRejected(f"$ref {shorten(ref)} leads to no schema.", "Define it under $defs.")
        return target


def _refuse_growth(nodes: int, depth: int) -> None:
    if nodes > EXPANDED_NODES or depth >= EXPANDED_DEPTH:
        raise SchemaRejected("The schema grows too large when its $refs are followed.", "Use fewer $refs.")


def _find_draft(schema: JsonObject) -> Any:
    stated = schema.get("$schema")
    return guarded_validator(stated if isinstance(stated, str) else "")


def _check_keyword_values(schema: JsonObject, text: str) -> None:
    """Have the library say whether the schema is one at all, which takes some 60 microseconds for each of its parts."""
    from jsonschema.exceptions import SchemaError

    if len(text) > UNUSUAL_CHARS:
        raise SchemaRejected(
            f"The schema has {len(text):,} characters, and a keyword with an unusual value; then {UNUSUAL_CHARS:,} are "
            "allowed.",
            "Correct the keyword, or make it smaller. The drafts 2020-12 and 7 are usual.",
        )
    try:
        _find_draft(schema).check_schema(schema)
    except SchemaError as error:
        where = "/".join(str(part) for part in error.absolute_path)
        raise SchemaRejected(
            f"The schema is not a valid JSON Schema, at /{shorten(where)}.", "Correct the keyword there."
        ) from None


def object_schema(required: Sequence[str] = (), /, **properties: JsonObject) -> JsonObject:
    """Return the schema of an object with these keys and no others."""
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


def text_schema(max_chars: int, min_chars: int = 1) -> JsonObject:
    """Return the schema of a text of `min_chars` to `max_chars` characters."""
    return {"type": "string", "minLength": min_chars, "maxLength": max_chars}
