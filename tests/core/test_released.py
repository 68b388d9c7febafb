"""A call that was begun and has not been made yet is not made any more once its run belongs to another."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace

import pytest
from support.app import ME, PERSON, Place, rests

from kairos_mcp.app.app import App
from kairos_mcp.app.run_factory import THREADS
from kairos_mcp.core.effects import Effect
from kairos_mcp.core.errors import FenceLost
from kairos_mcp.core.messages import JsonObject, ToolResult, ToolSpec
from kairos_mcp.core.redaction import Redactor
from kairos_mcp.core.tool import Tool, ToolContext, ToolMemory
from kairos_mcp.tools.tool import call_redacted

SECONDS = 20
BUSY = "touch busy-$0; while [ -e hold ]; do sleep 0.02; done"


async def so(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(SECONDS):
        while not is_so():  # noqa: ASYNC110 - files, rows and threads have no event
            await asyncio.sleep(0.01)


async def approve_call(app: App, run_id: str) -> None:
    await app.answers.decide(run_id, "call-1/approval", "approve", None, PERSON)


async def test_a_command_that_waits_for_a_thread_is_not_run_twice_after_a_release(place: Place) -> None:
    """Its threads are busy until a person has released the server, as where it was stopped, or hangs. The call is made
    by whoever takes the run then, since it never left; the one that waited here is not."""
    hold, late = place.workspace / "hold", place.workspace / "late.txt"
    hold.write_text("")
    argvs = [*(["sh", "-c", BUSY, str(n)] for n in range(THREADS)), ["sh", "-c", "echo late >> late.txt"]]
    async with App.open(place.settings(commands="bare"), via="mcp") as app:
        *busy, waits = [await app.runs.start_call("run_command", {"argv": argv}, ME) for argv in argvs]
        await rests(app, waits, *busy)
        for run_id in busy:
            await approve_call(app, run_id)
        await so(lambda: len(list(place.workspace.glob("busy-*"))) == THREADS)
        await approve_call(app, waits)
        await so(lambda: place.rows("select count(*) from attempt") == [(THREADS + 1,)])
        ((owner,),) = place.rows("select distinct owner from run")
        async with App.open(place.settings(), via="command") as person:
            assert await person.control.release(owner, PERSON) == THREADS + 1
        hold.unlink()
        threads = app._context.factory._workers
        assert threads is not None
        await so(lambda: len(threads._idle) == THREADS)
        # this server takes its runs up again, as any other might
        await so(lambda: place.rows("select count(*) from answer") == [(1,)])
        assert (await rests(app, waits)).status == "completed"
        for run_id in busy:
            await app.runs.wait([run_id], until="attention", wait_s=SECONDS, caller=ME)
            assert [item["key"] for item in (await app.runs.report(run_id, ME)).waiting] == ["call-1/settle"]
        assert late.read_text() == "late\n"


@pytest.mark.parametrize(("effect", "times"), [("read", 1), ("idempotent", 0), ("checked", 0), ("irreversible", 0)])
def test_a_tool_that_does_more_than_read_is_not_called_after_a_release(effect: Effect, times: int) -> None:
    """Whatever it is: a function of an installed package does not look by itself."""
    made: list[str] = []

    def run_tool(_arguments: JsonObject, ctx: ToolContext) -> ToolResult:
        made.append(ctx.path)
        return ToolResult("made")

    def raise_fence_lost() -> None:
        raise FenceLost("run-1")

    tool = Tool(ToolSpec("do_it", "Does it.", {"type": "object"}, effect), run_tool)
    memory = replace(ToolMemory.in_process(), check_owner=raise_fence_lost)
    ctx = ToolContext("run-1", time.monotonic() + SECONDS, lambda _: None, "round-1/call-1", memory)
    with nullcontext() if times else pytest.raises(FenceLost):
        call_redacted(Redactor(), tool, {}, ctx)
    assert len(made) == times
