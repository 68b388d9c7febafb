"""Each limit of a run ends it, with a summary, and is never passed by what this server does itself."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.app import (
    ASK,
    ME,
    Books,
    Place,
    answer_run,
    asked_digests,
    few,
    finish_run,
    open_checked_app,
    outcome_of,
    place_in,
    reads,
    rests,
    says,
    start_run,
)

from kairos_mcp.core.errors import BadArguments
from kairos_mcp.core.limits import Limits
from kairos_mcp.core.messages import ToolSpec
from kairos_mcp.settings.settings import Settings

MANY = [reads("a.txt", "b.txt"), reads("b.txt"), reads("a.txt"), reads("b.txt", "a.txt"), says("by myself")]
SUMMED = {"for": "closing", "content": "summed up"}


@pytest.mark.parametrize(
    ("limits", "reason", "closes"),
    [
        (Limits(rounds=2), "max_rounds", True),
        (Limits(rounds=0), "max_rounds", True),
        (Limits(model_calls=2), "budget", True),
        (Limits(tool_calls=2), "budget", True),
        (Limits(tool_calls=0), "budget", True),
        (Limits(model_calls=0), "budget", False),
        (Limits(input_tokens=1), "budget", False),
        (Limits(output_tokens=10), "budget", False),
        (Limits(total_tokens=100), "budget", False),
        (Limits(milliseconds=0), "timeout", True),
    ],
)
async def test_a_limit_ends_the_run_with_a_summary(place: Place, limits: Limits, reason: str, closes: bool) -> None:
    async with open_checked_app(place.settings(*MANY, SUMMED)) as app:
        report = await app.runs.report(await start_run(app, limits=limits), ME)
        assert (report.status, report.stop_reason) == ("stopped", reason)
        assert (report.summary, report.record is None) == (("summed up", True) if closes else (None, False))
        for unit, left in report.remaining.items():
            assert left is None or left >= 0, unit


async def test_a_refused_round_takes_no_line_of_the_script(place: Place) -> None:
    async with open_checked_app(place.settings(reads("a.txt"), says("the closing words"), says("too late"))) as app:
        report = await app.runs.report(await start_run(app, limits=Limits(rounds=1)), ME)
        assert (report.stop_reason, report.summary) == ("max_rounds", "the closing words")


async def test_a_closing_is_told_where_the_run_stands_as_its_rounds_were(place: Place) -> None:
    """Its prompt names the limit alone: the figures are in the line, wherever the closing is answered."""
    async with open_checked_app(place.settings(*MANY)) as app:
        run_id = await start_run(app, limits=Limits(rounds=1, tool_calls=4), route="caller")
        read = {"tool_calls": [{"id": "1", "name": "read_file", "arguments": {"path": "a.txt"}}]}
        (item,) = (await answer_run(app, run_id, round_1=read)).waiting
        assert item["key"] == "closing"
        assert item["messages"][-1]["content"].endswith("\n\n[round 1 of 1, 1 of 4 tool calls]")
        scripted = await start_run(app, "on a script", limits=Limits(rounds=1, tool_calls=9))
        lines = (
            "select path, json_extract(sent, '$.tail') from step join run on run.n = run"
            " where run.id = ? and path in ('round-1', 'closing') order by step.id"
        )
        assert place.rows(lines, scripted) == [
            ("round-1", "[round 1 of 1, 0 of 9 tool calls]"),
            ("closing", "[round 1 of 1, 2 of 9 tool calls]"),
        ]


async def test_time_spent_thinking_counts_and_the_closing_has_time_of_its_own(place: Place) -> None:
    slow = [reads("a.txt", delay_s=0.15), reads("a.txt", delay_s=0.15), SUMMED | {"delay_s": 0.15}]
    async with open_checked_app(place.settings(*slow)) as app:
        report = await app.runs.report(await start_run(app, limits=Limits(milliseconds=200)), ME)
        assert (report.stop_reason, report.summary) == ("timeout", "summed up")
        assert 0.15 <= report.usage["seconds"] < 2


async def test_time_spent_waiting_for_the_caller_does_not_count(place: Place) -> None:
    async with open_checked_app(place.settings()) as app:
        run_id = await start_run(app, route="caller", limits=Limits(milliseconds=1_000))
        report = await answer_run(app, run_id, round_1={"content": "done", "finish": "stop"})
        assert (report.status, report.usage["seconds"]) == ("completed", 0)


async def test_tokens_that_the_caller_brings_may_pass_a_limit_by_their_own_size_and_it_is_said(
    place: Place,
) -> None:
    turn = {"tool_calls": [], "content": "", **reads("a.txt"), "usage": {"input_tokens": 900, "output_tokens": 200}}
    async with open_checked_app(place.settings()) as app:
        run_id = await start_run(app, route="caller", limits=Limits(total_tokens=1_000))
        before = (await app.runs.report(run_id, ME)).degraded
        report = await answer_run(app, run_id, round_1=turn)
        assert (report.status, report.stop_reason) == ("stopped", "budget")
        assert report.usage["input_tokens"] + report.usage["output_tokens"] == 1_100
        assert len(set(report.degraded) - set(before)) >= 1


async def test_money_can_not_be_limited_where_nothing_has_a_price(place: Place) -> None:
    async with open_checked_app(place.settings(*MANY)) as app:
        for route in ("auto", "caller", "scripted"):
            with pytest.raises(BadArguments):
                await start_run(app, route=route, limits=Limits(nano_usd=10**9))
        await start_run(app)


async def test_a_caller_can_only_narrow_what_the_configuration_allows(place: Place) -> None:
    settings = place.settings(limits=Limits(rounds=3, tool_calls=7))
    async with open_checked_app(settings) as app:
        wide = await app.runs.report(await start_run(app, route="caller", limits=Limits(rounds=50)), ME)
        narrow = await app.runs.report(await start_run(app, "else", route="caller", limits=Limits(rounds=1)), ME)
        assert (wide.remaining["rounds"], narrow.remaining["rounds"]) == (2, 0)
        assert (wide.remaining["tool_calls"], narrow.remaining["tool_calls"]) == (7, 7)
        assert len(wide.degraded) > len(narrow.degraded)


async def test_reads_side_by_side_share_what_is_left_of_the_calls(place: Place) -> None:
    async with open_checked_app(place.settings(reads("a.txt", "b.txt", "a.txt"), SUMMED)) as app:
        report = await app.runs.report(await start_run(app, limits=Limits(tool_calls=2)), ME)
        assert (report.usage["tool_calls"], report.stop_reason) == (2, "budget")
        assert [call["ok"] for call in report.calls] == [True, True, False]


# -- laws --------------------------------------------------------------------------------------------------------

PERSON = ToolSpec("ask_person", "Asks.", {"type": "object"}, effect="read", source="caller")
file_reads = st.sampled_from(("a.txt", "b.txt", "missing.txt"))
usage = st.none() | st.fixed_dictionaries({"input_tokens": st.integers(0, 3_000), "output_tokens": st.integers(0, 600)})


@st.composite
def turns(draw: Any) -> dict[str, Any]:
    """A turn of a script: calls of every kind, an end, a flaw."""
    reported = draw(usage)
    more = {} if reported is None else {"usage": reported}
    match draw(st.sampled_from(("calls", "calls", "calls", "final", "truncated", "empty", "error"))):
        case "final":
            return says("done", **more)
        case "truncated":
            return {"content": "cut", "finish": "length", **more}
        case "empty":
            return {"content": "", **more}
        case "error":
            return {"error": {"code": "provider_error", "message": "gone"}}
        case _:
            calls = draw(st.lists(file_reads | st.sampled_from(("ask", "unknown")), min_size=1, max_size=4))
            return {"content": "look", "tool_calls": [_call(each) for each in calls], **more}


def _call(what: str) -> dict[str, Any]:
    match what:
        case "ask":
            return {"name": "ask_person", "arguments": {"n": None}}
        case "unknown":
            return {"name": "no_such_tool", "arguments": {}}
        case path:
            return {"name": "read_file", "arguments": {"path": path}}


limits = st.fixed_dictionaries(
    {
        "rounds": st.none() | st.integers(0, 5),
        "model_calls": st.none() | st.integers(0, 6),
        "total_tokens": st.none() | st.integers(0, 40_000),
        "output_tokens": st.none() | st.integers(0, 6_000),
        "tool_calls": st.none() | st.integers(0, 6),
    }
).map(lambda given: Limits(**given))
scripts = st.lists(turns(), min_size=1, max_size=6)


@few
@given(scripts, limits, st.sampled_from(("pause", "reroute", "stop", "none")), st.integers(0, 3))
async def test_the_books_are_in_order_at_every_moment_and_no_limit_is_passed(
    tmp_path_factory: pytest.TempPathFactory, script: Any, limits: Limits, action: str, after: int
) -> None:
    place = place_in(tmp_path_factory.mktemp("books") / "place")
    settings = place.settings(*script)
    async with open_checked_app(settings) as app:
        run_id = await start_run(app, limits=limits, caller_tools=(PERSON,))
        assert_within(place, run_id, limits)
        for number in range(20):
            report = await rests(app, run_id)
            if report.status not in ("input_required", "paused"):
                break
            if number == after:
                await request_action(app, run_id, action)
                report = await rests(app, run_id)
            await app.answers.submit(run_id, {item["key"]: reply(item) for item in report.waiting[:2]}, ME)
            assert_within(place, run_id, limits)
        await rests(app, run_id)
        assert_within(place, run_id, limits)


def reply(item: dict[str, Any]) -> dict[str, Any]:
    return {"content": "yes"} if item["kind"] == "tool_call" else says("done by caller")


async def request_action(app: Any, run_id: str, action: str) -> None:
    match action:
        case "pause":
            await app.control.pause(run_id, ME)
            await app.control.request(run_id, "resume", ME)
        case "reroute":
            await app.control.reroute(run_id, "caller", ME)
        case "stop":
            await app.control.cancel(run_id, ME)
        case _:
            pass


def assert_within(place: Place, run_id: str, limits: Limits) -> None:
    books = Books.of(place, run_id)
    assert books.spent == books.spent_by_rows
    assert books.ended or books.held == books.held_by_rows
    for unit in ("rounds", "model_calls", "tool_calls"):
        cap = getattr(limits, unit)
        assert cap is None or getattr(books.spent.plus(books.held), unit) <= cap, unit


@few
@given(scripts)
async def test_every_call_of_an_executed_turn_has_exactly_one_row_in_order(
    tmp_path_factory: pytest.TempPathFactory, script: Any
) -> None:
    place = place_in(tmp_path_factory.mktemp("calls") / "place")
    async with open_checked_app(place.settings(*script)) as app:
        run_id = await start_run(app, caller_tools=(PERSON,), limits=Limits(rounds=8))
        await finish_run(app, run_id)
    executed = [line for line in script if line.get("tool_calls")]
    rows = [path for (path,) in place.rows("select path from step where kind = 'call' order by id")]
    by_round: dict[str, list[str]] = {}
    for path in rows:
        by_round.setdefault(path.split("/")[0], []).append(path)
    for name, paths in by_round.items():
        assert sorted(paths, key=lambda path: int(path.rpartition("-")[2])) == [
            f"{name}/call-{n}" for n in range(1, len(paths) + 1)
        ]
    assert len(by_round) <= len(executed)
    assert outcome_of(place, run_id) is not None
    assert len(asked_digests(place, run_id)) == len(place.rows("select 1 from step"))


async def test_usage_is_the_sum_of_its_rows(place: Place) -> None:
    reported = {"input_tokens": 50, "output_tokens": 7, "cached_tokens": 5}
    settings: Settings = place.settings(reads("a.txt", usage=reported), reads("b.txt"), says("done", usage=reported))
    async with open_checked_app(settings) as app:
        report = await app.runs.report(await start_run(app), ME)
        spent = [row[0] for row in place.rows("select spent ->> 2 from answer")]
        assert report.usage["input_tokens"] == sum(spent)
        assert report.usage["cached_tokens"] == 10
        assert report.usage["exactness"] == "estimated"  # the second round reported nothing
        assert (report.usage["model_calls"], report.usage["attempts"]) == (3, 3)


_ = ASK
