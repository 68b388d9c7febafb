"""A reply that has to hold one JSON object, strictly. Ids like LLMJSON-001 are those of the project's fault cases."""

import time
import tracemalloc
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError
from support.counted_calls import count_calls
from support.flow_runner import feed
from support.planner_inputs import brief, says

from kairos_mcp.core.errors import BadArguments
from kairos_mcp.core.input_checks import (
    MAX_PIECES,
    Placeholder,
    Undecodable,
    decode_object,
    find_unfit_value,
    first_problem,
    parse_strict_json,
    refuse_placeholders,
)
from kairos_mcp.core.messages import Completion, JsonObject
from kairos_mcp.flows.planner import planner
from kairos_mcp.flows.structured_answer import decode_output, decode_turn

DECIDE: JsonObject = {
    "type": "object",
    "properties": {
        "action": {"enum": ["code_edit", "noop"]},
        "target": {"type": "string"},
        "old_string": {"type": "string"},
        "new_string": {"type": "string"},
        "intent": {"type": "string"},
        "reason": {"type": "string"},
    },
    "required": ["action"],
    "additionalProperties": False,
}
REFLECT: JsonObject = {
    "type": "object",
    "properties": {
        "assessment": {"enum": ["success", "partial", "failure"]},
        "lessons": {"type": "array", "items": {"type": "string"}},
        "confidence": {"type": "number", "minimum": 0, "maximum": 1},
    },
    "required": ["assessment", "lessons", "confidence"],
    "additionalProperties": False,
}
NOOP = {"action": "noop", "reason": "x"}
FENCED = {"action": "code_edit", "target": "t.py", "old_string": "a", "new_string": "```py\nprint(1)\n```"}

GOOD: list[Any] = [
    pytest.param('Sure! Here it is:\n{"action":"noop","reason":"x"}\nHope this helps.', NOOP, id="LLMJSON-002"),
    pytest.param(
        '{"action":"code_edit","target":"t.py","old_string":"a","new_string":"```py\\nprint(1)\\n```"}',
        FENCED,
        id="LLMJSON-003",
    ),
    pytest.param('{"action":"noop","reason":"a\\u0000b"}', {"action": "noop", "reason": "a\0b"}, id="LLMJSON-030"),
    pytest.param('\ufeff\u200b{"action":"noop","reason":"x"}', NOOP, id="LLMJSON-035"),
    pytest.param('```json\n{"action":"noop","reason":"x"}\n```', NOOP, id="one fence"),
    pytest.param('I say:\n~~~\n{"action":"noop","reason":"x"}\n~~~\nThat is all.', NOOP, id="one fence in prose"),
    pytest.param('````md\n{"action":"noop","reason":"x"}\n````', NOOP, id="a longer fence"),
    pytest.param('```json {"action":"noop","reason":"x"}```', NOOP, id="a fence on one line"),
    pytest.param('Use {braces} so: {"action":"noop","reason":"x"}', NOOP, id="prose with braces"),
    pytest.param('It\'s "quoted {prose}": {"action":"noop","reason":"x"}', NOOP, id="prose with a quote"),
    pytest.param('See [1] and {"action":"noop","reason":"x"}', NOOP, id="prose with a citation"),
    pytest.param('{"action":"noop","reason":"}{"}', {"action": "noop", "reason": "}{"}, id="brackets in a string"),
    pytest.param('A 5" screen: {"action":"noop","reason":"x"}', NOOP, id="prose with a lone quote"),
    pytest.param('{"action":"noop","reason":"x"} is what I chose.', NOOP, id="prose behind it alone"),
    pytest.param('Not {"a":1}:\n```json\n{"action":"noop","reason":"x"}\n```', NOOP, id="a fence beside an object"),
    pytest.param('Not {"a":1}:\n~~~\n{"action":"noop","reason":"x"}\n~~~~', NOOP, id="a fence with a longer end"),
    pytest.param('{"action":"noop","reason":"äöü 🎉"}', {"action": "noop", "reason": "äöü 🎉"}, id="no ASCII"),
]
BAD: list[Any] = [
    pytest.param('{"action":"noop","reason":"x",}', id="LLMJSON-004"),
    pytest.param('{"action":"code_edit","target":"t.py","old_string":"a=1","new_string":"a=', id="LLMJSON-006"),
    pytest.param('{"action":"noop"} {"action":"code_edit","target":"t.py"}', id="LLMJSON-008"),
    pytest.param('{"action":"noop","action":"code_edit","target":"t.py"}', id="LLMJSON-009"),
    pytest.param('{"action":"delete_repo","target":"/"}', id="LLMJSON-010"),
    pytest.param('[{"action":"noop"}]', id="LLMJSON-012"),
    pytest.param('"noop"', id="LLMJSON-013"),
    pytest.param("", id="LLMJSON-015"),
    pytest.param("[" * 100_000 + "]" * 100_000, id="LLMJSON-025"),
    pytest.param('{"action":"noop","reason":"' + "x" * 20_000_000 + '"}', id="LLMJSON-027"),
    pytest.param('{"n":' + "9" * 5_000 + "}", id="LLMJSON-028"),
    pytest.param('{"action":"noop","reason":"\\ud800"}', id="LLMJSON-029"),
    pytest.param('{"action":"noop","reason":"\ud800"}', id="LLMJSON-029 unescaped"),
    pytest.param("not json", id="LLMJSON-033"),
    pytest.param("garbage", id="LLMJSON-034"),
    pytest.param('{"action":"noop" /* , "action":"code_edit" */}', id="LLMJSON-037"),
    pytest.param('Here: [{"action":"noop"}]', id="an array in prose"),
    pytest.param('{"action":"code_edit","x":{"action":"noop"},}', id="a whole object inside a broken one"),
    pytest.param('So: {"action":"code_edit","x":{"action":"noop"}', id="a whole object inside a cut one"),
    pytest.param('```json\n{"action":"noop"}\n```\n```json\n{"action":"noop"}\n```', id="two fences"),
    pytest.param('```json\n{"action":"noop","reason":"x"', id="a fence that is cut off"),
    pytest.param('```\n{"action":"noop"}\n```\n```\n{"action":', id="a whole fence and one that is cut off"),
    pytest.param('```json\n{"action":"noop","action":"noop"}\n```', id="duplicate keys in a fence"),
    pytest.param('Not {"a":1}:\n```\n{"action":"noop"}\n```json', id="a fence that another one follows"),
    pytest.param('Not {"a":1}:\n~~~\n{"action":"noop"}\n```', id="a fence with another one's end"),
    pytest.param('Not {"a":1}:\n````\n{"action":"noop"}\n```', id="a fence with a shorter end"),
    pytest.param('{"action":"noop","reason":1e999}', id="a float that overflows"),
    pytest.param("null", id="null"),
    pytest.param(" \ufeff\n", id="only invisible"),
    pytest.param("{" * 70 + "}" * 70, id="too deep"),
    pytest.param("text " + "{" * 3_000_000, id="unbalanced and long"),
]


