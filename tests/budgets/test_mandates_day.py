"""What the runs of a mandate may use on a day, all together: an account within the principal's day."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.app import ME, Place, outcome_of, rests, says, start_run
from support.branches import assert_books_agree
from support.daily_accounts import (
    MIDNIGHT,
    ZONE,
    Clock,
    app_at,
    count_passed_caps,
    days_of,
    usage_of,
    wait_until_ended,
    watch_peaks,
)
from support.provider_server import WITHIN_S, Standin, talks

from kairos_mcp.app.app import App
from kairos_mcp.core.decision_rights import Caller
from kairos_mcp.core.errors import BadArguments, UnknownMandate
from kairos_mcp.core.limits import Limits
from kairos_mcp.core.run_spec import CyclesRequest, MandateRef, PhaseRequest

ORIENTED = {"summary": "All is well.", "priorities": [], "risk_level": "low"}
THOUGHT = says(json.dumps(ORIENTED), **usage_of(1_000))
TIDY = MandateRef(mandate_id="tidy")


def mandate(**more: Any) -> dict[str, Any]:
    return {"id": "tidy", "goal": "Tidy up.", **more}


async def run_orient(app: App, meant: MandateRef = TIDY, caller: Caller = ME) -> str:
    """A phase of the mandate that is one model call: it has ended, or rests."""
    looked = (await app.runs.start(PhaseRequest("observe", meant), caller)).run_id
    await app.runs.wait([looked], until="done", wait_s=WITHIN_S, caller=caller)
    seen = (await app.runs.report(looked, caller)).output
    run_id = (await app.runs.start(PhaseRequest("orient", meant, seen), caller)).run_id
    await app.runs.wait([run_id], until="rest", wait_s=WITHIN_S, caller=caller)
    return run_id


def mandates_day(place: Place, name: str = "tidy") -> list[tuple[int | None, int, int]]:
    """The accounts of a mandate, day by day: its cap, what is held and spent, in model calls."""
    columns = "one.cap_model_calls, one.held_model_calls, one.spent_model_calls"
    return place.rows(
        f"select {columns} from account one join account day on day.id = one.parent where one.scope = 'mandate'"
        " and one.name = ? order by day.name, day.period",
        name,
    )


async def test_what_a_mandate_may_use_on_a_day_holds_for_all_its_runs_which_go_on_by_themselves(place: Place) -> None:
    clock = Clock()
    async with app_at(place.settings(*[THOUGHT] * 3, time_zone=ZONE), clock) as app:
        await app.mandates.save(mandate(day={"model_calls": 2}), ME)
        await run_orient(app)
        watch_peaks(place)
        await run_orient(app, MandateRef(mandate=mandate()))  # whoever names it is charged to it
        third = await run_orient(app)
        report = await app.runs.report(third, ME)
        assert (report.status, report.resume_at) == ("paused", "2026-11-21T05:00:00Z")
        assert "this mandate" in place.rows("select paused from run where id = ?", third)[0][0]
        assert mandates_day(place) == [(2, 0, 2)]
        other = await start_run(app, "of no mandate")
        assert (await app.runs.report(other, ME)).status == "completed"
        clock.now = MIDNIGHT
        await wait_until_ended(app, third)
        assert outcome_of(place, third)["output"]["summary"] == "All is well."
        assert mandates_day(place) == [(2, 0, 2), (2, 0, 1)]
    assert [book.spent.model_calls for book in days_of(place).values()] == [3, 1]
    assert count_passed_caps(place) == 0


async def test_cycles_are_charged_to_their_mandate_too(place: Place) -> None:
    async with app_at(place.settings(*[THOUGHT] * 9, time_zone=ZONE), Clock()) as app:
        await app.mandates.save(mandate(day={"model_calls": 1}), ME)
        run_id = (await app.runs.start(CyclesRequest(TIDY), ME)).run_id
        assert (await rests(app, run_id)).status == "paused"
        assert mandates_day(place) == [(1, 0, 1)]
        assert place.rows("select path from step where kind = 'phase'") == [("cycle-1/orient",)]
        spending = await app.records.read_spending("day", ME)
        assert [(each["mandate"], each["spent"]["model_calls"]) for each in spending["mandates"]] == [("tidy", 1)]
        assert [(each["mandate"], each["attempts"]) for each in spending["by"]] == [("tidy", 1)]
        alone = await app.records.read_spending("mandate:tidy", ME)
        assert (alone["limits"]["model_calls"], alone["remaining"]["model_calls"]) == (1, 0)
        with pytest.raises(UnknownMandate):
            await app.records.read_spending("mandate:other", ME)


async def test_saved_anew_it_holds_from_now_on(place: Place) -> None:
    async with app_at(place.settings(*[THOUGHT] * 4, time_zone=ZONE), Clock()) as app:
        await app.mandates.save(mandate(day={"model_calls": 1}), ME)
        await run_orient(app)
        run_id = await run_orient(app)
        assert (await app.runs.report(run_id, ME)).status == "paused"
        await app.mandates.save(mandate(day={"model_calls": 5}), ME)
        assert mandates_day(place) == [(5, 0, 1)]
        await app.control.request(run_id, "resume", ME)
        await wait_until_ended(app, run_id)
        await app.mandates.save(mandate(), ME)
        assert mandates_day(place) == [(None, 0, 2)]


async def test_mandates_of_one_name_of_two_principals_have_an_account_each(place: Place) -> None:
    ann = Caller("ann")
    async with app_at(place.settings(*[THOUGHT] * 4, time_zone=ZONE), Clock()) as app:
        for caller in (ME, ann):
            await app.mandates.save(mandate(day={"model_calls": 1}), caller)
        for caller in (ME, ann):
            assert (await app.runs.report(await run_orient(app, caller=caller), caller)).status == "completed"
        assert mandates_day(place) == [(1, 0, 1), (1, 0, 1)]
        assert_books_agree(place)


async def test_a_day_of_a_mandate_that_is_not_saved_is_refused_and_so_are_its_dollars_without_a_price(
    place: Place,
) -> None:
    elsewhere = "http://10.0.0.1:1/v1"  # at a loopback address a model costs nothing
    settings = place.settings(model="openai:small", base_url=elsewhere, time_zone=ZONE)
    async with app_at(settings, Clock()) as app:
        with pytest.raises(BadArguments) as refused:
            await app.runs.start(PhaseRequest("observe", MandateRef(mandate=mandate(day={"usd": 1}))), ME)
        assert "mandate_save" in refused.value.hint
        await app.mandates.save(mandate(day={"usd": 1}), ME)
        with pytest.raises(BadArguments) as refused:
            await app.runs.start(CyclesRequest(TIDY), ME)
        assert "price_input" in f"{refused.value} {refused.value.hint}"
        for odd in ({"rounds": 1}, {"model_calls": -1}, {"usd": None}, {"seconds": 1}):
            with pytest.raises(BadArguments):
                await app.mandates.save(mandate(day=odd), ME)


DAMAGE = {
    "less spent": "update account set spent_model_calls = 0 where scope = 'mandate'",
    "removed": "delete from account where scope = 'mandate'",
}


@pytest.mark.unreplayed
@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
async def test_a_damaged_account_of_a_mandate_refuses_instead_of_beginning_anew(place: Place, damage: str) -> None:
    settings = place.settings(*[THOUGHT] * 4, time_zone=ZONE)
    async with app_at(settings, Clock()) as app:
        await app.mandates.save(mandate(day={"model_calls": 3}), ME)
        await run_orient(app)
    place.rows(damage)
    app = App(settings, "mcp", Clock(), lambda: "run-second")
    try:
        looked = (await app.runs.start(PhaseRequest("observe", TIDY), ME)).run_id
        await app.runs.wait([looked], until="rest", wait_s=WITHIN_S, caller=ME)
        assert (await app.runs.report(looked, ME)).status == "paused"
        assert (await app.health(thorough=True))["damage"]
    finally:
        await app._close()


async def test_a_round_that_no_day_has_room_for_ends_the_run_and_says_what_to_raise(place: Place) -> None:
    settings = place.settings(*[THOUGHT] * 4, day=Limits(total_tokens=2_000), time_zone=ZONE)
    async with app_at(settings, Clock()) as app:
        run_id = await start_run(app, "long " * 2_000)
        report = await app.runs.report(run_id, ME)
        assert (report.status, report.stop_reason, report.rounds) == ("stopped", "budget", 0)
        assert any("day.total_tokens is 2000 for a whole day" in text for text in report.degraded)
        assert days_of(place)["2026-11-20"].spent.model_calls == 0
        short = await start_run(app, "short", tools=("read_file",))
        assert (await app.runs.report(short, ME)).resume_at is None


@pytest.mark.parametrize("scope", ["day", "mandate"])
async def test_a_day_that_allows_nothing_ends_runs_instead_of_pausing_them_for_ever(place: Place, scope: str) -> None:
    nothing = {"model_calls": 0}
    day = Limits(**nothing) if scope == "day" else Limits()
    async with app_at(place.settings(*[THOUGHT] * 4, day=day, time_zone=ZONE), Clock()) as app:
        await app.mandates.save(mandate(day=nothing if scope == "mandate" else {}), ME)
        run_id = (await app.runs.start(CyclesRequest(TIDY), ME)).run_id
        report = await rests(app, run_id)
        assert report.status != "paused" or report.resume_at is None
        assert any("for a whole day" in text for text in report.degraded)


async def test_a_report_beyond_what_a_day_allows_is_recorded_named_and_stops_the_day(
    place: Place, server: Standin
) -> None:
    server.will(talks("done", usage=(90_000, 90_000, 0)))
    settings = place.settings(
        model="openai:small", base_url=server.openai, day=Limits(total_tokens=20_000), time_zone=ZONE
    )
    async with app_at(settings, Clock()) as app:
        report = await app.runs.report(await start_run(app, tools=("read_file",)), ME)
        assert any("day.total_tokens is 20000; an answer" in text for text in report.degraded)
        assert days_of(place)["2026-11-20"].spent.total_tokens == 180_000
        second = await start_run(app, "second", tools=("read_file",))
        assert ((await app.runs.report(second, ME)).status, len(server.heard)) == ("paused", 1)


async def test_what_is_brought_beyond_a_day_is_named_too(place: Place) -> None:
    async with app_at(place.settings(day=Limits(input_tokens=500), time_zone=ZONE), Clock()) as app:
        run_id = await start_run(app, route="caller")
        await app.answers.submit(run_id, {"round-1": {**says("done"), **usage_of(700, 10)}}, ME)
        report = await wait_until_ended(app, run_id)
        assert any("day.input_tokens is 500; an answer that used more than was held" in t for t in report.degraded)
