"""A run whose record does not fit its flow any more can't go on; it can be read, gone on from, and cancelled."""

import pytest
from support.app import ME, WITHIN_S, Place

from kairos_mcp.app.app import App
from kairos_mcp.core.errors import Stale
from kairos_mcp.core.run_spec import PlannerRequest
from kairos_mcp.views.trace import TraceQuery

DAMAGE = {
    "a changed question": "update step set digest = (select start_digest from run limit 1) where path = 'round-1'",
    "an older flow": "update run set version = 0",
}


async def stuck(place: Place, damage: str) -> str:
    """A run on the caller route that waits for round 2, damaged while nobody has it in memory."""
    async with App.open(place.settings(), via="test") as app:
        run = await app.runs.start(PlannerRequest("Look.", route="caller"), ME)
        await app.runs.wait([run.run_id], until="rest", wait_s=WITHIN_S, caller=ME)
        asked = {"content": "", "tool_calls": [{"name": "read_file", "arguments": {"path": "a.txt"}}]}
        await app.answers.submit(run.run_id, {"round-1": asked}, ME)
        await app.runs.wait([run.run_id], until="rest", wait_s=WITHIN_S, caller=ME)
    place.rows(damage)
    return run.run_id


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
@pytest.mark.unreplayed
async def test_a_stuck_run_is_shown_and_says_how_to_go_on(place: Place, damage: str) -> None:
    run_id = await stuck(place, damage)
    async with App.open(place.settings(), via="test") as app:
        report = await app.runs.report(run_id, ME)
        assert report.status == "paused"
        assert report.next is not None
        assert report.next["tool"] == "planner_run"
        assert report.next["arguments"]["continues"] == run_id
        items = (await app.records.trace(run_id, TraceQuery("messages"), ME))["items"]
        assert [item["role"] for item in items] == ["system", "user", "assistant", "tool"]


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
@pytest.mark.unreplayed
async def test_a_new_run_goes_on_from_a_stuck_one(place: Place, damage: str) -> None:
    run_id = await stuck(place, damage)
    async with App.open(place.settings(), via="test") as app:
        new = await app.runs.start(PlannerRequest("Go on.", route="caller", continues=run_id), ME)
        await app.runs.wait([new.run_id], until="rest", wait_s=WITHIN_S, caller=ME)
        (item,) = (await app.runs.report(new.run_id, ME)).waiting
        assert [message["role"] for message in item["messages"]] == ["user", "assistant", "tool", "user"]


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
@pytest.mark.unreplayed
async def test_a_stuck_run_can_be_cancelled(place: Place, damage: str) -> None:
    run_id = await stuck(place, damage)
    async with App.open(place.settings(), via="test") as app:
        await app.control.cancel(run_id, ME)
        await app.runs.wait([run_id], until="done", wait_s=WITHIN_S, caller=ME)
        assert (await app.runs.report(run_id, ME)).status == "cancelled"


async def test_a_run_that_only_waits_is_not_gone_on_from(place: Place) -> None:
    run_id = await stuck(place, "select 1")
    async with App.open(place.settings(), via="test") as app:
        with pytest.raises(Stale):
            await app.runs.start(PlannerRequest("Go on.", route="caller", continues=run_id), ME)