@pytest.mark.parametrize(("text", "value"), GOOD)
def test_one_object_is_found_whole(text: str, value: JsonObject) -> None:
    assert decode_output(text, DECIDE) == value


@pytest.mark.parametrize("text", BAD)
def test_what_is_not_plainly_one_fitting_object_is_a_failure_with_a_short_reason(text: str) -> None:
    with pytest.raises(Undecodable) as refusal:
        decode_output(text, DECIDE)
    assert 0 < len(refusal.value.reason) < 400


@pytest.mark.parametrize("text", ['[{"a":1}]', "[]", '"{}"', "1", "null", "true"])
def test_what_is_no_object_is_never_given_for_one(text: str) -> None:
    for reply in (text, f"```json\n{text}\n```"):
        with pytest.raises(Undecodable):
            decode_object(reply)


@pytest.mark.parametrize("text", ["", " ", "\n\t\r ", " \ufeff\u200b\u2060\n"])
def test_an_empty_reply_is_said_to_be_empty(text: str) -> None:
    with pytest.raises(Undecodable, match="the reply is empty"):
        decode_object(text)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_what_is_no_number_is_refused_and_becomes_nothing_else(number: str) -> None:
    for read in (parse_strict_json, decode_object):
        with pytest.raises(Undecodable, match="no JSON number"):
            read(f'{{"a":{number}}}')


