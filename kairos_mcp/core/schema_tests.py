"""Compile schemas to tests, which say at once that a value certainly fits; a validator looks at the rest.

A test never accepts what the validator would not. An *exact* one also refuses only what the validator would.

Values of most calls are short and flat. For a *plain* schema, which describes one flat object without further keys, of
short texts, whole numbers, truth values and lists of these, there is a test that needs no other look at the value.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.safe_patterns import search_safely
from kairos_mcp.core.schema_keywords import find_keywords
from kairos_mcp.core.work import Work

PlainTest = Callable[[Any], bool]
Test = Callable[[Any, Work], bool]

MAX_PROPERTIES, MAX_ITEMS, MAX_CHARS = 40, 20, 1_000  # so that no value is near the size that is refused
MAX_INTEGER = 2**53
_NOTES = {"title", "description", "default", "examples"}  # keywords that say nothing about a value


def compile_plain(schema: JsonObject) -> PlainTest | None:
    """Return a test for values that certainly fit the schema; None for a schema that is not plain."""
    rules = _rules_of(schema, "object")
    properties = schema.get("properties", {})
    if rules is None or rules.keys() - {"properties", "required", "additionalProperties"}:
        return None
    others = rules.get("additionalProperties", True)
    if not isinstance(others, bool) or len(properties) > MAX_PROPERTIES:
        return None
    fits_other: PlainTest = _is_plain_value if others else lambda _: False
    tests: dict[str, PlainTest] = {}
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


def _rules_of(schema: Any, kind: str) -> JsonObject | None:
    """Return what the schema of a value of this type says besides the type; None for any other schema."""
    if not isinstance(schema, dict) or schema.get("type") != kind:
        return None
    return {keyword: rule for keyword, rule in schema.items() if keyword not in _NOTES and keyword != "type"}


def _compile_part(schema: Any) -> PlainTest | None:
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


def _compile_list(schema: Any) -> PlainTest | None:
    """Return a test for a list of texts, whole numbers or truth values."""
    rules = _rules_of(schema, "array")
    if rules is None or rules.keys() - {"items", "minItems", "maxItems"}:
        return None
    if (fits_item := _compile_part(rules.get("items"))) is None:
        return None
    test, least, most = fits_item, rules.get("minItems", 0), min(rules.get("maxItems", MAX_ITEMS), MAX_ITEMS)
    return lambda value: type(value) is list and least <= len(value) <= most and all(map(test, value))


class SchemaTest(NamedTuple):
    """A test for values, checked before by `find_unfit_value`. `is_exact`: what it refuses does not fit."""

    fits: Test
    is_exact: bool


def compile_test(root: JsonObject, resolve: Callable[[str], object]) -> SchemaTest:
    """Compile a schema whose `$ref`s, resolved by `resolve`, lead nowhere back. Of a draft that is not known here the
    test accepts nothing."""
    keywords = find_keywords(root)
    return _DOUBT if keywords is None else _TestCompiler(resolve, keywords).compile(root)


_NUMERIC: dict[str, Callable[[Any, Any], bool]] = {
    "minimum": lambda value, rule: value >= rule,
    "maximum": lambda value, rule: value <= rule,
    "exclusiveMinimum": lambda value, rule: value > rule,
    "exclusiveMaximum": lambda value, rule: value < rule,
    "multipleOf": lambda value, rule: value % rule == 0,
}
_SIZES: dict[str, tuple[type, Callable[[int, int], bool]]] = {
    "minLength": (str, int.__ge__),
    "maxLength": (str, int.__le__),
    "minItems": (list, int.__ge__),
    "maxItems": (list, int.__le__),
    "minProperties": (dict, int.__ge__),
    "maxProperties": (dict, int.__le__),
}
_OF_OBJECTS = {"properties", "patternProperties", "additionalProperties"}
_TYPES: dict[str, Callable[[Any], bool]] = {
    "string": lambda value: isinstance(value, str),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
}


def _fits_none(_value: Any, _work: Work) -> bool:
    return False


_ANY, _NONE, _DOUBT = (
    SchemaTest(lambda _value, _work: True, True),
    SchemaTest(_fits_none, True),
    SchemaTest(_fits_none, False),
)


class _TestCompiler:
    """Compiles the parts of one schema; a keyword that it does not know makes its part a doubt, which accepts none."""

    def __init__(self, resolve: Callable[[str], object], keywords: frozenset[str]) -> None:
        self._resolve = resolve
        self._keywords = keywords
        self._known: dict[str, SchemaTest] = {}

    def compile(self, schema: object) -> SchemaTest:
        if not isinstance(schema, dict):
            return _ANY if schema is True else _NONE if schema is False else _DOUBT
        parts = [
            part
            for keyword, rule in schema.items()
            if keyword in self._keywords and keyword not in _OF_OBJECTS
            if (part := self._compile_keyword(keyword, rule, schema)) is not _ANY
        ]
        if _OF_OBJECTS & schema.keys():
            parts.append(self._compile_members(schema))
        if any(part is _DOUBT for part in parts):
            return _DOUBT
        tests = tuple(part.fits for part in parts)

        def fits_all(value: Any, work: Work) -> bool:
            work.spend(len(tests) + 1)
            for fits in tests:  # noqa: SIM110 - a generator costs as much as all tests
                if not fits(value, work):
                    return False
            return True

        return SchemaTest(fits_all, all(part.is_exact for part in parts)) if tests else _ANY

    def _compile_keyword(self, keyword: str, rule: Any, schema: JsonObject) -> SchemaTest:
        match keyword:
            case _ if keyword in _SIMPLE:
                return _SIMPLE[keyword](rule)
            case "propertyNames":
                return _for_each(dict, self.compile(rule))
            case "items" if isinstance(rule, dict | bool):
                return _for_each(list, self.compile(rule), len(schema.get("prefixItems", ())))
            case "prefixItems":
                return _compile_first_items([self.compile(each) for each in rule])
            case "allOf" | "anyOf" | "oneOf":
                return _combine(keyword, [self.compile(each) for each in rule])
            case "not":
                test = self.compile(rule)
                return SchemaTest(lambda value, work: not test.fits(value, work), True) if test.is_exact else _DOUBT
            case "$ref":
                return self._compile_ref(rule, schema)
            case _:
                return _DOUBT

    def _compile_ref(self, ref: str, schema: JsonObject) -> SchemaTest:
        if len(schema.keys() & self._keywords) > 1 and "prefixItems" not in self._keywords:
            return _DOUBT  # drafts differ in what stands beside a $ref
        if ref not in self._known:
            self._known[ref] = self.compile(self._resolve(ref))
        return self._known[ref]

    def _compile_members(self, schema: JsonObject) -> SchemaTest:
        named = {name: self.compile(inner) for name, inner in schema.get("properties", {}).items()}
        by_pattern = [(text, self.compile(inner)) for text, inner in schema.get("patternProperties", {}).items()]
        others = self.compile(schema.get("additionalProperties", True))
        if any(test is _DOUBT for test in (*named.values(), others, *(test for _, test in by_pattern))):
            return SchemaTest(lambda value, _: not isinstance(value, dict), False)
        tests = {name: test.fits for name, test in named.items()}

        def fits_members(value: Any, work: Work) -> bool:
            if not isinstance(value, dict):
                return True
            work.spend(len(value))
            for name, member in value.items():
                own = tests.get(name)
                if own is not None and not own(member, work):
                    return False
                is_known = own is not None
                for text, test in by_pattern:
                    if search_safely(text, name, work):
                        is_known = True
                        if not test.fits(member, work):
                            return False
                if not is_known and not others.fits(member, work):
                    return False
            return True

        is_exact = all(test.is_exact for test in (*named.values(), others, *(test for _, test in by_pattern)))
        return SchemaTest(fits_members, is_exact)


def _compile_type(rule: Any) -> SchemaTest:
    names = rule if isinstance(rule, list) else [rule]
    if not all(name in _TYPES for name in names):
        return _DOUBT
    checks = [_TYPES[name] for name in names]
    if len(checks) == 1:
        (check,) = checks
        return SchemaTest(lambda value, _: check(value), True)
    return SchemaTest(lambda value, _: any(check(value) for check in checks), True)


def _compile_choices(choices: list[Any]) -> SchemaTest:
    if any(isinstance(choice, dict | list) for choice in choices):
        return _DOUBT
    known = {(isinstance(choice, bool), choice) for choice in choices}  # True == 1, which JSON tells apart

    def is_choice(value: Any, _work: Work) -> bool:
        return not isinstance(value, dict | list | tuple) and (isinstance(value, bool), value) in known

    return SchemaTest(is_choice, True)


def _compile_required(names: list[str]) -> SchemaTest:
    def has_all(value: Any, work: Work) -> bool:
        work.spend(len(names) // 4)
        return not isinstance(value, dict) or all(name in value for name in names)

    return SchemaTest(has_all, True) if isinstance(names, list) else _DOUBT


def _compile_size(kind: type, compare: Callable[[int, int], bool], rule: int) -> SchemaTest:
    return SchemaTest(lambda value, _: not isinstance(value, kind) or compare(len(value), rule), True)  # type: ignore[arg-type]  # each kind has a length


def _compile_number(compare: Callable[[Any, Any], bool], rule: Any) -> SchemaTest:
    if not isinstance(rule, int) or isinstance(rule, bool):
        return SchemaTest(lambda value, _: not _TYPES["number"](value), False)  # of rounding the validator decides
    return SchemaTest(lambda value, _: not _TYPES["number"](value) or compare(value, rule), True)


def _compile_unique(rule: bool) -> SchemaTest:
    def is_unique(value: Any, work: Work) -> bool:
        if not isinstance(value, list) or not rule:
            return True
        work.spend(len(value))
        return all(isinstance(item, str) for item in value) and len(set(value)) == len(value)

    return SchemaTest(is_unique, False)  # of other items the validator decides


_SIMPLE: dict[str, Callable[[Any], SchemaTest]] = {
    "format": lambda _: _ANY,  # a note: nothing checks it here
    "type": _compile_type,
    "enum": _compile_choices,
    "const": lambda rule: _compile_choices([rule]),
    "required": _compile_required,
    "pattern": lambda pattern: SchemaTest(
        lambda value, work: not isinstance(value, str) or search_safely(pattern, value, work), True
    ),
    "uniqueItems": _compile_unique,
    **{keyword: partial(_compile_number, compare) for keyword, compare in _NUMERIC.items()},
    **{keyword: partial(_compile_size, kind, compare) for keyword, (kind, compare) in _SIZES.items()},
}


def _for_each(kind: type[dict[str, Any]] | type[list[Any]], test: SchemaTest, first: int = 0) -> SchemaTest:
    """Return the test for each name of an object, or for each item of a list from number `first` on."""
    if test is _ANY:
        return _ANY
    if test is _DOUBT:
        return SchemaTest(lambda value, _: not isinstance(value, kind) or len(value) <= first, False)
    fits_one = test.fits

    def fits_each(value: Any, work: Work) -> bool:
        if not isinstance(value, kind):
            return True
        for item in list(value)[first:] if first else value:  # noqa: SIM110 - as above
            if not fits_one(item, work):
                return False
        return True

    return SchemaTest(fits_each, test.is_exact)


def _compile_first_items(tests: list[SchemaTest]) -> SchemaTest:
    def fits_first(value: Any, work: Work) -> bool:
        work.spend(len(tests))
        return not isinstance(value, list) or all(
            test.fits(item, work) for test, item in zip(tests, value, strict=False)
        )

    return SchemaTest(fits_first, all(test.is_exact for test in tests))


def _combine(keyword: str, tests: list[SchemaTest]) -> SchemaTest:
    is_exact = all(test.is_exact for test in tests)
    if keyword == "oneOf" and not is_exact:
        return _DOUBT

    def fits(value: Any, work: Work) -> bool:
        work.spend(len(tests))
        results = (test.fits(value, work) for test in tests)
        match keyword:
            case "allOf":
                return all(results)
            case "anyOf":
                return any(results)
            case _:
                return sum(islice(filter(None, results), 2)) == 1

    return SchemaTest(fits, is_exact)
