"""JSON Schema from outside: what is unsafe is refused, what is wrong is said without an echo."""

import socket
import time
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.counted_calls import count_calls

from kairos_mcp.core.errors import SchemaRejected
from kairos_mcp.core.json_schema import compile_schema, relax_schema
from kairos_mcp.core.json_schema_rules import guarded_validator
from kairos_mcp.core.safe_patterns import compile_safe_pattern
from kairos_mcp.core.schema_keywords import KEYWORDS
from kairos_mcp.core.work import Work

ARGUMENTS = {
    "type": "object",
    "properties": {
        "x": {"type": "integer", "minimum": 1, "maximum": 10},
        "s": {"type": "string", "maxLength": 1000},
    },
    "required": ["x"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("value", [{"x": 1}, {"x": 10, "s": "z" * 1000}])
def test_what_fits_has_no_problems(value: Any) -> None:
    assert compile_schema(ARGUMENTS).problems(value) == []


@pytest.mark.parametrize(
    ("value", "place"),
    [
        pytest.param({}, "needs x", id="ARGS-001"),
        pytest.param({"x": 1, "zzz": 5}, "unknown keys (zzz)", id="ARGS-002"),
        pytest.param({"x": "1"}, "at /x: ", id="ARGS-003"),
        pytest.param({"x": 1.0}, "at /x: ", id="ARGS-005"),
        pytest.param({"x": float("nan")}, "NaN and Infinity are no", id="ARGS-007"),
        pytest.param([1], "must be object, is array", id="ARGS-009"),
        pytest.param({"x": 1, "s": "z" * 2_000_000}, "at /s: ", id="ARGS-012"),
        pytest.param({"x": True}, "at /x: ", id="a boolean is no number"),
        pytest.param({"x": 11}, "at /x: ", id="above the maximum"),
        pytest.param({"x": None}, "at /x: ", id="null"),
        pytest.param({"x": "\ud800"}, "a text holds a lone surrogate", id="a lone surrogate"),
    ],
)
def test_a_problem_names_its_place_and_echoes_nothing(value: Any, place: str) -> None:
    (problem,) = compile_schema(ARGUMENTS).problems(value)
    assert problem.startswith(place)
    assert len(problem) < 300
    assert "zzzzzz" not in problem


@pytest.mark.parametrize(
    "schema",
    [
        pytest.param({"$ref": "http://127.0.0.1:9/x"}, id="ARGS-013"),
        pytest.param({"$ref": "#"}, id="ARGS-014"),
        pytest.param({"properties": {f"p{i}": {"type": "string"} for i in range(20_000)}}, id="ARGS-018"),
        pytest.param({"$ref": "file:///etc/passwd"}, id="a file"),
        pytest.param({"$ref": "#/$defs/none"}, id="a ref that leads nowhere"),
        pytest.param({"properties": {"child": {"$ref": "#"}}}, id="a tree"),
        pytest.param(
            {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"items": {"$ref": "#/$defs/a"}}}}, id="a ring of two"
        ),
        pytest.param({"$dynamicRef": "#x"}, id="dynamic"),
        pytest.param({"properties": {"a": {"$id": "http://x/", "$ref": "#/y"}}}, id="another base"),
        pytest.param({"pattern": "(?=a)b"}, id="look-ahead"),
        pytest.param({"pattern": r"(a)\1"}, id="back-reference"),
        pytest.param({"patternProperties": {"(?<!a)b": {}}}, id="look-behind in a name"),
        pytest.param({"patternProperties": {"a": {}}, "unevaluatedProperties": False}, id="unevaluated"),
        pytest.param({"type": "strin"}, id="no such type"),
        pytest.param({"minimum": float("nan")}, id="NaN"),
        pytest.param({"title": "\ud800"}, id="a lone surrogate"),
        pytest.param({"const": {1, 2}}, id="no JSON"),
        pytest.param({"description": "x" * 200_001}, id="too many bytes"),
        pytest.param(
            {
                "$ref": "#/$defs/d0",
                "$defs": {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 10} for n in range(9)} | {"d9": {}},
            },
            id="a billion when expanded",
        ),
        pytest.param(
            {
                "$ref": "#/$defs/d0",
                "$defs": {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(500)} | {"d500": {}},
            },
            id="a long chain",
        ),
    ],
)
def test_an_unsafe_schema_is_refused_at_once(schema: Any) -> None:
    begun = time.process_time()
    with pytest.raises(SchemaRejected):
        compile_schema(schema)
    assert time.process_time() - begun < 2


