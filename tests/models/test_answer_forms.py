"""Answers in the forms that models write: each becomes the one form that is stored, and nothing else does."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.app import ASK, ME, Place, open_checked_app, place_in, start_run

from kairos_mcp.core.errors import BadArguments
from kairos_mcp.models.answers import to_stored_form

OURS = {"name": "read_file", "arguments": {"path": "a.txt"}}
OPENAI = {"type": "function", "id": "call_1", "function": OURS}
OPENAI_TEXT = {**OPENAI, "function": {"name": "read_file", "arguments": '{"path": "a.txt"}'}}
ANTHROPIC = {"type": "tool_use", "id": "toolu_1", "name": "read_file", "input": {"path": "a.txt"}}
SAYS = {"type": "text", "text": "I look."}
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}

TURNS = [
    ("I look.", {"content": "I look."}),
    ([SAYS, SAYS], {"content": "I look.I look."}),
    ([SAYS, ANTHROPIC], {"content": "I look.", "tool_calls": [OURS]}),
    ({"content": [SAYS, ANTHROPIC]}, {"content": "I look.", "tool_calls": [OURS]}),
    ({"content": [ANTHROPIC]}, {"content": "", "tool_calls": [OURS]}),
    ({"tool_calls": [OPENAI, OPENAI_TEXT, ANTHROPIC, OURS]}, {"tool_calls": [OURS] * 4}),
    ({"content": None, "tool_calls": [OPENAI_TEXT]}, {"content": None, "tool_calls": [OURS]}),
    (ANTHROPIC, {"tool_calls": [OURS]}),
    (OPENAI_TEXT, {"tool_calls": [OURS]}),
]


def without_ids(answer: Any) -> Any:
    calls = [{name: value for name, value in call.items() if name != "id"} for call in answer.get("tool_calls") or ()]
    return {**answer, **({"tool_calls": calls} if calls else {})}


@pytest.mark.parametrize(("given", "stored"), TURNS)
def test_a_turn_of_any_known_form_becomes_the_stored_one(given: Any, stored: Any) -> None:
    assert without_ids(to_stored_form(given, is_json_asked=False)) == stored


@pytest.mark.parametrize("given", [{"n": 1}, {"content": {"n": 1}}, '{"n": 1}', {"content": '{"n": 1}'}])
def test_an_object_is_a_text_where_json_is_asked(given: Any) -> None:
    assert to_stored_form(given, is_json_asked=True) == {"content": '{"n": 1}'}


UNKNOWN = [
    {"n": 1},
    {"content": {"n": 1}},
    {"content": [{"n": 1}]},
    {"content": []},
    {"content": [SAYS, {"type": "thinking", "thinking": "hm"}]},
    {"content": [{**SAYS, "cache_control": {}}]},
    {"content": [ANTHROPIC], "tool_calls": [OURS]},
    {"tool_calls": [{**OURS, "type": "function"}]},
    {"tool_calls": [{**OPENAI, "index": 0}]},
    {"tool_calls": [{**OPENAI, "function": {**OURS, "strict": True}}]},
    {"tool_calls": [{**OPENAI, "function": {"name": "read_file"}}]},
    {"tool_calls": [{**ANTHROPIC, "input": "{}"}]},
    {"tool_calls": {"type": "function"}},
    {"role": "assistant"},
    7,
    None,
]


@pytest.mark.parametrize("given", UNKNOWN)
def test_nothing_else_is_changed(given: Any) -> None:
    assert to_stored_form(given, is_json_asked=False) == given


def test_arguments_that_are_no_json_object_stay_a_text() -> None:
    for text in ('{"path": ', "[1]", "", '{"a": 1, "a": 2}'):
        call = {"type": "function", "function": {"name": "look", "arguments": text}}
        assert to_stored_form(call, is_json_asked=False) == {"tool_calls": [{"name": "look", "arguments": text}]}


def test_a_value_that_no_json_holds_is_left_to_the_parser() -> None:
    deep: Any = {}
    for _ in range(10_000):
        deep = {"a": deep}
    assert to_stored_form(deep, is_json_asked=True) is deep


@pytest.fixture
def place(tmp_path: Any) -> Place:
    return place_in(tmp_path)


async def stored_answer(place: Place, run_id: str) -> Any:
    ((body,),) = place.rows(
        "select body from answer join step on step.id = answer.step join run on run.n = step.run"
        " where run.id = ? and path = 'round-1'",
        run_id,
    )
    return json.loads(body)


@pytest.mark.parametrize(("given", "stored"), TURNS)
async def test_a_run_stores_the_same_row_for_each_form(place: Place, given: Any, stored: Any) -> None:
    async with open_checked_app(place.settings()) as app:
        rows = []
        for answer in (stored, given):
            run_id = await start_run(app, route="caller", caller_tools=(ASK,), key=str(len(rows)))
            await app.answers.submit(run_id, {"round-1": answer}, ME)
            await app.answers.submit(run_id, {"round-1": given}, ME)  # repeated: no error
            rows.append(await stored_answer(place, run_id))
        assert rows[0] == rows[1]


@pytest.mark.parametrize("given", [{"n": 1}, {"content": {"n": 1}}])
async def test_an_object_answers_where_the_run_has_a_schema(place: Place, given: Any) -> None:
    async with open_checked_app(place.settings()) as app:
        run_id = await start_run(app, route="caller", output_schema=SCHEMA)
        await app.answers.submit(run_id, {"round-1": given}, ME)
        await app.answers.submit(run_id, {"round-1": given}, ME)
        assert (await app.runs.report(run_id, ME)).output == {"n": 1}

        plain = await start_run(app, route="caller")
        with pytest.raises(BadArguments) as refused:
            await app.answers.submit(plain, {"round-1": given}, ME)
        assert '{"content": "text"}' in refused.value.hint


async def test_of_a_call_in_any_form_only_known_secrets_are_taken_out(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a model writes into a file stays what it wrote, also where it looks like a key."""
    monkeypatch.setenv("A_SERVICE_TOKEN", known := "hunter2-hunter2")
    example = "sk-" + "abcdefghijklmnopqrstuvwxyz012345"
    text = f"{example} {known}"
    async with open_checked_app(place.settings()) as app:
        for n, call in enumerate(
            (
                {"name": "ask_person", "arguments": {"question": text}},
                {"type": "tool_use", "name": "ask_person", "input": {"question": text}},
                {"type": "function", "function": {"name": "ask_person", "arguments": json.dumps({"question": text})}},
            )
        ):
            run_id = await start_run(app, route="caller", caller_tools=(ASK,), key=str(n))
            await app.answers.submit(run_id, {"round-1": {"content": [call]} if n == 1 else {"tool_calls": [call]}}, ME)
            (item,) = (await app.runs.report(run_id, ME)).waiting
            assert item["arguments"] == {"question": f"{example} [secret]"}