@pytest.mark.parametrize("letter", ["x", "é", "€", "🎉"])
def test_exactly_4_MiB_are_let_in_and_not_one_byte_more(letter: str) -> None:
    fits = letter * (4_194_296 // len(letter.encode()))
    fits += "x" * (4_194_296 - len(fits.encode()))
    assert decode_object(f'{{"a":"{fits}"}}') == {"a": fits}
    with pytest.raises(Undecodable, match="larger than 4194304 bytes"):
        decode_object(f'{{"a":"{fits}x"}}')


def test_a_value_is_let_in_up_to_4_MiB() -> None:
    """Counted are the bytes of texts, and one for each other part."""
    assert find_unfit_value(["x" * (4_194_304 - 2), 1]) is None
    for value in (["x" * (4_194_304 - 1), 1], ["€" * 1_398_102], {"a": "x" * 4_194_303}):
        assert find_unfit_value(value) == "the value is larger than 4194304 bytes"


@pytest.mark.parametrize(
    "text",
    [
        pytest.param('{"assessment":"success","lessons":[],"confidence":NaN}', id="LLMJSON-021"),
        pytest.param('{"assessment":"success","lessons":[],"confidence":-0.1}', id="LLMJSON-023"),
        pytest.param('{"assessment":"success","lessons":[],"confidence":Infinity}', id="Infinity"),
        pytest.param('{"assessment":"success","lessons":[],"confidence":true}', id="a boolean is no number"),
    ],
)
def test_numbers_out_of_range_or_of_no_value_are_failures(text: str) -> None:
    with pytest.raises(Undecodable):
        decode_output(text, REFLECT)


def test_a_whole_object_is_refused_where_the_turn_was_cut_off() -> None:  # LLMJSON-007
    with pytest.raises(Undecodable):
        decode_turn(Completion('{"action":"noop"}', finish="length"), DECIDE)


def test_bad_json_for_ever_is_asked_for_twice_more_and_gives_no_made_up_value() -> None:  # LLMJSON-033, 034
    run = feed(planner(brief(output_schema=DECIDE)), [says("not json")] * 3)
    assert run.paths == ["round-1", "output/repair-1", "output/repair-2"]
    assert (run.outcome.stop_reason, run.outcome.output) == ("format_errors", None)


def nest(depth: int, opening: str, closing: str, inner: str = "1") -> str:
    return opening * depth + inner + closing * depth


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}"), ('[{"a":', "}]")])
def test_what_is_nested_too_deep_is_refused_before_the_parser_runs_out_of_stack(opening: str, closing: str) -> None:
    with pytest.raises(Undecodable, match="deeper"):
        parse_strict_json(nest(9_000, opening, closing))
    with pytest.raises(Undecodable):  # Python 3.13 has the stack to find first that it does not end
        parse_strict_json(opening * 9_000)


BESIDE = ["[]", "{}", "[[]]", '{"b":{}}', '"[[[{{{"', '"]]]}}}"', '"\\\\\\"[["'] * 50


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
@pytest.mark.parametrize("beside", [[], BESIDE], ids=["alone", "beside others"])
def test_exactly_64_levels_are_let_in_however_many_brackets_stand_beside_them(
    opening: str, closing: str, beside: list[str]
) -> None:
    for before, after in ((beside, []), ([], beside)):
        for depth in (1, 62, 63):
            assert parse_strict_json(f"[{','.join([*before, nest(depth, opening, closing), *after])}]")
        for depth in (64, 65):
            with pytest.raises(Undecodable, match="deeper than 64"):
                parse_strict_json(f"[{','.join([*before, nest(depth, opening, closing), *after])}]")


def test_a_value_is_let_in_down_to_64_levels_as_its_text_is() -> None:
    def levels(number: int) -> object:
        value: object = 1
        for n in range(number):
            value = [value] if n % 2 else {"a": value}
        return value

    for number in (1, 63, 64):
        assert find_unfit_value(levels(number)) is None
    for number in (65, 66, 1_000, 100_000):
        assert find_unfit_value(levels(number)) == "nested deeper than 64 levels"


WITHIN = [0, -1, 2**63 - 1, -(2**63), -(2**63) + 1]
BEYOND = [2**63, -(2**63) - 1, 10**19, -(10**19), 10**20, -(10**20), 10**5_000]


@pytest.mark.parametrize("number", WITHIN)
def test_integers_of_64_bits_are_let_in(number: int) -> None:
    assert find_unfit_value(number) is None
    assert parse_strict_json(f"[{number}]") == [number]
    assert decode_object(f'{{"a": {number}}}') == {"a": number}


