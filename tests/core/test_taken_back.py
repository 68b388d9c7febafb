"""A closing that only waits is taken back by an extension: it is answered so, and the loop goes on."""

from __future__ import annotations

import pytest
from support.app import ME, Place, reads, rests, says, wait_for_step

from kairos_mcp.app.app import App
from kairos_mcp.core.errors import Stale
from kairos_mcp.core.limits import UNLIMITED
from kairos_mcp.core.run_spec import PlannerRequest

LOOKS = {"tool_calls": [{"id": "1", "name": "list_files", "arguments": {}}]}
ONE_MORE = UNLIMITED._replace(rounds=1)


async def closing(app: App) -> str:
    """A run whose one round is used up, and whose closing waits for the caller."""
    request = PlannerRequest("look", route="caller", limits=ONE_MORE)
    run_id = (await app.runs.start(request, ME)).run_id
    await rests(app, run_id)
    await app.answers.submit(run_id, {"round-1": LOOKS}, ME)
    assert [item["key"] for item in (await rests(app, run_id)).waiting] == ["closing"]
    return run_id


async def test_the_loop_goes_on_and_may_close_again(place: Place) -> None:
    async with App.open(place.settings(), via="mcp") as app:
        run_id = await closing(app)
        await app.control.extend(run_id, ONE_MORE, ME)
        report = await rests(app, run_id)
        assert [item["key"] for item in report.waiting] == ["round-3"]
        await app.answers.submit(run_id, {"round-3": LOOKS}, ME)
        assert [item["key"] for item in (await rests(app, run_id)).waiting] == ["closing-2"]
        await app.answers.submit(run_id, {"closing-2": {"content": "Two looks."}}, ME)
        ended = await rests(app, run_id)
        assert (ended.status, ended.stop_reason, ended.summary) == ("stopped", "max_rounds", "Two looks.")
        assert ended.usage["model_calls"] == 3, "the closing that was taken back cost nothing"
        with pytest.raises(Stale):
            await app.control.extend(run_id, ONE_MORE, ME)
    told = "select json_extract(body, '$.kind') from step join answer on step.id = answer.step where path = 'closing'"
    assert place.rows(told) == [("extended",)]


async def test_in_another_process_too(place: Place) -> None:
    async with App.open(place.settings(), via="mcp") as app:
        run_id = await closing(app)
    async with App.open(place.settings(), via="mcp") as app:
        await app.control.extend(run_id, ONE_MORE, ME)
        assert [item["key"] for item in (await rests(app, run_id)).waiting] == ["round-3"]


async def test_one_that_is_under_way_ends_the_run(place: Place) -> None:
    lines = (reads("a.txt"), says("One look.") | {"delay_s": 2})
    async with App.open(place.settings(*lines), via="mcp") as app:
        run_id = (await app.runs.start(PlannerRequest("look", limits=ONE_MORE), ME)).run_id
        await wait_for_step(app, "closing")
        with pytest.raises(Stale):
            await app.control.extend(run_id, ONE_MORE, ME)
        assert (await rests(app, run_id)).summary == "One look."
    assert place.rows("select count(*) from inbox") == [(0,)]
