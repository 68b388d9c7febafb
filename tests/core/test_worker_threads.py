"""Threads for functions that may block: each call gets its result, wherever the event loop waits for it or does not."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest
from support.app import ME, Place, answer_run, open_checked_app, reads, rests, says, start_run
from support.counted_calls import counting_calls

from kairos_mcp.app.app import App
from kairos_mcp.app.run_steps import StepsQuery
from kairos_mcp.core.messages import ToolResult, ToolSpec
from kairos_mcp.core.run_spec import PlannerRequest
from kairos_mcp.core.tool import Tool
from kairos_mcp.execution.worker_threads import WorkerThreads
from kairos_mcp.tools.registry import ToolRegistry
from kairos_mcp.views.trace import TraceQuery

WITHIN_S = 20.0


@pytest.fixture
async def threads() -> AsyncIterator[WorkerThreads]:
    """Three threads at most, one of which is there and idle."""
    made = WorkerThreads(3, "tested")
    await made.call(WITHIN_S, threading.get_ident)
    yield made
    made.close()


async def test_a_call_that_is_soon_over_has_its_result_at_once(threads: WorkerThreads) -> None:
    called = threads.call_in_place(WITHIN_S, threading.get_ident)
    assert called.done()
    assert called.result() != threading.get_ident()


async def test_what_is_called_together_is_called_in_one_thread_in_order(threads: WorkerThreads) -> None:
    order: list[int] = []

    def note(number: int) -> int:
        order.append(number)
        return threading.get_ident()

    called = [threads.call_together(WITHIN_S, note, number) for number in range(20)]
    assert order == []  # the turn of the event loop is not over
    assert len({await each for each in called}) == 1
    assert order == list(range(20))


@pytest.mark.parametrize("way", ["call", "call_in_place", "call_together"])
async def test_a_failure_reaches_whoever_called_and_nobody_else(threads: WorkerThreads, way: str) -> None:
    call: Callable[..., asyncio.Future[int]] = getattr(threads, way)
    failing, other = call(WITHIN_S, int, "no number"), call(WITHIN_S, int, "7")
    assert await other == 7
    with pytest.raises(ValueError, match="no number"):
        await failing


async def test_a_call_that_takes_long_holds_up_none_of_those_beside_it(threads: WorkerThreads) -> None:
    goes_on = threading.Event()
    before = threads.call_together(WITHIN_S, int, "1")
    long = threads.call_together(WITHIN_S, goes_on.wait, WITHIN_S)
    behind = [threads.call_together(WITHIN_S, int, "2") for _ in range(5)]
    assert await asyncio.gather(before, *behind) == [1, 2, 2, 2, 2, 2]
    assert not long.done()
    goes_on.set()
    assert await long
    assert await threads.call_in_place(WITHIN_S, int, "3") == 3


async def test_where_no_further_thread_can_be_started_the_one_there_is_makes_all_calls(
    threads: WorkerThreads, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on = threading.Event()
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", no_room)
        long = threads.call_together(WITHIN_S, goes_on.wait, WITHIN_S)
        behind = [threads.call_together(WITHIN_S, int, "2") for _ in range(5)]
        await asyncio.sleep(0)  # they are given to the thread, and it does not end in time
        await asyncio.sleep(0)
    goes_on.set()
    assert await asyncio.wait_for(asyncio.gather(long, *behind), WITHIN_S) == [True, 2, 2, 2, 2, 2]


async def test_where_no_thread_can_be_started_at_all_a_call_fails_and_the_next_one_tries_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    none_yet = WorkerThreads(3, "tested")
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", no_room)
        together = [none_yet.call_together(WITHIN_S, int, "1") for _ in range(3)]
        for each in (none_yet.call(WITHIN_S, int, "1"), *together):
            with pytest.raises(RuntimeError, match="can't start new thread"):
                await asyncio.wait_for(each, WITHIN_S)
    assert await asyncio.wait_for(none_yet.call(WITHIN_S, int, "1"), WITHIN_S) == 1
    none_yet.close()


def no_room(_thread: threading.Thread) -> None:
    """As Python's own `start` where the machine has no room for another thread."""
    raise RuntimeError("can't start new thread")


async def test_the_event_loop_leaves_a_call_in_place_that_takes_long(threads: WorkerThreads) -> None:
    goes_on = threading.Event()
    long = threads.call_in_place(WITHIN_S, goes_on.wait, WITHIN_S)
    assert not long.done()  # and here we are
    goes_on.set()
    assert await long


@pytest.mark.parametrize("way", ["call", "call_in_place", "call_together"])
async def test_a_call_ends_when_its_time_is_over_whatever_the_thread_does(threads: WorkerThreads, way: str) -> None:
    goes_on = threading.Event()
    call: Callable[..., asyncio.Future[bool]] = getattr(threads, way)
    with pytest.raises(TimeoutError):
        await call(0.05, goes_on.wait, WITHIN_S)
    goes_on.set()
    assert await threads.call(WITHIN_S, int, "4") == 4