def test_a_remote_ref_opens_no_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        with pytest.raises(SchemaRejected):
            compile_schema({"$ref": f"http://127.0.0.1:{listener.getsockname()[1]}/x"})
        with pytest.raises(BlockingIOError):
            listener.accept()


def test_a_schema_nested_too_deep_is_refused_without_a_recursion_error() -> None:
    schema: dict[str, Any] = {}
    for _ in range(50_000):
        schema = {"not": schema}
    with pytest.raises(SchemaRejected):
        compile_schema(schema)


def test_a_pattern_that_stalls_a_backtracking_matcher_is_answered_at_once() -> None:  # ARGS-017
    schema = compile_schema({"type": "string", "pattern": "^(a+)+$"})
    begun = time.process_time()
    assert len(schema.problems("a" * 28 + "!")) == 1
    assert time.process_time() - begun < 0.1


def test_names_are_matched_by_the_safe_matcher_too() -> None:
    schema = compile_schema({"patternProperties": {"^(a+)+$": {"type": "integer"}}, "additionalProperties": False})
    assert schema.problems({"aaa": 1}) == []
    assert len(schema.problems({"a" * 40 + "!": 1})) == 1
    assert len(schema.problems({"aaa": "x"})) == 1


def test_local_refs_work_in_every_draft() -> None:
    for draft in ("https://json-schema.org/draft/2020-12/schema", "http://json-schema.org/draft-07/schema#"):
        schema = compile_schema(
            {
                "$schema": draft,
                "$defs": {"n": {"type": "integer"}},
                "properties": {"a": {"$ref": "#/$defs/n"}},
            }
        )
        assert schema.problems({"a": 1}) == []
        assert len(schema.problems({"a": 1.0})) == 1


def test_a_property_may_be_called_like_a_keyword() -> None:
    schema = compile_schema({"properties": {"$ref": {"type": "string"}, "$id": {"type": "string"}, "pattern": {}}})
    assert schema.problems({"$ref": "http://elsewhere", "pattern": "(?=a)"}) == []


def test_at_most_five_problems_are_told() -> None:
    schema = compile_schema({"items": {"type": "integer"}})
    assert len(schema.problems(["x"] * 19_000)) == 5


@pytest.mark.parametrize("keyword", ["anyOf", "oneOf"])
def test_alternatives_are_each_left_at_their_first_problem(keyword: str) -> None:
    schema = compile_schema({keyword: [{"title": str(n), "items": {"type": "integer"}} for n in range(40)]})
    begun = time.process_time()
    assert schema.problems(["x"] * 5_000) == [f"must fit {'exactly ' * (keyword == 'oneOf')}one of 40 alternatives"]
    assert time.process_time() - begun < 1  # all 200,000 problems of the branches take ten times as long
    assert schema.problems([1]) == ([] if keyword == "anyOf" else ["must fit exactly one of 40 alternatives"])


def test_what_is_missing_is_named_once_and_what_is_forbidden_is_said_so() -> None:
    schema = compile_schema({"required": ["a", "b"], "properties": {"c": False}})
    assert schema.problems({"c": 1}) == [
        "a part is not allowed: its schema is false",
        "needs a, b",
    ]


def test_items_that_must_be_unique_are_compared_in_linear_time() -> None:
    schema = compile_schema({"uniqueItems": True})
    items: list[object] = [{"n": n} for n in range(2_500)]
    begun = time.process_time()
    assert schema.problems(items) == []
    assert len(schema.problems([*items, {"n": 0}])) == 1
    assert time.process_time() - begun < 3


def test_equal_schemas_are_compiled_once() -> None:
    assert compile_schema({"type": "object", "title": "a"}) is compile_schema({"title": "a", "type": "object"})


PART = st.one_of(
    st.fixed_dictionaries(
        {"type": st.just("string")},
        optional={
            "minLength": st.integers(0, 3),
            "maxLength": st.integers(0, 5),
            "enum": st.just(["a", "bb", ""]),
            "pattern": st.just("^a"),
        },
    ),
    st.fixed_dictionaries(
        {"type": st.just("integer")},
        optional={"minimum": st.integers(-5, 5), "maximum": st.integers(-5, 5), "multipleOf": st.just(2)},
    ),
    st.fixed_dictionaries({"type": st.just("boolean")}, optional={"description": st.just("yes or no")}),
    st.just({"type": ["string", "null"]}),
)
LISTED = st.fixed_dictionaries(
    {"type": st.just("array"), "items": PART},
    optional={"minItems": st.integers(0, 2), "maxItems": st.integers(0, 3), "uniqueItems": st.just(True)},
)
FLAT_SCHEMA = st.fixed_dictionaries(
    {"type": st.just("object"), "properties": st.dictionaries(st.sampled_from("xyz"), PART | LISTED)},
    optional={
        "required": st.lists(st.sampled_from("xyzw"), unique=True),
        "additionalProperties": st.sampled_from((False, True, {"type": "string"})),
    },
)
SCALAR = st.one_of(
    st.sampled_from(("", "a", "bb", "abcd", "ä", "\ud800", 2**70, 1.0, float("nan"))),
    st.integers(-6, 6),
    st.booleans(),
    st.none(),
)
FLAT_VALUE = st.dictionaries(st.sampled_from("xyzw"), SCALAR | st.lists(SCALAR, max_size=4), max_size=4)


