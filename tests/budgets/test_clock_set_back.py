"""A clock that is set back over midnight gives no day twice: the latest day that was begun is charged until it ends."""

from __future__ import annotations

import asyncio
import sys
import time

import pytest
from support.app import ME, Place, reads, rests, says, start_run
from support.daily_accounts import MIDNIGHT, ZONE, Clock, app_at, days_of, usage_of

from kairos_mcp.core.decision_rights import Caller
from kairos_mcp.core.limits import Limits
from kairos_mcp.core.run_spec import PlannerRequest

LINES = (reads("a.txt", **usage_of(1_000)), reads("b.txt", **usage_of(1_000)), says("done"))
HOUR = 3_600_000
DAY = Limits(model_calls=3)
LATER = MIDNIGHT + HOUR  # an hour into 2026-11-21


async def test_a_day_once_begun_is_charged_until_the_clock_has_passed_it(place: Place) -> None:
    clock = Clock(LATER)
    async with app_at(place.settings(*LINES, day=DAY, time_zone=ZONE), clock) as app:
        assert (await app.runs.report(await start_run(app, "one"), ME)).status == "completed"
        for back in (LATER - 2 * HOUR, MIDNIGHT - 48 * HOUR):
            clock.now = back
            report = await app.runs.report(await start_run(app, f"again at {back}"), ME)
            assert (report.status, report.rounds) == ("paused", 0)
            assert report.resume_at == "2026-11-22T05:00:00Z"  # when the later day ends
        assert (await app.records.read_spending(None, ME))["day"] == "2026-11-21"
        assert "earlier day" in (await app.records.read_spending(None, ME))["note"]
    assert list(days_of(place)) == ["2026-11-21"]
    assert days_of(place)["2026-11-21"].spent.model_calls == 3


async def test_another_server_whose_clock_is_behind_charges_the_later_day(place: Place) -> None:
    settings = place.settings(*LINES, day=DAY, time_zone=ZONE)
    async with app_at(settings, Clock(LATER)) as app:
        await start_run(app, "one")
    async with app_at(settings, Clock(LATER - 2 * HOUR)) as app:
        assert (await app.runs.report(await start_run(app, "two"), ME)).status == "paused"
    assert list(days_of(place)) == ["2026-11-21"]


async def test_a_clock_that_is_far_behind_stops_model_calls_until_a_person_says_that_it_is_right(place: Place) -> None:
    """Another principal, of whom no later day was begun, is not touched."""
    clock = Clock(MIDNIGHT + 30 * 24 * HOUR)
    settings = place.settings(*LINES, day=DAY, time_zone=ZONE)
    async with app_at(settings, clock) as app:
        await start_run(app, "one")
        clock.now = LATER
        stopped = await start_run(app, "two")
        report = await app.runs.report(stopped, ME)
        assert (report.status, report.rounds, report.resume_at) == ("paused", 0, None)
        assert report.next is None  # a resume would lead to the same pause
        assert any("--trust-clock" in why for why in report.held_up_by)
        assert "--trust-clock" in (await app.records.read_spending(None, ME))["note"]
        other = Caller("other")
        free = (await app.runs.start(PlannerRequest("free"), other)).run_id
        await app.runs.wait([free], until="rest", wait_s=20, caller=other)
        assert (await app.runs.report(free, other)).status == "completed"
        assert await app.control.trust_clock(ME) == ["2026-12-21"]
        await app.control.request(stopped, "resume", ME)
        assert (await rests(app, stopped)).status == "completed"
    assert set(days_of(place)) == {"2026-11-21", "2026-12-21"}
    assert set(days_of(place, "other")) == {"2026-11-21"}


async def test_the_command_lets_the_stopped_runs_go_on_and_the_later_day_keeps_what_was_used(place: Place) -> None:
    clock = Clock(4_000_000_000_000)  # of which this machine's clock knows nothing
    settings = place.settings(*LINES, day=DAY, time_zone=ZONE)
    async with app_at(settings, clock) as app:
        await start_run(app, "one")
        (later,) = days_of(place)
        clock.now = LATER
        stopped = await start_run(app, "two")
        assert (await app.runs.report(stopped, ME)).status == "paused"
        words = ("budget", "--trust-clock", "--home", str(place.home))
        command = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "kairos_mcp", *words, stdout=asyncio.subprocess.PIPE
        )
        assert later in (await command.communicate())[0].decode()
        clock.now = time.time_ns() // 1_000_000  # as the command's clock; a run that went on already has no time
        await app.runs.wait([stopped], until="done", wait_s=20, caller=ME)
        assert (await app.runs.report(stopped, ME)).status == "completed"
        clock.now = 4_000_000_000_000
        assert (await app.runs.report(await start_run(app, "three"), ME)).status == "paused"
    assert days_of(place)[later].spent.model_calls == 3


@pytest.mark.parametrize("period", ["2026-11-31", "soon"])
async def test_a_day_that_is_none_is_named_and_nothing_is_spent(place: Place, period: str) -> None:
    settings = place.settings(*LINES, day=DAY, time_zone=ZONE)
    async with app_at(settings, Clock(LATER)) as app:
        await start_run(app, "one")
    place.rows("update account set period = ? where scope = 'day'", period)
    async with app_at(settings, Clock(LATER)) as app:
        await start_run(app, "two")
    assert place.rows("select count(*) from answer") == [(5,)]
