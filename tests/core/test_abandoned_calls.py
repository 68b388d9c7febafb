"""A call that is given up while its transaction waits for its turn: what it wrote holds, and its run goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from support.app import ME, Place, rests, says, start_run

from kairos_mcp.app.app import App
from kairos_mcp.core.run_spec import PlannerRequest


async def give_up_while_queued(app: App, call: Coroutine[Any, Any, object]) -> None:
    """Cancel the call once its transaction is queued, which is then written all the same."""
    writer = app._store.writer
    with writer.active_run(), writer.active_run():  # several runs move: transactions are grouped
        task = asyncio.create_task(call)
        while not writer._queue:
            assert not task.done()
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        await app._store.submit(lambda _: None)  # committed after it


async def test_a_run_goes_on_with_an_answer_whose_call_was_given_up(place: Place) -> None:
    async with App.open(place.settings(), via="mcp") as app:
        run_id = await start_run(app, route="caller")
        app._context.pool._parked.clear()  # so that the answer is recorded, and then the run is taken up
        await give_up_while_queued(app, app.answers.submit(run_id, {"round-1": {"content": "done"}}, ME))
        assert (await rests(app, run_id)).status == "completed"


async def test_a_run_that_is_at_hand_goes_on_too(place: Place) -> None:
    async with App.open(place.settings(), via="mcp") as app:
        run_id = await start_run(app, route="caller")
        await give_up_while_queued(
            app, app.answers.submit(run_id, {"round-1": {"content": "", "tool_calls": [LOOK]}}, ME)
        )
        assert [item["key"] for item in (await rests(app, run_id)).waiting] == ["round-2"]


async def test_a_run_moves_whose_start_was_given_up(place: Place) -> None:
    async with App.open(place.settings(says("done")), via="mcp") as app:
        await start_run(app, "another")
        await give_up_while_queued(app, app.runs.start(PlannerRequest("look"), ME))
        (run_id,) = await app.runs.newest_ids(ME, 1)
        assert (await rests(app, run_id)).status == "completed"


LOOK = {"name": "read_file", "arguments": {"path": "a.txt"}}
