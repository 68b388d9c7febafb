"""A completion whose attempt failed, or was lost, goes to whoever a reroute names."""

import pytest
from support.app import ME, WITHIN_S, Place, assert_lawful, place_in, wait_for_step

from kairos_mcp.app.app import App
from kairos_mcp.core.errors import BadArguments
from kairos_mcp.core.limits import Limits
from kairos_mcp.core.run_spec import PlannerRequest


@pytest.fixture
def place(tmp_path):  # type: ignore[no-untyped-def]  # a fixture of pytest's
    return place_in(tmp_path)


BUSY = {"error": {"code": "provider_busy", "message": "Later.", "retryable": True}, "delay_s": 0.2}


async def test_a_failed_attempt_is_handed_to_the_caller(place: Place) -> None:
    """The script fails for good in its place, and the caller answers what it could not."""
    async with App.open(place.settings(BUSY), via="test") as app:
        run = await app.runs.start(PlannerRequest("Look."), ME)
        await wait_for_step(app, "round-1")
        await app.control.pause(run.run_id, ME)
        await app.runs.wait([run.run_id], until="rest", wait_s=WITHIN_S, caller=ME)
        await app.control.reroute(run.run_id, "caller", ME)
        await app.control.request(run.run_id, "resume", ME)
        await app.runs.wait([run.run_id], until="rest", wait_s=WITHIN_S, caller=ME)
        report = await app.runs.report(run.run_id, ME)
        assert report.status == "input_required"
        assert [item["key"] for item in report.waiting] == ["round-1"]
        assert report.remaining["rounds"] == 4
        assert_lawful(place, run.run_id)
        assert place.rows("select ended, waits_outside from attempt order by id")[-1] == ("provider_busy", 1)
    async with App.open(place.settings(BUSY), via="test") as other:  # and from the rows alone
        assert [item["key"] for item in (await other.runs.report(run.run_id, ME)).waiting] == ["round-1"]
        await other.answers.submit(run.run_id, {"round-1": {"content": "Done.", "finish": "stop"}}, ME)
        await other.runs.wait([run.run_id], until="done", wait_s=WITHIN_S, caller=ME)
        report = await other.runs.report(run.run_id, ME)
        assert (report.status, report.summary, report.rounds) == ("completed", "Done.", 1)
        assert (await other.records.replay(run.run_id, ME)).identical
    assert_lawful(place, run.run_id)
    ((spent, held),) = place.rows(
        "select spent_rounds + spent_tool_calls, held_rounds + held_model_calls from account where scope = 'run'"
    )
    assert (spent, held) == (1, 0)


async def test_auto_passes_over_a_script_where_dollars_are_limited(place: Place) -> None:
    """As at a start: a script has no price, and the provider has."""
    priced = {"model": "openai:small", "base_url": "http://127.0.0.1:9/v1", "price_input": 1.0, "price_output": 2.0}
    dollar = Limits(nano_usd=10**9)
    async with App.open(place.settings(BUSY, **priced), via="test") as app:
        run_id = (await app.runs.start(PlannerRequest("Look.", route="provider", limits=dollar), ME)).run_id
        await wait_for_step(app, "round-1")
        await app.control.reroute(run_id, "auto", ME)
        assert any("limits.usd is set" in line for line in (await app.runs.report(run_id, ME)).degraded)
        with pytest.raises(BadArguments, match="scripted"):
            await app.control.reroute(run_id, "scripted", ME)
        await app.control.cancel(run_id, ME)
        await app.runs.wait([run_id], until="done", wait_s=WITHIN_S, caller=ME)
    assert place.rows("select body from inbox where kind = 'reroute'") == [("provider",)]


async def test_a_handed_out_attempt_can_be_rerouted_back(place: Place) -> None:
    lines = ({**BUSY, "for": "round-1"}, {"content": "unused"})
    async with App.open(place.settings(*lines), via="test") as app:
        run = await app.runs.start(PlannerRequest("Look."), ME)
        await wait_for_step(app, "round-1")
        control = app.control
        for does in (
            control.pause(run.run_id, ME),
            control.reroute(run.run_id, "caller", ME),
            control.request(run.run_id, "resume", ME),
        ):
            await does
            await app.runs.wait([run.run_id], until="rest", wait_s=WITHIN_S, caller=ME)
        assert (await app.runs.report(run.run_id, ME)).status == "input_required"
        await app.control.reroute(run.run_id, "scripted", ME)
        await app.control.cancel(run.run_id, ME)
        await app.runs.wait([run.run_id], until="done", wait_s=WITHIN_S, caller=ME)
        assert (await app.runs.report(run.run_id, ME)).status == "cancelled"
    assert_lawful(place, run.run_id)
    assert place.rows("select held_rounds + held_model_calls + held_total_tokens from account") == [(0,), (0,)]
