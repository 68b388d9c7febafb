"""What an app does with a run: starts it, moves it on a route, takes answers, control requests and repeats."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
from support.app import (
    ASK,
    ME,
    PERSON,
    WITHIN_S,
    Place,
    answer_run,
    asks,
    finish_run,
    open_checked_app,
    outcome_of,
    reads,
    rests,
    says,
    start_run,
    use_key_of_tests,
    wait_for_step,
)

from kairos_mcp.app.app import App
from kairos_mcp.core.decision_rights import Caller
from kairos_mcp.core.errors import (
    AlreadyAnswered,
    BadArguments,
    KairosError,
    NotWaiting,
    Stale,
    UnknownRun,
    UnknownTool,
)
from kairos_mcp.core.limits import Limits
from kairos_mcp.core.run_spec import PlannerRequest
from kairos_mcp.settings.table_values import GateRule
from kairos_mcp.store.rows import Session
from kairos_mcp.views.calls import NEWEST_CALLS
from kairos_mcp.views.trace import TraceQuery

READS = {"tool_calls": [{"name": "read_file", "arguments": {"path": "a.txt"}}]}
ASKS = {"tool_calls": [{"name": "ask_person", "arguments": {"question": "why"}}]}
DONE = {"content": "done", "finish": "stop"}


def control_requests(place: Place) -> list[tuple[Any, ...]]:
    return place.rows("select kind, taken is not null from inbox order by id")


# -- routes ------------------------------------------------------------------------------------------------------


async def test_the_caller_drives_a_run_from_round_to_round(place: Place) -> None:
    async with open_checked_app(place.settings()) as app:
        run_id = await start_run(app, route="caller")
        first = await rests(app, run_id)
        assert (first.status, [item["key"] for item in first.waiting]) == ("input_required", ["round-1"])
        second = await answer_run(app, run_id, round_1=READS)
        assert [item["key"] for item in second.waiting] == ["round-2"]
        assert "alpha" in second.waiting[0]["messages"][-1]["content"]
        last = await answer_run(app, run_id, round_2=DONE)
        assert (last.status, last.stop_reason, last.summary, last.rounds) == ("completed", "assistant_stop", "done", 2)
        assert last.usage["exactness"] == "estimated"


async def test_a_script_drives_a_run_to_its_end(place: Place) -> None:
    lines = (reads("a.txt", "b.txt"), says("done", usage={"input_tokens": 100, "output_tokens": 3}))
    async with open_checked_app(place.settings(*lines)) as app:
        report = await app.runs.report(await start_run(app), ME)
        assert (report.status, report.summary, report.route, report.rounds) == ("completed", "done", "scripted", 2)
        assert report.usage["model_calls"] == report.rounds
        assert report.usage["tool_calls"] == 2
        assert [call["ok"] for call in report.calls] == [True, True]


@pytest.mark.parametrize(("calls", "says_so"), [(NEWEST_CALLS, False), (NEWEST_CALLS + 1, True)])
async def test_a_report_says_when_it_shows_only_the_newest_calls(place: Place, calls: int, says_so: bool) -> None:
    async with open_checked_app(place.settings(reads(*["a.txt"] * calls), says("done"))) as app:
        report = await app.runs.report(run_id := await start_run(app), ME)
        assert len(report.calls) == NEWEST_CALLS
        assert any("run_trace view=calls" in note for note in report.degraded) == says_so
        assert (await app.records.trace(run_id, TraceQuery("calls"), ME))["total"] == calls


async def test_a_script_that_ends_too_soon_fails_loudly(place: Place) -> None:
    async with open_checked_app(place.settings(reads("a.txt"))) as app:
        report = await app.runs.report(await start_run(app), ME)
        assert (report.status, report.stop_reason) == ("failed", "llm_error")


async def test_a_route_can_change_to_the_script_in_the_middle(place: Place) -> None:
    async with open_checked_app(place.settings(says("done by script"))) as app:
        run_id = await start_run(app, route="caller")
        await answer_run(app, run_id, round_1=READS)
        await app.control.reroute(run_id, "scripted", ME)
        report = await rests(app, run_id)
        assert (report.status, report.summary, report.route) == ("completed", "done by script", "scripted")
        assert place.rows("select path, by_route from step join answer on answer.step = step.id") == [
            ("round-1", "caller"),
            ("round-1/call-1", "server"),
            ("round-2", "scripted"),
        ]


async def test_a_late_answer_to_a_rerouted_step_is_not_waited_for(place: Place) -> None:
    async with open_checked_app(place.settings(says("slow", delay_s=0.5))) as app:
        run_id = await start_run(app, route="caller")
        await app.control.reroute(run_id, "scripted", ME)
        with pytest.raises(NotWaiting):
            await app.answers.submit(run_id, {"round-1": DONE}, ME)
        assert (await rests(app, run_id)).summary == "slow"


async def test_a_route_can_change_to_the_caller_in_the_middle(place: Place) -> None:
    async with open_checked_app(place.settings(reads("a.txt", delay_s=0.2), says("never"))) as app:
        run_id = (await app.runs.start(PlannerRequest("look"), ME)).run_id
        await wait_for_step(app, "round-1")
        await app.control.reroute(run_id, "caller", ME)
        report = await rests(app, run_id)
        assert (report.status, report.route) == ("input_required", "caller")
        assert [item["key"] for item in report.waiting] == ["round-2"]
        assert (await answer_run(app, run_id, round_2=DONE)).summary == "done"


async def test_a_run_without_a_script_can_not_be_rerouted_to_one(place: Place) -> None:
    async with open_checked_app(place.settings()) as app:
        run_id = await start_run(app, route="caller")
        with pytest.raises(BadArguments):
            await app.control.reroute(run_id, "scripted", ME)
        assert (await answer_run(app, run_id, round_1=DONE)).status == "completed"


# -- control requests ---------------------------------------------------------------------------------------------


async def test_a_paused_run_takes_no_answers_until_it_is_resumed(place: Place) -> None:
    async with open_checked_app(place.settings()) as app:
        run_id = await start_run(app, route="caller")
        await app.control.pause(run_id, ME)
        assert (await rests(app, run_id)).status == "paused"
        with pytest.raises(Stale) as refused:
            await app.answers.submit(run_id, {"round-1": READS}, ME)
        assert 'run_control action="resume"' in refused.value.hint
        assert place.rows("select path from step where kind = 'call' union select body from answer") == []
        await app.control.request(run_id, "resume", ME)
        assert [item["key"] for item in (await answer_run(app, run_id, round_1=READS)).waiting] == ["round-2"]
        await app.control.pause(run_id, ME)
        await app.answers.submit(run_id, {"round-1": READS}, ME)  # what it has is no answer to a paused run


async def test_a_pause_lets_what_runs_finish_and_begins_nothing_more(place: Place) -> None:
    async with open_checked_app(place.settings(reads("a.txt", delay_s=0.2), says("done"))) as app:
        run_id = (await app.runs.start(PlannerRequest("look"), ME)).run_id
        await wait_for_step(app, "round-1")
        await app.control.pause(run_id, ME)
        assert (await rests(app, run_id)).status == "paused"
        assert place.rows("select path, answer.step is not null from step left join answer on step.id = step") == [
            ("round-1", 1)
        ]
        await app.control.request(run_id, "resume", ME)
        assert (await rests(app, run_id)).summary == "done"


async def test_news_that_came_before_reads_side_by_side_begins_none_of_them_twice(place: Place) -> None:
    async with open_checked_app(place.settings(reads("a.txt", "b.txt", "a.txt", delay_s=0.3), says("done"))) as app:
        run_id = (await app.runs.start(PlannerRequest("look"), ME)).run_id
        await wait_for_step(app, "round-1")
        await app.control.extend(run_id, Limits(rounds=1), ME)
        report = await rests(app, run_id)
        assert (report.summary, report.usage["tool_calls"]) == ("done", 3)
        assert place.rows("select count(*) from attempt") == [(0,)]


async def test_cancelling_a_parked_run_ends_it_and_frees_what_it_held(place: Place) -> None:
    async with open_checked_app(place.settings()) as app:
        run_id = await start_run(app, route="caller")
        await app.control.cancel(run_id, ME)
        assert (await app.runs.report(run_id, ME)).status == "cancelled"
        await app.control.cancel(run_id, ME)  # once more is no error
        with pytest.raises(NotWaiting):
            await app.answers.submit(run_id, {"round-1": DONE}, ME)


async def test_cancelling_stops_a_model_that_is_still_thinking(place: Place) -> None:
    async with open_checked_app(place.settings(says("never", delay_s=60))) as app:
        run_id = (await app.runs.start(PlannerRequest("look"), ME)).run_id
        await wait_for_step(app, "round-1")
        async with asyncio.timeout(5):
            await app.control.cancel(run_id, ME)
            assert (await rests(app, run_id)).status == "cancelled"
        assert place.rows("select count(*) from answer") == [(1,)]


async def test_cancelling_together_with_an_answer_keeps_the_books(place: Place) -> None:
    async with open_checked_app(place.settings()) as app:
        run_id = await start_run(app, route="caller")
        await app.answers.submit(run_id, {"round-1": READS}, ME)
        await app.control.cancel(run_id, ME)
        assert (await rests(app, run_id)).status == "cancelled"


async def test_cancelling_while_a_caller_tool_waits_beside_reads(place: Place) -> None:
    turn = {"tool_calls": READS["tool_calls"] + ASKS["tool_calls"] + READS["tool_calls"]}
    async with open_checked_app(place.settings()) as app:
        run_id = await start_run(app, route="caller", caller_tools=(ASK,))
        report = await answer_run(app, run_id, round_1=turn)
        assert [item["key"] for item in report.waiting] == ["round-1/call-2"]
        await app.control.cancel(run_id, ME)
        assert (await rests(app, run_id)).status == "cancelled"


async def test_an_ended_run_takes_no_more_control_requests(place: Place) -> None:
    async with open_checked_app(place.settings(says("done"))) as app:
        run_id = await start_run(app)
        control = app.control
        for does in (
            control.pause(run_id, ME),
            control.request(run_id, "resume", ME),
            control.cancel(run_id, ME),
            control.reroute(run_id, "auto", ME),
            control.extend(run_id, Limits(rounds=1), ME),
        ):
            with pytest.raises(KairosError):
                await does
        assert control_requests(place) == []


async def test_an_extended_run_goes_further(place: Place) -> None:
    lines = (reads("a.txt"), reads("b.txt"), reads("a.txt"), says("done"))
    async with open_checked_app(place.settings(*lines)) as app:
        run_id = await start_run(app, limits=Limits(rounds=2), route="caller")
        await app.control.extend(run_id, Limits(rounds=3), ME)
        assert (await rests(app, run_id)).remaining["rounds"] == 4
        await app.control.reroute(run_id, "scripted", ME)
        report = await rests(app, run_id)
        assert (report.summary, report.rounds, report.remaining["rounds"]) == ("done", 4, 1)


async def test_what_a_route_has_no_use_for_is_said(place: Place) -> None:
    async with open_checked_app(place.settings()) as app:
        run_id = await start_run(app, route="caller", model="openai:gpt-5", temperature=1.5)
        assert any("model and temperature" in note for note in (await app.runs.report(run_id, ME)).degraded)
        await app.control.reroute(run_id, "sampling", ME)
        assert any("offers no sampling" in note for note in (await app.runs.report(run_id, ME)).degraded)


async def test_extensions_that_come_while_the_model_thinks_are_added_up(place: Place) -> None:
    async with open_checked_app(place.settings(reads("a.txt") | {"delay_s": 0.5}, says("done"))) as app:
        run_id = (await app.runs.start(PlannerRequest("look", limits=Limits(rounds=3)), ME)).run_id
        await wait_for_step(app, "round-1")
        await asyncio.gather(*(app.control.extend(run_id, Limits(rounds=more), ME) for more in (4, 5)))
        await rests(app, run_id)
        assert place.rows("select cap_rounds from account where scope = 'run'") == [(12,)]


@pytest.mark.parametrize("limits", [Limits(), Limits(tool_calls=5), Limits(nano_usd=5), Limits(rounds=2**62)])
async def test_an_extension_that_means_nothing_is_refused(place: Place, limits: Limits) -> None:
    async with open_checked_app(place.settings()) as app:
        run_id = await start_run(app, route="caller")
        if limits.rounds is None:
            with pytest.raises(BadArguments):
                await app.control.extend(run_id, limits, ME)
        else:
            await app.control.extend(run_id, limits, ME)
            assert (await app.runs.report(run_id, ME)).remaining["rounds"] == 99  # what the configuration allows
            assert place.rows("select text from note where text like 'Extended to what%'") != []


# -- starting ----------------------------------------------------------------------------------------------------


async def test_an_identical_start_attaches_to_the_open_run(place: Place) -> None:
    async with open_checked_app(place.settings()) as app:
        first = await app.runs.start(PlannerRequest("look", route="caller"), ME)
        second = await app.runs.start(PlannerRequest("look", route="caller"), ME)
        assert (first.attached, second.attached, second.run_id) == (False, True, first.run_id)
        for other in (PlannerRequest("look", route="caller", temperature=0.5), PlannerRequest("else", route="caller")):
            assert (await app.runs.start(other, ME)).run_id != first.run_id
        someone = await app.runs.start(PlannerRequest("look", route="caller"), Caller("somebody else"))
        assert someone.run_id != first.run_id


async def test_an_identical_start_after_the_end_makes_a_new_run(place: Place) -> None:
    async with open_checked_app(place.settings(says("done"))) as app:
        assert await start_run(app) != await start_run(app)


async def test_a_key_gives_its_run_also_after_the_end(place: Place) -> None:
    async with open_checked_app(place.settings(says("done"))) as app:
        first = await start_run(app, key="k")
        again = await app.runs.start(PlannerRequest("look around", key="k"), ME)
        assert (again.run_id, again.attached) == (first, True)
        with pytest.raises(BadArguments) as refused:
            await app.runs.start(PlannerRequest("something else", key="k"), ME)
        assert refused.value.run_id == first
        assert await start_run(app, key="another") != first


async def test_many_identical_starts_at_once_make_one_run(place: Place) -> None:
    async with open_checked_app(place.settings()) as app:
        starts = [app.runs.start(PlannerRequest("look", route="caller"), ME) for _ in range(8)]
        assert len({start.run_id for start in await asyncio.gather(*starts)}) == 1
        assert place.rows("select count(*) from run") == [(1,)]


async def test_another_principal_s_run_looks_like_an_unknown_one(place: Place) -> None:
    other = Caller("somebody else")
    async with open_checked_app(place.settings()) as app:
        run_id = await start_run(app, route="caller")
        for look in (app.runs.report, app.records.replay):
            with pytest.raises(UnknownRun):
                await look(run_id, other)
        with pytest.raises(UnknownRun):
            await app.answers.submit(run_id, {"round-1": DONE}, other)
        with pytest.raises(UnknownRun):
            await app.control.cancel(run_id, other)
        assert await app.runs.newest_ids(other) == []


async def test_a_conversation_goes_on_in_a_new_run(place: Place) -> None:
    async with open_checked_app(place.settings()) as app:
        first = await start_run(app, "one", route="caller")
        await answer_run(app, first, round_1=READS)
        await answer_run(app, first, round_2=DONE)
        second = await start_run(app, "two", route="caller", continues=first)
        (item,) = (await app.runs.report(second, ME)).waiting
        assert [message["role"] for message in item["messages"]] == ["user", "assistant", "tool", "assistant", "user"]
        assert "alpha" in item["messages"][2]["content"]
        assert item["messages"][3]["content"] == "done"
        assert "two" in item["messages"][4]["content"]


async def test_a_run_that_has_not_ended_can_not_be_continued(place: Place) -> None:
    async with open_checked_app(place.settings()) as app:
        run_id = await start_run(app, route="caller")
        with pytest.raises(Stale):
            await app.runs.start(PlannerRequest("on", continues=run_id), ME)
        with pytest.raises(UnknownRun):
            await app.runs.start(PlannerRequest("on", continues="run-of-nobody"), ME)


@pytest.mark.parametrize(
    "changes",
    [
        {"tools": ("nothing_*",)},
        {"workspace": "/somewhere/else"},
        {"route": "scripted"},
        {"limits": Limits(nano_usd=10)},
        {"output_schema": {"$ref": "http://elsewhere/x.json"}},
        {"caller_tools": (replace(ASK, name="read_file"),)},
        {"caller_tools": (ASK, ASK)},
        {"goal": "\ud800"},
        {"context": "lone \udfff"},
    ],
)
async def test_a_start_that_can_not_be_meant_makes_no_run(place: Place, changes: dict[str, Any]) -> None:
    async with open_checked_app(place.settings()) as app:
        with pytest.raises((BadArguments, UnknownTool)):
            await app.runs.start(PlannerRequest(**{"goal": "look", "route": "caller"} | changes), ME)
        await start_run(app, route="caller")
        assert place.rows("select count(*) from run") == [(1,)]


# -- answering ---------------------------------------------------------------------------------------------------


async def test_the_same_answer_again_is_no_error_and_changes_nothing(place: Place) -> None:
    async with open_checked_app(place.settings()) as app:
        run_id = await start_run(app, route="caller")
        await answer_run(app, run_id, round_1=READS)
        before = place.rows("select * from answer")
        await answer_run(app, run_id, round_1=READS)
        assert place.rows("select * from answer") == before


async def test_another_answer_for_an_answered_step_is_refused(place: Place) -> None:
    async with open_checked_app(place.settings()) as app:
        run_id = await start_run(app, route="caller")
        await answer_run(app, run_id, round_1=READS)
        with pytest.raises(AlreadyAnswered):
            await app.answers.submit(run_id, {"round-1": DONE}, ME)
        with pytest.raises(AlreadyAnswered):
            await app.answers.submit(run_id, {"round-2": DONE, "round-1": DONE}, ME)
        assert (await app.runs.report(run_id, ME)).status == "input_required"


@pytest.mark.parametrize(
    "answers",
    [
        {"round-9": DONE},
        {"round-1": DONE, "round-2": DONE},
        {"round-1": {"content": 3}},
        {"round-1": {"content": "x", "usage": {"input_tokens": -1, "output_tokens": 0}}},
        {"round-1": {"content": "\ud800"}},
        {"round-1": None},
        {"": DONE},
    ],
)
async def test_answers_are_all_checked_before_any_is_stored(place: Place, answers: dict[str, Any]) -> None:
    async with open_checked_app(place.settings()) as app:
        run_id = await start_run(app, route="caller")
        with pytest.raises((BadArguments, NotWaiting)):
            await app.answers.submit(run_id, answers, ME)
        assert place.rows("select count(*) from answer") == [(0,)]
        assert (await answer_run(app, run_id, round_1=DONE)).status == "completed"


async def test_several_callers_tools_are_answered_together_or_one_by_one(place: Place) -> None:
    ask = replace(ASK, effect="read")
    turn = {"tool_calls": ASKS["tool_calls"] * 3}
    async with open_checked_app(place.settings()) as app:
        run_id = await start_run(app, route="caller", caller_tools=(ask,))
        report = await answer_run(app, run_id, round_1=turn)
        assert len(report.waiting) == 3
        report = await answer_run(app, run_id, round_1__call_2={"content": "two"})
        assert [item["key"] for item in report.waiting] == ["round-1/call-1", "round-1/call-3"]
        both = {"round-1/call-1": {"content": "one"}, "round-1/call-3": {"content": "three", "is_error": True}}
        await app.answers.submit(run_id, both, ME)
        (item,) = (await rests(app, run_id)).waiting
        contents = [message["content"] for message in item["messages"] if message["role"] == "tool"]
        assert ["one" in contents[0], "two" in contents[1], "three" in contents[2]] == [True] * 3


async def test_a_callers_tool_is_asked_for_only_with_arguments_that_fit(place: Place) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    calls = [{"name": "ask_person", "arguments": given} for given in ({}, {"n": "3"}, {"n": 3})]
    async with open_checked_app(place.settings()) as app:
        run_id = await start_run(app, route="caller", caller_tools=(replace(ASK, input_schema=schema),))
        report = await answer_run(app, run_id, round_1={"tool_calls": calls})
        assert [item["key"] for item in report.waiting] == ["round-1/call-3"]
        report = await answer_run(app, run_id, round_1__call_3={"content": "yes"})
        assert [call["ok"] for call in report.calls] == [False, False, True]


# -- rules -------------------------------------------------------------------------------------------------------


async def test_a_denied_tool_is_answered_and_not_run(place: Place) -> None:
    settings = place.settings(reads("a.txt"), says("done"), gate=(GateRule("read_*", "deny"),))
    async with open_checked_app(settings) as app:
        report = await app.runs.report(await start_run(app), ME)
        assert (report.summary, [call["ok"] for call in report.calls]) == ("done", [False])
        ((body,),) = place.rows("select body from answer join step on step.id = step where kind = 'call'")
        assert '"code":"denied"' in body
        assert "alpha" not in body


async def call_thirty_times(app: App) -> str:
    """A run that has called a changing tool as often as it may within a minute, and waits for its fourth round."""
    run_id = await start_run(app, route="caller", caller_tools=(ASK,), limits=Limits(rounds=9))
    for number in (1, 2, 3):
        await app.answers.submit(run_id, {f"round-{number}": {"tool_calls": ASKS["tool_calls"] * 10}}, ME)
        await answer_each_call(app, run_id)
    return run_id


async def test_the_thirty_first_call_of_a_changing_tool_in_a_minute_is_refused(place: Place) -> None:
    at = [1_000_000]
    async with open_app_with_clock(place, at) as app:
        run_id = await call_thirty_times(app)
        report = await answer_run(app, run_id, round_4={"tool_calls": ASKS["tool_calls"]})
        assert [item["key"] for item in report.waiting] == ["round-5"]
        assert report.calls[-1]["ok"] is False
        at[0] += 60_001
        report = await answer_run(app, run_id, round_5={"tool_calls": ASKS["tool_calls"]})
        assert [item["key"] for item in report.waiting] == ["round-5/call-1"]


async def test_the_rate_of_calls_is_the_same_after_a_takeover(place: Place) -> None:
    at = [1_000_000]
    turn = {"tool_calls": ASKS["tool_calls"] * 10}
    run_id = ""
    for number in (1, 2, 3):
        async with open_app_with_clock(place, at) as app:
            run_id = run_id or await start_run(app, route="caller", caller_tools=(ASK,), limits=Limits(rounds=9))
            await app.answers.submit(run_id, {f"round-{number}": turn}, ME)
            report = await answer_each_call(app, run_id)
            assert [item["key"] for item in report.waiting] == [f"round-{number + 1}"]
    assert place.rows("select count(*) from answer where body like '%is_error\":true%'") == [(0,)]


async def test_a_clock_that_is_set_back_does_not_stop_a_tool_for_long(place: Place) -> None:
    at = [10**12]
    async with open_app_with_clock(place, at) as app:
        run_id = await call_thirty_times(app)
        at[0] -= 24 * 3_600_000
        report = await answer_run(app, run_id, round_4={"tool_calls": ASKS["tool_calls"]})
        assert [item["key"] for item in report.waiting] == ["round-4/call-1"]


async def answer_each_call(app: App, run_id: str) -> Any:
    report = await rests(app, run_id)
    while report.waiting and report.waiting[0]["kind"] == "tool_call":
        await app.answers.submit(run_id, {item["key"]: {"content": "yes"} for item in report.waiting}, ME)
        report = await rests(app, run_id)
    return report


async def test_a_long_result_is_kept_whole_behind_its_ref(place: Place) -> None:
    text = "".join(f"line {n}\n" for n in range(5_000))
    (place.workspace / "long.txt").write_text(text)
    reread = {"tool_calls": [{"name": "read_result", "arguments": {"ref": "round-1/call-1", "offset": 40_000}}]}
    async with open_checked_app(place.settings(reads("long.txt"), reread, says("done"), shown_chars=2_000)) as app:
        run_id = await start_run(app)
        ((whole,),) = place.rows("select body from text where body like '%line 4999%'")
        assert "line 2500\n" in whole
        ((shown,),) = place.rows("select body from answer join step on step.id = step where path = 'round-1/call-1'")
        assert len(shown) < 4_000
        assert [call["ok"] for call in (await app.runs.report(run_id, ME)).calls] == [True, True]


async def test_a_deposited_result_that_is_long_is_kept_whole_too(place: Place) -> None:
    text = "x" * 50_000
    async with open_checked_app(place.settings()) as app:
        run_id = await start_run(app, route="caller", caller_tools=(ASK,))
        await answer_run(app, run_id, round_1=ASKS)
        await answer_run(app, run_id, round_1__call_1={"content": text})
        await app.answers.submit(run_id, {"round-1/call-1": {"content": text}}, ME)
        assert place.rows("select count(*) from text where length(body) = 50000") == [(1,)]


async def test_one_call_is_a_run_of_its_own(place: Place) -> None:
    async with open_checked_app(place.settings()) as app:
        run_id = await app.runs.start_call("read_file", {"path": "a.txt"}, ME)
        report = await rests(app, run_id)
        assert (report.status, report.output["is_error"]) == ("completed", False)
        assert "alpha" in report.output["content"]
        missing = await rests(app, await app.runs.start_call("read_file", {"path": "none.txt"}, ME))
        assert missing.output["is_error"] is True
        with pytest.raises(UnknownTool):
            await app.runs.start_call("nothing", {}, ME)
        with pytest.raises(BadArguments):
            await app.runs.start_call("read_file", {}, ME)


# -- waiting -----------------------------------------------------------------------------------------------------


async def test_attention_wakes_when_another_run_asks_for_something(place: Place) -> None:
    async with open_checked_app(place.settings(asks("why", delay_s=0.3))) as app:
        run_id = (await app.runs.start(PlannerRequest("look", caller_tools=(ASK,)), ME)).run_id
        async with asyncio.timeout(5):
            await app.runs.wait([run_id], until="attention", wait_s=WITHIN_S, caller=ME)
        assert [item["kind"] for item in (await app.runs.report(run_id, ME)).waiting] == ["tool_call"]
        await app.control.cancel(run_id, ME)


async def test_a_wait_ends_with_its_time_and_disturbs_nothing(place: Place) -> None:
    async with open_checked_app(place.settings(says("done", delay_s=0.4))) as app:
        run_id = (await app.runs.start(PlannerRequest("look"), ME)).run_id
        await app.runs.wait([run_id], until="done", wait_s=0.05, caller=ME)
        assert (await app.runs.report(run_id, ME)).status == "working"
        waiting = asyncio.create_task(app.runs.wait([run_id], until="done", wait_s=WITHIN_S, caller=ME))
        await asyncio.sleep(0)
        waiting.cancel()
        assert (await rests(app, run_id)).summary == "done"


async def test_the_parked_run_in_memory_and_the_one_built_again_go_on_alike(place: Place) -> None:
    other = Place(place.root / "other")
    other.workspace.mkdir(parents=True)
    turn = {"tool_calls": READS["tool_calls"] + ASKS["tool_calls"]}
    seen = []
    for where, again in ((place, False), (other, True)):
        settings = replace(where.settings(), workspaces=(place.workspace,))
        async with open_checked_app(settings) as app:
            use_key_of_tests(app)
            run_id = await start_run(app, route="caller", caller_tools=(ASK,))
            answers = iter(({"round-1": turn}, {"round-1/call-2": {"content": "yes"}}, {"round-2": DONE}))
            for answer in answers:
                if again:
                    async with App.open(settings, via="mcp") as fresh:
                        use_key_of_tests(fresh)
                        await fresh.answers.submit(run_id, answer, ME)
                        await rests(fresh, run_id)
                else:
                    await app.answers.submit(run_id, answer, ME)
                    await rests(app, run_id)
        marks = where.rows("select path, kind, digest, held is null from step order by id")
        seen.append((marks, where.rows("select body from answer order by step"), outcome_of(where, run_id)))
    assert seen[0] == seen[1]


def open_app_with_clock(place: Place, at: list[int]) -> Any:
    """Open an app whose clock is `at`."""
    from contextlib import asynccontextmanager

    @asynccontextmanager
    async def open_app() -> Any:
        ids = iter(
            f"run-{place.rows('select count(*) from run')[0][0] if place.has_tables() else 0}-{n}" for n in range(9)
        )
        app = App(place.settings(), "mcp", lambda: at[0], lambda: next(ids))
        try:
            yield app
        finally:
            await app._close()

    return open_app()


@pytest.mark.parametrize("jump_ms", [-24 * 3_600_000, 10 * 365 * 24 * 3_600_000])
async def test_a_run_goes_on_whatever_the_clock_says(place: Place, jump_ms: int) -> None:
    at = [10**12]
    async with open_app_with_clock(place, at) as app:
        run_id = await start_run(app, route="caller", caller_tools=(ASK,))
        await answer_run(app, run_id, round_1=ASKS)
    at[0] += jump_ms
    async with open_app_with_clock(place, at) as app:
        await answer_run(app, run_id, round_1__call_1={"content": "yes"})
        assert (await answer_run(app, run_id, round_2=DONE)).status == "completed"


def let_reads_wait(app: App) -> None:
    """Have reads wait from now on, as behind a network: each in a thread, by a session of its own."""
    store = app._store
    store.open()

    async def read(function: Callable[[Session], Any], *, one_state: bool = False) -> Any:
        def read_alone() -> Any:
            with store.read_session() as session, session.one_state() if one_state else nullcontext():
                return function(session)

        return await asyncio.to_thread(read_alone)

    store.read = read


async def test_runs_go_on_as_ever_where_reads_wait_and_others_write_meanwhile(place: Place) -> None:
    both = {"tool_calls": [READS["tool_calls"][0], READS["tool_calls"][0]]}
    async with open_checked_app(place.settings(reads("a.txt"), says("done"))) as app:
        let_reads_wait(app)
        ended, *asked = await asyncio.gather(
            start_run(app, "one"), *(start_run(app, f"ask {n}", route="caller") for n in range(3))
        )
        assert (await rests(app, ended)).summary == "done"
        await asyncio.gather(
            *(answer_run(app, run_id, round_1=both) for run_id in asked),
            *(app.runs.report(run_id, ME) for run_id in asked * 4),
        )
        await app.control.cancel(asked[0], ME)
        await asyncio.gather(*(answer_run(app, run_id, round_2=DONE) for run_id in asked[1:]))
        statuses = [(await app.runs.report(run_id, ME)).status for run_id in asked]
    assert statuses == ["cancelled", "completed", "completed"]
    assert place.rows("select count(*) from step left join answer on step = step.id where answer.step is null") == [
        (1,)
    ]


async def test_a_settings_file_that_was_changed_after_the_server_began_is_named(place: Place) -> None:
    place.home.mkdir(mode=0o700)
    file = place.home / "kairos.toml"
    file.write_text("default_rounds = 3\n")

    async def notes(app: Any) -> list[str]:
        run_id = await start_run(app, route="caller")
        return [note for note in (await app.runs.report(run_id, ME)).degraded if "restart" in note]

    async with open_checked_app(place.settings()) as app:
        assert await notes(app) == []
        file.write_text("default_rounds = 4\n")
        assert await notes(app) == ["kairos.toml was changed after this server began: a restart makes it count."]
        file.write_text("default_rounds = 3\n")
        assert await notes(app) == []
    file.unlink()
    async with open_checked_app(place.settings()) as app:
        assert await notes(app) == []
        file.write_text("default_rounds = 3\n")
        assert len(await notes(app)) == 1


async def test_a_server_that_began_before_the_settings_file_changed_is_known_to_others(place: Place) -> None:
    place.home.mkdir(mode=0o700)
    file = place.home / "kairos.toml"
    file.write_text("default_rounds = 3\n")
    async with open_checked_app(place.settings()) as app:
        await start_run(app, route="caller")
        async with open_checked_app(place.settings()) as other:
            assert await other.control.differing_servers() == []
        file.write_text("default_rounds = 4\n")
        os.utime(file, (4_000_000_000, 4_000_000_000))
        async with open_checked_app(place.settings()) as other:
            ((server, names),) = await other.control.differing_servers()
            assert (server.pid, names) == (os.getpid(), ["default_rounds"])


async def test_a_comment_on_a_denial_stands_apart_from_our_own_sentence(place: Place) -> None:
    write = {"tool_calls": [{"name": "write_file", "arguments": {"path": "n.txt", "content": "1 + 1"}}]}
    async with open_checked_app(place.settings(write, says("done"))) as app:
        run_id = (await app.runs.start(PlannerRequest("x", tools=("write_file",)), ME)).run_id
        (item,) = (await rests(app, run_id)).waiting
        await app.answers.decide(run_id, item["key"], "deny", "no sums", PERSON)
        await rests(app, run_id)
    ((body,),) = place.rows("select body from answer join step on step.id = step where path = 'round-1/call-1'")
    assert 'They say: "no sums". Do it otherwise' in json.loads(body)["content"]


async def test_a_tool_that_was_not_offered_is_answered_with_the_nearest(place: Place) -> None:
    async with open_checked_app(
        place.settings({"tool_calls": [{"name": "read_fil", "arguments": {}}]}, says("done"))
    ) as app:
        run_id = await start_run(app)
        await rests(app, run_id)
        with pytest.raises(UnknownTool) as unknown:
            await app.runs.start_call("read_fil", {}, ME)
    ((body,),) = place.rows("select body from answer join step on step.id = step where path = 'round-1/call-1'")
    for told in (json.loads(body)["content"], unknown.value.hint):
        names = told.partition(": ")[2]
        assert names.startswith("read_file, ")
        assert names.count(", ") == 4


async def test_the_spec_of_a_call_that_was_not_read_back_is_the_one_that_was_stored(place: Place) -> None:
    async with App.open(place.settings(), via="mcp") as app:
        arguments = {"path": "a.txt", "start_line": 1, "line_numbers": True}
        run = await app.runs.find(await app.runs.start_call("read_file", arguments, ME), ME)
        built = await app._context.factory.specs.load(run)
        app._context.factory.specs.forget()
        stored = await app._context.factory.specs.load(run)
    assert built is not stored
    assert (built.spec, built.offered_tools.digest) == (stored.spec, stored.offered_tools.digest)


async def test_a_call_that_waits_is_shown_as_waiting_among_the_messages(place: Place) -> None:
    turn = {"tool_calls": [*reads("a.txt")["tool_calls"], *asks("may I?")["tool_calls"]]}
    async with open_checked_app(place.settings(turn, says("done"))) as app:
        run_id = await start_run(app, caller_tools=(ASK,))
        items = (await app.records.trace(run_id, TraceQuery("messages"), ME))["items"]
        results = [(item["tool_call_id"], item.get("state")) for item in items if item["role"] == "tool"]
        assert results == [("round-1/call-1", None), ("round-1/call-2", "open")]
        assert "alpha" in items[-2]["content"]
        await finish_run(app, run_id)
        items = (await app.records.trace(run_id, TraceQuery("messages"), ME))["items"]
        (answered,) = [item["content"] for item in items if item.get("tool_call_id") == "round-1/call-2"]
        assert answered.endswith("yes")