@settings(max_examples=300)
@given(FLAT_SCHEMA, FLAT_VALUE)
def test_the_quick_test_accepts_nothing_that_the_validator_refuses(schema: Any, value: Any) -> None:
    compiled = compile_schema(schema)
    if compiled.fits_plainly is not None and compiled.fits_plainly(value):
        assert replace(compiled, fits_plainly=None).problems(value) == []


def test_arguments_that_fit_a_plain_schema_need_no_validator() -> None:
    compiled = compile_schema(ARGUMENTS)
    assert compiled.problems({"x": 1, "s": "text"}) == []
    assert "validator" not in vars(compiled)


KEYS = st.sampled_from(("a", "b", "c1"))
LEAF_VALUE = st.one_of(st.none(), st.booleans(), st.integers(-3, 3), st.sampled_from(("", "a", "bb", "ä", 0.5, 2.0)))
ANY_VALUE = st.recursive(
    LEAF_VALUE, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=6
)
LEAF_SCHEMA = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(("string", "integer", "number", "object", "array", "null", ["string", "null"])),
        "enum": st.lists(ANY_VALUE, min_size=1, max_size=3),
        "const": ANY_VALUE,
        "minimum": st.sampled_from((0, 1, 0.5)),
        "exclusiveMaximum": st.just(2),
        "multipleOf": st.sampled_from((2, 0.5)),
        "minLength": st.integers(0, 2),
        "maxLength": st.integers(0, 2),
        "pattern": st.sampled_from(("^a", "b$", "[")) | st.just("ä"),
        "required": st.lists(KEYS, unique=True, max_size=2),
        "minItems": st.integers(0, 2),
        "maxProperties": st.integers(0, 2),
        "uniqueItems": st.booleans(),
        "format": st.just("date"),
        "$ref": st.sampled_from(("#/$defs/one", "#/$defs/two")),
    },
)
ANY_SCHEMA = st.recursive(
    LEAF_SCHEMA | st.booleans(),
    lambda inner: st.fixed_dictionaries(
        {},
        optional={
            "properties": st.dictionaries(KEYS, inner, max_size=2),
            "patternProperties": st.dictionaries(st.sampled_from(("^a", "1$")), inner, max_size=2),
            "additionalProperties": inner,
            "propertyNames": inner,
            "items": inner,
            "prefixItems": st.lists(inner, min_size=1, max_size=2),
            "allOf": st.lists(inner, min_size=1, max_size=2),
            "anyOf": st.lists(inner, min_size=1, max_size=2),
            "oneOf": st.lists(inner, min_size=1, max_size=2),
            "not": inner,
            "if": inner,
            "then": inner,
            "contains": inner,
            "additionalItems": inner,
        },
    ),
    max_leaves=5,
)
DRAFT_4 = "http://json-schema.org/draft-04/schema#"
DRAFTS = st.sampled_from((None, "http://json-schema.org/draft-07/schema#", DRAFT_4))


@settings(max_examples=200)
@given(ANY_SCHEMA.filter(lambda schema: isinstance(schema, dict)), LEAF_SCHEMA, ANY_VALUE, DRAFTS)
def test_law_a_compiled_test_agrees_with_the_validator(schema: Any, one: Any, value: Any, draft: str | None) -> None:
    """What it accepts fits; where it is exact, what it refuses does not."""
    whole = {**schema, "$defs": {"one": one, "two": {"type": "integer"}}} | ({"$schema": draft} if draft else {})
    try:
        compiled = compile_schema(whole)
    except SchemaRejected:
        return
    with Work(10**9).make_current():
        fits = not any(True for _ in compiled.validator.iter_errors(value))
    accepted = compiled.test.fits(value, Work(10**9))
    assert accepted <= fits
    if compiled.test.is_exact:
        assert accepted == fits


