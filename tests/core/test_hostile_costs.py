"""What comes from outside costs a bounded number of steps, whatever it holds: schemas, values, patterns, JSON, files.

Counted are the calls that the interpreter makes, of Python and of C, which any machine counts alike. The slow sweep
measures time and memory as well, over 2,000 inputs.
"""

from __future__ import annotations

import json
import random
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.counted_calls import count_calls

from kairos_mcp.core import jsonc
from kairos_mcp.core.errors import BadArguments, KairosError
from kairos_mcp.core.flow_text import read_records
from kairos_mcp.core.input_checks import Undecodable, decode_object, parse_strict_json
from kairos_mcp.core.json_bounds import MAX_VALUES, MESSAGE_VALUES, ValueCounter, has_more_values
from kairos_mcp.core.json_schema import compile_schema, relax_schema
from kairos_mcp.core.patterns import compile_glob, compile_line_pattern, compile_line_search
from kairos_mcp.models.answers import parse_completion, to_stored_form
from kairos_mcp.models.written_calls import MAX_WRITTEN_CHARS, find_written_calls
from kairos_mcp.server.arguments.planner import PlannerRun
from kairos_mcp.server.framing import FramedLine, UnreadableLine, parse_line
from kairos_mcp.server.validation import validate_arguments
from kairos_mcp.settings.bounded_files import read_bounded

SAMPLE, SWEEP = 120, 2_000
MOST_CALLS = 500_000  # of one input; a call takes some 0.1 microseconds
MOST_S = 0.05
MOST_COMMAND_S = 2.0  # of a file that a command reads in a process of its own
MOST_BYTES = 100 * 2**20
OF_COMMANDS = {"a host's file"}
KINDS = 11

Json = Any


class HostileInput(NamedTuple):
    """An input that somebody may send, and what this program does with it in its event loop."""

    kind: str
    take: Callable[[], object]


def _deep(levels: int, wrap: Callable[[Json], Json], inner: Json) -> Json:
    for _ in range(levels):
        inner = wrap(inner)
    return inner