@pytest.mark.parametrize("number", BEYOND, ids=lambda number: f"{number.bit_length()} bits")
def test_integers_beyond_64_bits_are_not(number: int) -> None:
    text = f"-1{'0' * 5_000}" if number.bit_length() > 1_000 else str(number)
    assert find_unfit_value(number) == "an integer does not fit into 64 bits"
    with pytest.raises(Undecodable, match="64 bits"):
        parse_strict_json(f"[{text}]")


def test_a_value_that_cannot_be_stored_says_why() -> None:
    deep: object = 1
    for _ in range(100):
        deep = [deep]
    fit: list[object] = [None, True, 1, 2**63 - 1, 1.5, "a\0", {"a": [1, {"b": ""}]}]
    assert [find_unfit_value(value) for value in fit] == [None] * len(fit)
    for value in (
        float("nan"),
        float("inf"),
        2**63,
        "\udc80",
        {"\ud800": 1},
        {1: 2},
        {"a": 1, 1: 2},
        deep,
        {"a": {1}},
        "x" * 5_000_000,
    ):
        assert find_unfit_value(value) is not None


def test_a_line_of_a_script_is_one_value_and_nothing_else() -> None:
    assert parse_strict_json(" [1, 2.5, null] ") == [1, 2.5, None]
    for text in ("1 2", "{'a': 1}", "\ufeff{}", '{"a":1,"a":1}'):
        with pytest.raises(Undecodable):
            parse_strict_json(text)


@pytest.mark.parametrize(("objects", "counted"), [(2, "2"), (9, "9"), (10, "10 JSON objects or more"), (400, "10 ")])
def test_a_reply_of_several_objects_is_refused_with_their_number_up_to_ten(objects: int, counted: str) -> None:
    with pytest.raises(Undecodable, match=f"holds {counted}"):
        decode_object('{"a": 1} and ' * objects)


@pytest.mark.parametrize(
    "text", ["{" * 2_000_000, '{"' * 1_000_000, "```\n" * 500_000, "{} " * 300_000, "[" * 4_000_000]
)
def test_hostile_text_is_refused_in_linear_time(text: str) -> None:
    begun = time.process_time()
    with pytest.raises(Undecodable):
        decode_object(text)
    assert time.process_time() - begun < 5


@pytest.mark.parametrize(
    "text", ["{}" * 300_000, '"' + "{}" * 300_000, '{"a": [' + "{}," * 300_000 + "0]}", 'said {"' + '"' * 300_000]
)
def test_a_reply_of_too_many_values_is_refused_before_anything_is_built_of_them(text: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(Undecodable):
            decode_object(text)
        assert tracemalloc.get_traced_memory()[1] < 8 * len(text)
    finally:
        tracemalloc.stop()


def test_a_fence_with_a_long_line_is_found_in_linear_time() -> None:
    begun = time.process_time()
    assert decode_object("```json" + " " * 20_000 + "x\n{}\n```") == {}
    assert time.process_time() - begun < 1


@pytest.mark.parametrize("word", sorted(Placeholder.ALL))
def test_a_placeholder_is_refused_at_every_depth_and_no_other_text_is(word: str) -> None:
    with pytest.raises(BadArguments, match=r"^a\.1\.b holds the placeholder"):
        refuse_placeholders({"a": ["c", {"b": f" {word} "}]})
    with pytest.raises(BadArguments, match=r"^It holds the placeholder"):
        refuse_placeholders(word)
    refuse_placeholders({"content": f"It says {word} there", "digest": "x"})


def test_the_first_problem_of_a_value_names_its_place_and_not_the_value() -> None:
    with pytest.raises(ValidationError) as refused:
        TypeAdapter(dict[str, list[int]]).validate_python({"limits": [1, "a key"], "other": "another"})
    kind, place, message = first_problem(refused.value)
    assert (kind, place) == ("int_parsing", "limits.1")
    assert "key" not in message


@pytest.mark.parametrize("piece", ["[0] ", "{x} "])
def test_a_reply_of_many_pieces_in_brackets_is_refused_before_each_is_tried(piece: str) -> None:
    assert decode_object(piece * (MAX_PIECES - 1) + '{"a": 1}') == {"a": 1}
    with pytest.raises(Undecodable, match="pieces"):
        decode_object(piece * MAX_PIECES + '{"a": 1}')


def test_a_reply_of_many_open_brackets_is_refused_before_each_is_looked_at() -> None:
    def take() -> None:
        with pytest.raises(Undecodable):
            decode_object('"' + "[" * 300_000)

    assert count_calls(take) < 10_000
