"""Every value survives the store: what is decoded equals what was encoded, digests included."""

from __future__ import annotations

from typing import Any

import apsw
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.app import Place, law

from kairos_mcp.core.errors import StoreCorrupt
from kairos_mcp.core.limits import Limits, Units
from kairos_mcp.core.messages import Completion, Message, Private, ToolCall, ToolResult, ToolSet, ToolSpec, Usage
from kairos_mcp.core.outcomes import STOP_REASONS, Outcome, make_outcome
from kairos_mcp.core.run_spec import PlannerRequest, Spec
from kairos_mcp.core.steps import Answer, Extended, Failure, Mechanical, Refused, Resumed, Sent
from kairos_mcp.store.rows import answer_kind, decode, decode_answer, decode_units, encode, encode_answer, encode_units

odd = ["", "\0", "\u2028\u2029", "\x7f\x1b[2J", "\r\n", "\ufeff", "\U0010ffff", "é", "e\u0301", '"kind":"', '"}', "\\"]
texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=20) | st.sampled_from(odd)
numbers = st.integers(0, 2**53 - 1)
huge = st.integers(-(10**40), 10**40)
floats = st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | huge | floats | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(texts, values, max_size=3)

calls = st.builds(ToolCall, texts, texts, objects, st.none() | texts)
usages = st.builds(
    Usage, numbers, numbers, numbers, numbers, st.sampled_from(("exact", "reported", "estimated", "bounded"))
)
finishes = st.none() | st.sampled_from(("stop", "tool_calls", "length", "content_filter", "refusal"))
completions = st.builds(
    Completion,
    texts,
    st.lists(calls, max_size=3).map(tuple),
    finishes,
    st.none() | usages,
    st.none() | numbers,
    st.none() | texts,
    st.none() | st.builds(Private, texts, texts),
)
results = st.builds(ToolResult, texts, st.booleans(), values, st.none() | texts, st.none() | texts, st.none() | numbers)
answers = (
    completions
    | results
    | st.builds(Refused, texts, huge, huge, texts)
    | st.builds(Failure, texts, texts, st.booleans())
    | st.sampled_from((Mechanical(), Extended(), Resumed()))
)
messages = st.builds(
    Message,
    st.sampled_from(("system", "user", "assistant", "tool")),
    texts,
    st.lists(calls, max_size=2).map(tuple),
    st.none() | texts,
)
specs = st.builds(
    Spec,
    st.sampled_from(("planner", "call")),
    texts,
    texts,
    texts,
    system_text=st.none() | texts,
    user_text=st.none() | texts,
    context_tokens=numbers,
    max_tokens=numbers,
    model=st.none() | texts,
    temperature=st.none() | floats,
    continues=st.none() | texts,
    arguments=st.none() | objects,
)
units = st.builds(Units, *([huge] * 8))


@law
@given(answers)
def test_an_answer_comes_back_as_it_was_and_says_its_kind(answer: Answer) -> None:
    text = encode_answer(answer)
    assert decode_answer(text) == answer
    assert answer_kind(text) == answer.kind
    assert encode_answer(decode_answer(text)) == text


@law
@given(calls)
def test_a_call_that_comes_back_has_the_same_digest(call: ToolCall) -> None:
    assert decode(ToolCall, encode(call)).digest == call.digest


@law
@given(results)
def test_a_result_that_comes_back_has_the_same_digest(result: ToolResult) -> None:
    assert decode_answer(encode_answer(result)).digest == result.digest


@law
@given(st.lists(messages, max_size=3).map(tuple))
def test_messages_come_back_with_the_bytes_that_are_hashed(said: tuple[Message, ...]) -> None:
    again = decode(tuple[Message, ...], encode(said))
    assert again == said
    assert [message.encode() for message in again] == [message.encode() for message in said]


@law
@given(specs)
def test_a_spec_comes_back_as_it_was(spec: Spec) -> None:
    assert decode(Spec, encode(spec)) == spec


@law
@given(units)
def test_amounts_come_back_as_they_were(amounts: Units) -> None:
    assert decode_units(encode_units(amounts)) == amounts


@law
@given(st.lists(st.builds(ToolSpec, texts, texts, objects), max_size=2))
def test_tools_come_back_with_the_same_digest(tools: list[ToolSpec]) -> None:
    again = decode(tuple[ToolSpec, ...], encode(tuple(tools)))
    assert ToolSet(again).digest == ToolSet(tools).digest


@law
@given(st.sampled_from(sorted(STOP_REASONS)), st.none() | texts, values, st.lists(texts, max_size=2).map(tuple))
def test_an_outcome_comes_back_as_it_was(reason: Any, summary: str | None, output: Any, notes: Any) -> None:
    outcome = make_outcome(reason, summary, output, notes)
    assert decode(Outcome, encode(outcome)) == outcome


@pytest.mark.parametrize("value", [Sent(), Sent("scripted", "m", 3, "tail", 0), Limits(rounds=0), PlannerRequest("")])
def test_empty_and_zero_are_not_lost(value: Any) -> None:
    assert decode(type(value), encode(value)) == value


@pytest.mark.parametrize(
    "text", ["", "{}", "null", '{"kind":"nonsense"}', '{"content":3,"kind":"completion"}', '{"kind":"completion"', "\0"]
)
def test_a_damaged_row_is_never_half_a_value(text: str) -> None:
    with pytest.raises(StoreCorrupt):
        decode_answer(text)


@pytest.mark.parametrize("text", ["", "[]x", "null", "[0,0,0,0,0,0,0,0,0]"])
def test_damaged_amounts_are_said_to_be_damaged(text: str) -> None:
    with pytest.raises(StoreCorrupt):
        decode_units(text)


@law
@given(texts, st.integers(-(2**63), 2**63 - 1), st.binary(max_size=20))
def test_what_sqlite_is_given_it_gives_back(text: str, number: int, blob: bytes) -> None:
    (found,) = apsw.Connection(":memory:").execute("select ?, ?, ?", (text, number, blob))
    assert found == (text, number, blob)


async def test_an_answer_comes_back_through_the_store(place: Place) -> None:
    answer = ToolResult("".join(odd), data={"huge": 10**40, "nothing": None, "deep": [[["\0"]]]})
    store = place.store()
    await store.submit(lambda s: s.rows("insert into text(hash, body) values ('h', ?)", (encode_answer(answer),)))
    ((body,),) = await store.read(lambda session: session.rows("select body from text where hash = 'h'"))
    await store.close()
    assert decode_answer(body) == answer