async def test_a_tool_that_answers_at_once_is_called_in_the_event_loop_and_others_are_not(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are checked, redacted and stored alike."""
    seen: dict[str, int] = {}

    def run(arguments: dict[str, Any], _ctx: object) -> ToolResult:
        seen[arguments["name"]] = threading.get_ident()
        return ToolResult(arguments["name"])

    schema = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    tools = [
        Tool(ToolSpec(name, "Notes who calls it.", schema, effect="read"), run, at_once=at_once)
        for name, at_once in (("at_once", run), ("in_a_thread", None), ("asked_first", lambda *_asked: None))
    ]
    calls = [{"name": tool.spec.name, "arguments": {"name": tool.spec.name}} for tool in tools]
    wrong = {"name": "at_once", "arguments": {}}
    settings = place.settings({"tool_calls": calls}, {"tool_calls": [wrong]}, says("done"))
    async with App.open(settings, via="mcp") as app:
        found = replace(app._context.factory.resources(None), registry=ToolRegistry(tools))
        monkeypatch.setattr(app._context.factory, "resources", lambda _workspace: found)
        await rests(app, (await app.runs.start(PlannerRequest("look"), ME)).run_id)
    here = threading.get_ident()
    assert seen["at_once"] == here
    assert here not in (seen["in_a_thread"], seen["asked_first"])
    rows = place.rows("select body from answer join step on step.id = answer.step where kind = 'call' order by step.id")
    results = [json.loads(body) for (body,) in rows]
    assert [(each["content"], each["is_error"]) for each in results[:3]] == [
        ("at_once", False),
        ("in_a_thread", False),
        ("asked_first", False),
    ]
    assert results[3]["code"] == "bad_arguments"


HIDDEN = "a\u200b" * 100_000  # each pair takes some calls to spell out


async def test_a_long_result_is_shortened_in_a_worker_thread(place: Place) -> None:
    (place.workspace / "hidden.txt").write_text(HIDDEN)
    settings = place.settings(reads("a.txt", "hidden.txt"), says("done"))
    async with open_checked_app(settings) as app:
        with counting_calls() as counted:
            report = await app.runs.report(await start_run(app), ME)
    assert report.summary == "done"
    assert place.rows("select count(*) from text where body like '%⟦U+200B⟧%'") == [(1,)]
    assert counted.calls < len(HIDDEN)


async def test_a_long_result_that_a_caller_brings_is_shortened_in_a_worker_thread(place: Place) -> None:
    asks = {"tool_calls": [{"name": "ask", "arguments": {}}]}
    asked = ToolSpec("ask", "Asks the caller.", {"type": "object"}, effect="irreversible", source="caller")
    async with open_checked_app(place.settings()) as app:
        run_id = await start_run(app, route="caller", caller_tools=(asked,))
        await answer_run(app, run_id, round_1=asks)
        with counting_calls() as counted:
            for _ in range(2):  # the second is compared with the first
                await app.answers.submit(run_id, {"round-1/call-1": {"content": HIDDEN}}, ME)
    assert place.rows("select count(*) from text where body like '%⟦U+200B⟧%'") == [(1,)]
    assert counted.calls < len(HIDDEN)


async def test_the_record_of_a_run_is_searched_in_a_worker_thread(place: Place) -> None:
    (place.workspace / "lines.txt").write_text("a\n" * 20_000)
    async with open_checked_app(place.settings(reads("lines.txt"), says("done"))) as app:
        run_id = await start_run(app)
        ref = (await app.runs.report(run_id, ME)).calls[0]["ref"]
        with counting_calls() as counted:
            found = await app.records.trace(run_id, TraceQuery(ref=ref, grep="^a$"), ME)
            events = await app.records.trace(run_id, TraceQuery(grep="lines.txt"), ME)
            steps = await app.records.frame(run_id, StepsQuery(grep="lines.txt"), ME)
    assert found["text"].startswith("1: a\n2: a\n")
    assert events["total"] == 0 < len(steps["steps"])
    assert counted.calls < 20_000


async def test_calls_beyond_the_threads_wait_for_one(threads: WorkerThreads) -> None:
    goes_on, begun = threading.Event(), threading.Barrier(4)

    def hold() -> bool:
        begun.wait(WITHIN_S)
        return goes_on.wait(WITHIN_S)

    held = [threads.call(WITHIN_S, hold) for _ in range(3)]
    waiting = [threads.call_together(WITHIN_S, int, "5") for _ in range(4)]
    await asyncio.to_thread(begun.wait, WITHIN_S)
    assert not any(each.done() for each in waiting)
    goes_on.set()
    assert await asyncio.gather(*held, *waiting) == [True, True, True, 5, 5, 5, 5]


async def test_what_has_not_begun_is_cancelled_at_the_end(threads: WorkerThreads) -> None:
    called = threads.call_together(WITHIN_S, int, "6")
    threads.close()
    assert called.cancelled()