def _hostile_schemas(random_: random.Random) -> Iterator[tuple[Json, Json]]:
    """Schemas, each with a value that makes it work."""
    n = random_.choice((5, 30, 200, 600, 1_900))
    size = random_.choice((10, 300, 2_000, 19_000))
    names = {f"{'ab'[i % 2] * (i % 40)}{i}": i for i in range(size)}
    items = [random_.choice((i, str(i), {"k": i}, [i])) for i in range(size)]
    yield {"patternProperties": {f"^a*{i}?b*$": {"type": "integer"} for i in range(n)}}, names
    yield {"allOf": [{"contains": {"const": -i}} for i in range(n)]}, items
    yield {"allOf": [{"uniqueItems": True}] * n}, items
    yield {"anyOf": [{"items": {"type": "string", "minLength": i}} for i in range(n)]}, items
    yield {"oneOf": [{"required": [f"x{i}"]} for i in range(n)]}, names
    yield {"enum": [{"k": [i] * 50} for i in range(n // 10)]}, {"k": [n] * 50}
    yield {"items": {"enum": list(range(n))}}, items
    yield {"items": {"enum": [[i] * 90 for i in range(20)]}}, [[3] * 90] * (size // 90)
    yield {"unevaluatedProperties": False, "allOf": [{"properties": {f"x{i}": {}}} for i in range(n)]}, names
    yield {"unevaluatedItems": False, "anyOf": [{"prefixItems": [{}] * 3}] * n}, items
    unevaluated = _deep(24, lambda inner: {"properties": {"a": inner}, "unevaluatedProperties": inner}, {})
    yield {"properties": {"a": unevaluated}}, _deep(24, lambda inner: {"a": inner}, {})
    refs = {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 5} for i in range(5)} | {"d5": {"type": "object"}}
    yield {"$ref": "#/$defs/d0", "$defs": refs}, names
    yield {"items": {"$ref": "#/$defs/d0"}, "$defs": refs}, items
    yield _deep(10, lambda inner: {"anyOf": [inner, inner]}, {"items": {"type": "null"}}), items
    yield _deep(9, lambda inner: {"not": {"oneOf": [inner, inner]}}, {"items": {"type": "string"}}), items
    yield _deep(13, lambda inner: {"items": inner}, {"type": "null"}), _deep(13, lambda inner: [inner] * 2, 0)
    yield {"items": {}, "contains": {}, "additionalProperties": {}, "propertyNames": {}}, items
    yield {"items": [{}] * n, "$schema": "http://json-schema.org/draft-07/schema#"}, items
    yield {"if": {"items": {"type": "string"}}, "then": {"maxItems": 1}, "else": {"uniqueItems": True}}, items
    yield {"dependentSchemas": {f"{i}": {"minProperties": i} for i in range(n)}}, names
    yield {"propertyNames": {"pattern": "^(a|b)*a(a|b){20}$"}}, names
    yield {"items": {"pattern": "(a|b)*a(a|b){200}$"}}, ["ab" * random_.choice((10, 1_000, 100_000))] * 10
    yield {"pattern": random_.choice(PATTERNS)}, "aB1 " * random_.choice((1, 1_000, 1_000_000))
    yield {"$schema": "http://json-schema.org/draft-04/schema#", "properties": {f"p{i}": {} for i in range(n)}}, names
    yield {"properties": {f"p{i}": {"type": "strin"} for i in range(n)}}, names
    yield {"required": [f"x{i}" for i in range(n)], "items": {"multipleOf": 0.1}}, items


PATTERNS = (
    r"\pL{300}",
    r"(?i)" + r"\pL" * 300,
    r"(\pL{3}){300}",
    r"(\pL\pN\pZ){90}",
    r"(a|b)*a(a|b){500}$",
    r"(?:a?){900}a{900}c",
    r".{1000}",
    r"((((a{10}){10}){10}){10})",
    "(" * 400 + "a" + ")*" * 400,
    "(?i)" + "[à-ÿ]" * 190,
    "|".join(f"a{i}" for i in range(200)),
    r"(?=a)b",
    "[" * 900,
    r"[^\x{0}-\x{10fffe}]{999}",
)


def _hostile_texts(random_: random.Random) -> Iterator[str]:
    """Texts that somebody gives for JSON."""
    size = random_.choice((1_000, 30_000, 400_000))
    yield "{}" * (5 * size)
    yield '"' + "{}" * (5 * size)
    yield "[" + "{}," * size + "0]"
    yield "[" + "[]," * size + "0]"
    yield "[" * size
    yield '{"a":' * size
    yield '{"a":"' + "\\n,[]{}" * size + '"}'
    yield '{"a":"' + '\\"' * size + '"}'
    yield json.dumps({f"k{i}": i for i in range(size)})
    yield '{"a":1,' * (size // 10) + "}"
    yield "```json\n{}\n```\n" * (size // 10)
    yield "```json" + " " * size + "x\n{}\n```"
    yield ("```" + " a" * 20 + "\n") * (size // 50)
    yield "said {" + '"' * size
    yield "prose [1], {" * (size // 10)
    yield "[" + "1e999," * size + "0]"
    yield "[" + "9" * size + "]"
    yield "[-" + "0." * size + "]"
    yield "\\" * size + '"' * 9
    yield "<function_calls>" + " " * size + "x"
    yield "<function=a>" + "<parameter=a>[0]</parameter>" * (size // 30) + "</function>"
    yield "é€🎉" * size
    yield '{"' + "k" * size + '":{"a":{}}}' + " " * size


def _take_text(take: Callable[[str], object], text: str) -> object:
    try:
        return take(text)
    except (Undecodable, ValueError, RecursionError):
        return None


def _take_message(text: str) -> object:
    return parse_line(FramedLine(f'{{"jsonrpc":"2.0","id":1,"method":"m","params":{{"a":{text}}}}}'.encode()))


def _take_value(schema: Json, value: Json) -> object:
    try:
        return compile_schema(schema).problems(value)
    except KairosError:
        return None


def _take_relaxed(schema: Json, value: Json) -> object:
    try:
        return compile_schema(relax_schema(schema)[0]).problems(value)
    except KairosError:
        return None


def _take_answer(value: Json) -> object:
    try:
        return parse_completion(to_stored_form({"content": value, "tool_calls": [value]}, is_json_asked=True), "r")
    except KairosError:
        return None


def _take_arguments(value: Json) -> object:
    try:
        return validate_arguments(PlannerRun, {"goal": "g", "tools": value})
    except KairosError:
        return None


def _take_pattern(pattern: str) -> object:
    for take in (compile_line_pattern, compile_glob):
        with suppress(KairosError):
            take(pattern)
    return None


TEXTS: dict[str, Callable[[str], object]] = {
    "a reply": decode_object,
    "a JSON text": parse_strict_json,
    "a message": _take_message,
    "a host's file": jsonc.parse,
    "a call that a model wrote": lambda text: find_written_calls(text[:MAX_WRITTEN_CHARS]),
}


def hostile_inputs(seed: int) -> Iterator[HostileInput]:
    """Make inputs without end, the same for the same seed."""
    random_ = random.Random(seed)
    while True:
        for schema, value in _hostile_schemas(random_):
            yield HostileInput("a value against a schema", lambda s=schema, v=value: _take_value(s, v))
            yield HostileInput("a server's schema", lambda s=schema, v=value: _take_relaxed(s, v))
            yield HostileInput("an answer", lambda v=value: _take_answer(v))
            yield HostileInput("arguments", lambda v=value: _take_arguments(v))
            yield HostileInput("a schema in arguments", lambda s=schema: _take_arguments(s))
        for text in _hostile_texts(random_):
            for kind, take in TEXTS.items():
                yield HostileInput(kind, lambda f=take, t=text: _take_text(f, t))
        for pattern in PATTERNS:
            changed = pattern + random_.choice(("", "x", "{2}", ".*", "|y"))
            yield HostileInput("a pattern", lambda p=changed: _take_pattern(p))


def spread(count: int, step: int, seed: int) -> list[HostileInput]:
    """Take so many inputs, one of each few: of every kind."""
    return list(islice(hostile_inputs(seed), 0, count * step, step))


def test_a_sample_of_hostile_inputs_costs_a_bounded_number_of_calls() -> None:
    inputs = spread(SAMPLE, 7, seed=1)
    assert len({hostile.kind for hostile in inputs}) == KINDS
    for hostile in inputs:
        assert count_calls(hostile.take) < MOST_CALLS, hostile


def test_an_answer_of_too_many_values_is_running_text_for_the_rules_of_flow() -> None:
    assert read_records(None, json.dumps([{"a": "b"}] * 1_000)) == ([["b"]] * 1_000, "")
    assert read_records(None, json.dumps([{"a": "b"}] * MAX_VALUES))[0] == []


@pytest.mark.parametrize("patterns", [1, 5, 30])
@pytest.mark.parametrize("fits", [True, False])
def test_many_names_looked_for_by_many_patterns_cost_a_bounded_number_of_calls(patterns: int, fits: bool) -> None:
    schema = {"patternProperties": {f"^a*{i}?b*$": {"type": "integer"} for i in range(patterns)}}
    for names in (700, 3_000, 19_000):
        value = {f"{'ab'[i % 2] * (i % 40)}{i}": i for i in range(names)} | {"b": 0 if fits else "0"}
        assert count_calls(lambda given=value: _take_value(schema, given)) < 350_000


def test_a_value_that_two_ways_look_at_is_bounded_once() -> None:
    """First a quick test, then, to say what is wrong, the library's validator."""
    schema = {"patternProperties": {f"^a{i}$": {"type": "integer"} for i in range(5)}}
    found = [compile_schema(schema).problems({f"b{i}": i for i in range(names)} | {"a1": ""}) for names in (300, 1_500)]
    assert ["/a1" in problem for (problem,) in found] == [True, False]


@pytest.mark.slow
def test_no_hostile_input_holds_the_event_loop_or_takes_much_memory() -> None:
    compile_schema({"items": {"minLength": 1}}).problems([""])  # what is imported once is not charged to the first
    least: dict[str, float] = {}
    for hostile in islice(hostile_inputs(seed=2), SWEEP):
        before = _resident_bytes()
        most = MOST_COMMAND_S if hostile.kind in OF_COMMANDS else MOST_S
        spent = min(_time(hostile.take) for _ in range(2))  # what is kept makes the second try cheaper, as in a server
        if spent >= most:  # on a machine that others keep busy
            spent = min(_time(hostile.take) for _ in range(10))
        least[hostile.kind] = max(least.get(hostile.kind, 0), spent)
        assert spent < most, (hostile, spent)
        assert _resident_bytes() - before < MOST_BYTES, hostile
    print({kind: f"{1000 * spent:.1f} ms" for kind, spent in least.items()})


def _time(take: Callable[[], object]) -> float:
    begun = time.process_time()
    take()
    return time.process_time() - begun


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.parametrize("most", [1, 5, MAX_VALUES, MESSAGE_VALUES])
def test_values_are_counted_outside_strings_alone(most: int) -> None:
    fits = json.dumps(['[{,\\"]}' * 3] * (most - 1) if most > 1 else '\\",[{')
    assert not has_more_values(fits, most)
    assert has_more_values(json.dumps([",\\"] * most), most)
    assert has_more_values(json.dumps({f"{n}": {} for n in range(most)}), most)


JSON_VALUES = st.recursive(
    st.text('\\"[]{},:a\n') | st.none(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text('\\"[a'), inner, max_size=4),
    max_leaves=12,
)


@given(JSON_VALUES)
def test_law_every_value_is_counted_and_none_that_stands_in_a_string(value: Any) -> None:
    def count(part: Any) -> int:
        """An empty list or object counts as one that holds a value."""
        if not isinstance(part, dict | list):
            return 0
        return max(len(part), 1) + sum(map(count, part.values() if isinstance(part, dict) else part))

    text, values = json.dumps(value), 1 + count(value)
    assert not has_more_values(text, values)
    assert values == 1 or has_more_values(text, values - 1)
    for step in (1, 3):
        counter = ValueCounter(values)
        parts = [text.encode()[at : at + step] for at in range(0, len(text.encode()), step)]
        assert not any(list(map(counter.feed, parts)))


def test_a_message_of_too_many_values_is_none() -> None:
    """Over HTTP and over stdio; before any library builds it."""
    text = '{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":[%s0]}}'
    assert not isinstance(parse_line(FramedLine((text % ("0," * (MAX_VALUES - 20))).encode())), UnreadableLine)
    refused = parse_line(FramedLine((text % ("0," * MAX_VALUES)).encode()))
    assert isinstance(refused, UnreadableLine)
    assert f"{MAX_VALUES:,} values" in refused.text


@pytest.mark.parametrize("name", ["zero", "large"])
def test_a_file_without_end_is_read_up_to_its_bound(tmp_path: Path, name: str) -> None:
    file = Path("/dev/zero")
    if name == "large":
        file = tmp_path / name
        file.write_bytes(b" " * 2_001)
    with pytest.raises(OSError, match="too large"):
        read_bounded(file, 2_000)
    assert len(read_bounded(file, 2_001)) == 2_001 if name == "large" else True


def test_a_search_in_the_event_loop_is_refused_where_its_pattern_and_text_are_both_large() -> None:
    matches = compile_line_search("(?:a?){900}a{900}c")
    with pytest.raises(BadArguments):
        matches(b"a" * 1_000_000)
    matches = compile_line_search("error|fail(ed|ure)")
    assert [matches(line) for line in (b"all is well " * 1_000, b"a failure")] == [False, True]
