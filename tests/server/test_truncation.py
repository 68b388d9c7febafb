"""Results of any content fit what a host can show, and everything that was cut is named."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kairos_mcp.server.results import run_text, runs_result, runs_text
from kairos_mcp.server.truncation import CONVERSATION_CHARS, ITEMS_CHARS, RESULT_CHARS, fit_result
from kairos_mcp.views.cuts import size
from kairos_mcp.views.run_report import RunReport

TEXTS = st.text(max_size=60) | st.text(max_size=40).map(lambda text: text * 400)
NUMBERS = st.integers(0, 10**9)


def a_run(**changed: Any) -> dict[str, Any]:
    run = {
        "run_id": "r1",
        "seq": 7,
        "flow": "planner",
        "goal": "Look around.",
        "workspace": "/home/me/project",
        "created_at": "2026-11-22T09:00:00Z",
        "status": "completed",
        "stop_reason": "assistant_stop",
        "summary": "done",
        "record": None,
        "output": None,
        "rounds": 3,
        "route": "scripted",
        "model": None,
        "resume_at": None,
        "usage": {"model_calls": 3, "usd": 0.0, "exactness": "reported"},
        "remaining": {"rounds": 2, "usd": None},
        "calls": [],
        "plan": [],
        "waiting": [],
        "degraded": [],
        "next": None,
    }
    return {**run, **changed}


calls = st.fixed_dictionaries(
    {
        "round": NUMBERS,
        "name": st.just("read_file"),
        "ok": st.booleans(),
        "ms": NUMBERS,
        "preview": TEXTS,
        "ref": st.just("round-3/call-2"),
    }
)
outputs = (
    st.none()
    | st.dictionaries(st.text(max_size=9), TEXTS, max_size=4)
    | st.builds(lambda content, data: {"content": content, "is_error": False, "data": data}, TEXTS, TEXTS)
)
following = st.none() | st.builds(
    lambda why: {"tool": "run_status", "arguments": {"run_ids": ["r1"]}, "why": why}, st.text(max_size=60)
)


@given(
    summary=st.none() | TEXTS,
    output=outputs,
    calls=st.lists(calls, max_size=5),
    degraded=st.lists(TEXTS, max_size=30),
    following=following,
)
def test_a_result_without_waiting_items_fits_and_its_text_says_the_same(summary, output, calls, degraded, following):
    whole = a_run(summary=summary, output=output, calls=calls, degraded=degraded, next=following)
    shown = fit_result(whole)
    assert size(shown) <= RESULT_CHARS
    text = run_text(shown)
    assert len(text) <= RESULT_CHARS
    assert len(text.splitlines()) <= 12
    for name in ("summary", "output", "calls"):
        assert shown[name] == whole[name] or len(shown["degraded"]) > 0
    if size(whole) <= RESULT_CHARS:
        assert shown == whole
    if shown["next"]:
        assert json.dumps(shown["next"]["arguments"], separators=(",", ":")) in text


def test_a_long_summary_keeps_its_head_and_tail_and_names_the_cut():
    shown = fit_result(a_run(summary="begin " + "x" * 20_000 + " end"))
    assert shown["summary"].startswith("begin ")
    assert shown["summary"].endswith(" end")
    assert any("ref=summary" in note for note in shown["degraded"])


def test_json_output_is_never_cut_inside():
    shown = fit_result(a_run(output={"rows": ["x" * 100] * 100}))
    assert shown["output"] == {"ref": "output", "chars": size({"rows": ["x" * 100] * 100})}
    assert any("ref=output" in note for note in shown["degraded"])


def conversation(results: int, chars: int) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = [{"role": "user", "content": "goal"}]
    for n in range(1, results + 1):
        ref = f"round-{n}/call-1"
        messages += [
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"id": ref, "name": "look", "arguments": {}}],
            },
            {"role": "tool", "content": "x" * chars, "tool_call_id": ref},
        ]
    return messages


def waiting(messages: list[dict[str, Any]]) -> dict[str, Any]:
    item = {"key": "round-9", "kind": "completion", "system": "s", "messages": messages, "tools": []}
    return a_run(status="input_required", waiting=[item])


def test_a_conversation_is_shown_whole_up_to_its_bound():
    whole = waiting(conversation(2, 11_000))
    assert fit_result(whole) == whole


def test_older_tool_results_shrink_to_refs_and_the_newest_stays():
    shown = fit_result(waiting(conversation(5, 10_000)))
    messages = shown["waiting"][0]["messages"]
    assert sum(len(message["content"]) for message in messages) <= CONVERSATION_CHARS
    assert 'ref="round-1/call-1"' in messages[2]["content"]
    assert messages[-1]["content"] == "x" * 10_000
    assert [message["role"] for message in messages] == [m["role"] for m in conversation(5, 1)]
    assert any("round-9" in note for note in shown["degraded"])


def test_results_of_the_newest_turn_are_never_shrunk():
    messages = conversation(1, 30_000)
    assert fit_result(waiting(messages))["waiting"][0]["messages"] == messages


def tool_call(n: int, chars: int) -> dict[str, Any]:
    return {"key": f"round-1/call-{n}", "kind": "tool_call", "name": "ask", "arguments": {"text": "x" * chars}}


def test_items_that_find_no_room_are_named_and_those_before_are_whole():
    items = [tool_call(n, 25_000) for n in range(1, 6)]
    shown = fit_result(a_run(status="input_required", waiting=items))
    assert sum(map(size, shown["waiting"])) <= ITEMS_CHARS
    named = [{"key": f"round-1/call-{n}", "kind": "tool_call"} for n in (3, 4, 5)]
    assert shown["waiting"] == [*items[:2], *named]
    assert any("3 of 5" in note for note in shown["degraded"])


def test_what_follows_this_call_s_answer_finds_room_before_the_rest():
    items = [tool_call(n, 25_000) for n in range(1, 4)]
    items[2]["after"] = "round-1"
    items.append({"key": "round-9", "kind": "completion", "agent": "one", "about": "It was shown before."})
    shown = fit_result(a_run(status="input_required", waiting=items))
    assert shown["waiting"] == [items[0], {"key": "round-1/call-2", "kind": "tool_call"}, items[2], items[3]]
    assert any("1 of 4" in note for note in shown["degraded"])


def test_an_item_too_long_by_itself_shrinks_the_results_of_its_newest_turn():
    messages = conversation(1, 100)
    ids = [f"round-2/call-{n}" for n in range(1, 7)]
    messages.append({"role": "assistant", "content": "", "tool_calls": [{"id": each, "name": "l"} for each in ids]})
    messages += [{"role": "tool", "content": "y" * 12_000, "tool_call_id": each} for each in ids]
    shown = fit_result(waiting(messages))
    (item,) = shown["waiting"]
    assert ITEMS_CHARS - 12_000 < size(item) <= ITEMS_CHARS
    assert item["messages"][-1]["content"] == "y" * 12_000
    assert 'run_trace ref="round-2/call-1"' in item["messages"][4]["content"]
    assert any("new tool results shrunk to refs" in note for note in shown["degraded"])


def test_several_runs_share_the_room_for_items():
    reports = [RunReport(**a_run(run_id=f"r{n}", waiting=[tool_call(1, 40_000)])) for n in range(3)]
    body = runs_result(reports).structured_content
    assert sum(size(item) for run in body["runs"] for item in run["waiting"]) <= ITEMS_CHARS + 200
    assert [len(run["waiting"][0]) for run in body["runs"]] == [4, 2, 2]


def test_the_text_ends_with_the_waiting_items_whole():
    shown = fit_result(waiting(conversation(1, 100)))
    head, items = run_text(shown).rsplit("waiting items: ", 1)
    assert json.loads(items) == shown["waiting"]
    assert len(head.splitlines()) <= 12


def test_several_runs_have_a_line_each():
    runs = [a_run(run_id=f"r{n}", summary="two\nlines") for n in range(5)]
    assert len(runs_text(runs, None).splitlines()) == 5


def test_one_round_is_told_as_one_and_several_as_several() -> None:
    assert "completed (assistant_stop), 1 round, route" in run_text(a_run(rounds=1))
    assert "completed (assistant_stop), 3 rounds, route" in run_text(a_run())
    assert ", 1 model call, route" in run_text(a_run(flow="ooda_run", usage={"model_calls": 1}))