@settings(max_examples=100)
@given(ANY_SCHEMA.filter(lambda schema: isinstance(schema, dict)), DRAFTS.filter(lambda draft: draft != DRAFT_4))
def test_law_what_has_usual_values_throughout_is_a_valid_schema(schema: Any, draft: str | None) -> None:
    whole = schema | ({"$schema": draft} if draft else {})
    try:
        compiled = compile_schema(whole)
    except SchemaRejected:
        return
    compiled.validator.check_schema(whole)


def test_the_keywords_of_both_drafts_are_those_of_the_library() -> None:
    for stated, keywords in KEYWORDS.items():
        assert keywords == guarded_validator(stated).VALIDATORS.keys()


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        pytest.param({"patternProperties": {f"a{n}": {} for n in range(30)}}, {f"b{n}": 1 for n in range(9_000)}),
        pytest.param({"allOf": [{"contains": {"const": n}} for n in range(500)]}, ["x"] * 19_000),
        pytest.param({"items": {"anyOf": [{"const": n} for n in range(900)]}}, ["x"] * 9_000),
        pytest.param({"allOf": [{"uniqueItems": True}] * 900}, [{"n": n} for n in range(1_000)]),
        pytest.param({"items": {"enum": [[n] * 9 for n in range(190)]}}, [[1] * 9] * 1_900),
        pytest.param({"contains": {}, "allOf": [{"minContains": 1, "contains": {}}] * 400}, [1] * 19_000),
        pytest.param({"pattern": "(a|b)*a(a|b){200}$"}, "ab" * 500_000),
        pytest.param({"unevaluatedProperties": False, "allOf": [{}] * 900}, {f"b{n}": 1 for n in range(9_000)}),
    ],
)
def test_a_check_that_would_take_too_long_is_refused_in_counted_work(schema: Any, value: Any) -> None:
    compiled = compile_schema(schema)
    calls = count_calls(lambda: compiled.problems(value))
    assert calls < 500_000
    assert compiled.problems(value), "what can't be checked does not fit"
    assert compiled.problems(value) == compiled.problems(value)


def test_a_large_value_that_fits_is_checked_to_its_end() -> None:
    row = {"type": "object", "properties": {"id": {"type": "integer"}, "tags": {"items": {"type": "string"}}}}
    schema = compile_schema({"items": row | {"required": ["id"], "additionalProperties": False}})
    rows = [{"id": n, "tags": ["a", "b"]} for n in range(3_000)]
    assert schema.problems(rows) == []
    assert schema.problems([*rows, {"id": "x", "tags": []}]) != []


def test_a_truth_value_is_no_number_among_the_choices() -> None:
    for choices in ({"enum": [1, "a"]}, {"const": 1}, {"enum": [False]}):
        schema = compile_schema(choices)
        assert schema.problems(True)
        assert schema.problems(0)


@pytest.mark.parametrize("where", ["allOf", "items", "properties"])
def test_unevaluated_below_the_top_is_refused_with_a_reason(where: str) -> None:
    nested: Any = {"unevaluatedProperties": False}
    with pytest.raises(SchemaRejected, match="below the top"):
        compile_schema({where: {"allOf": [nested], "items": nested, "properties": {"a": nested}}[where]})
    compile_schema({"unevaluatedProperties": False, "properties": {"a": {}}})


@pytest.mark.parametrize(
    "pattern", [r"\pL{300}", "(?i)" + r"\pL" * 300, r"(\pL{3}){300}", "a" * 1_001, r"[^a]{1000}{9}"]
)
def test_a_pattern_that_takes_long_to_compile_is_refused(pattern: str) -> None:
    begun = time.process_time()
    with pytest.raises(SchemaRejected):
        compile_safe_pattern(pattern)
    assert time.process_time() - begun < 0.5


def test_many_patterns_of_one_schema_are_refused_before_they_fill_the_memory() -> None:
    large = r"\pL{20}"
    assert compile_safe_pattern(large).programsize > 10_000
    with pytest.raises(SchemaRejected, match="patterns"):
        compile_schema({"properties": {f"p{n}": {"pattern": f"{large}{n}"} for n in range(30)}})
    with pytest.raises(SchemaRejected, match="patterns"):
        compile_schema({"properties": {f"p{n}": {"pattern": f"a{n}"} for n in range(40)}})


def test_an_empty_enum_reaches_no_model() -> None:
    nothing_fits = {"type": "object", "properties": {"a": {"type": "array", "items": {"enum": []}}}}
    with pytest.raises(SchemaRejected):
        compile_schema(nothing_fits)
    kept, left_out = relax_schema(nothing_fits)
    assert (kept["properties"]["a"]["items"], len(left_out)) == ({}, 1)
