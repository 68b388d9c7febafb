"""A run that reaches a limit of its own asks whether it may have as much again, and goes on in place."""

from __future__ import annotations

from typing import Any

import pytest
from support.app import ME, PERSON, UNWATCHED, Place, reads, rests, says, start_run
from support.cycles import MANDATE, cycle, noop
from support.postgres import both_stores

from kairos_mcp.app.app import App
from kairos_mcp.core.limits import Limits
from kairos_mcp.core.run_spec import CyclesRequest, MandateRef
from kairos_mcp.views.run_report import RunReport

LINES = [reads("a.txt"), reads("b.txt", content="I found b."), reads("a.txt"), says("done")]


async def ask(app: App, **more: Any) -> RunReport:
    run_id = await start_run(app, at_limit="ask", limits=Limits(rounds=2), **more)
    return await rests(app, run_id)


async def decide(app: App, report: RunReport, decision: str) -> RunReport:
    (item,) = report.waiting
    await app.answers.submit(report.run_id, {item["key"]: {"decision": decision, "digest": item["digest"]}}, PERSON)
    return await rests(app, report.run_id)


@both_stores
async def test_approved_it_goes_on_with_as_much_again(place: Place) -> None:
    async with App.open(place.settings(*LINES, flow=UNWATCHED), via="mcp") as app:
        asked = await ask(app)
        (item,) = asked.waiting
        assert (asked.status, item["kind"], item["name"]) == ("input_required", "approval", "budget")
        assert "used 2 of 2 rounds" in item["preview"]
        assert "the limit is 4, which buys about 2 more rounds" in item["preview"]
        assert "I found b." in item["preview"]
        assert place.rows("select kind, what from event") == [("run.waiting", "approval")]
        ended = await decide(app, asked, "approve")
        assert (ended.status, ended.rounds, ended.summary) == ("completed", 4, "done")
        assert place.rows("select cap_rounds from account where scope = 'run'") == [(4,)]


async def test_denied_it_sums_up_and_ends(place: Place) -> None:
    settings = place.settings(*LINES[:2], says("That is all."), flow=UNWATCHED)
    async with App.open(settings, via="mcp") as app:
        ended = await decide(app, await ask(app), "deny")
        assert (ended.status, ended.stop_reason, ended.summary) == ("stopped", "max_rounds", "That is all.")
        assert place.rows("select cap_rounds from account where scope = 'run'") == [(2,)]


async def test_extended_meanwhile_it_goes_on_without_a_decision(place: Place) -> None:
    async with App.open(place.settings(*LINES, flow=UNWATCHED), via="mcp") as app:
        asked = await ask(app)
        await app.control.extend(asked.run_id, Limits(rounds=3), ME)
        ended = await rests(app, asked.run_id)
        assert (ended.status, ended.rounds) == ("completed", 4)
        assert place.rows("select cap_rounds from account where scope = 'run'") == [(5,)]


async def test_it_asks_again_at_the_next_limit_and_after_a_restart(place: Place) -> None:
    settings = place.settings(*[reads(name) for name in ("a.txt", "b.txt") * 2], reads("a.txt"), says("done"))
    async with App.open(settings, via="mcp") as app:
        asked = await ask(app)
    async with App.open(settings, via="mcp") as app:
        again = await decide(app, await rests(app, asked.run_id), "approve")
        (item,) = again.waiting
        assert "used 4 of 4 rounds" in item["preview"]
    async with App.open(settings, via="mcp") as app:
        ended = await decide(app, await rests(app, asked.run_id), "approve")
        assert (ended.status, ended.rounds) == ("completed", 6)


async def test_nobody_is_asked_for_more_than_is_configured(place: Place) -> None:
    settings = place.settings(*LINES[:2], says("That is all."), flow=UNWATCHED, limits=Limits(rounds=2))
    async with App.open(settings, via="mcp") as app:
        ended = await ask(app)
        assert (ended.status, ended.stop_reason, ended.summary) == ("stopped", "max_rounds", "That is all.")


async def test_what_lapsed_is_asked_anew_once_the_run_is_resumed(place: Place) -> None:
    async with App.open(place.settings(*LINES, flow=UNWATCHED), via="mcp") as app:
        asked = await ask(app)
        place.rows("update approval set expires_at = 1")
        await app.watcher.pick_up_runs()
        assert (await rests(app, asked.run_id)).status == "paused"
        await app.control.resume(asked.run_id, PERSON)
        again = await rests(app, asked.run_id)
        assert (again.status, len(again.waiting)) == ("input_required", 1)
        assert (await decide(app, again, "approve")).status == "completed"


# -- cycles ------------------------------------------------------------------------------------------------------


async def start_cycles(app: App, **limits: int) -> RunReport:
    await app.mandates.save({**MANDATE, "max_cycles": 2, "checkpoint_every": 3}, ME)
    request = CyclesRequest(MandateRef("links"), limits=Limits(**limits), at_limit="ask")
    return await rests(app, (await app.runs.start(request, ME)).run_id)


def statuses(report: RunReport) -> list[str]:
    return [each["status"] for each in report.output["cycles"]]


@both_stores
@pytest.mark.parametrize(("limits", "calls"), [({"model_calls": 4}, 1), ({"tool_calls": 6}, 0)])
async def test_cycles_that_are_given_more_go_on_with_a_further_one(
    place: Place, limits: dict[str, int], calls: int
) -> None:
    """A limit breaks off the second cycle: after so many of its calls of the model, or before the first."""
    lines = cycle(noop("Nothing broken."))
    async with App.open(place.settings(*lines, *lines[:calls], *lines, flow=UNWATCHED), via="mcp") as app:
        asked = await start_cycles(app, **limits)
        (item,) = asked.waiting
        assert (asked.status, item["kind"], item["name"]) == ("input_required", "approval", "budget")
        assert "in 2 cycles" in item["preview"]
        assert "So far: 2 cycles" in item["preview"]
        assert place.rows("select kind, what from event where kind = 'run.waiting'") == [("run.waiting", "approval")]
        ended = await decide(app, asked, "approve")
        assert (ended.stop_reason, statuses(ended)) == ("max_cycles_reached", ["noop", "interrupted", "noop"])
        ((unit, cap),) = limits.items()
        assert place.rows(f"select cap_{unit} from account where scope = 'run'") == [(2 * cap,)]


async def test_cycles_that_are_given_nothing_end_with_what_they_have(place: Place) -> None:
    lines = cycle(noop("Nothing broken."))
    async with App.open(place.settings(*lines[:2], *lines, flow=UNWATCHED), via="mcp") as app:
        asked = await start_cycles(app, model_calls=2)
        ended = await decide(app, asked, "deny")
        assert (ended.status, ended.stop_reason) == ("stopped", "budget")
        assert place.rows("select cap_model_calls, spent_model_calls from account where scope = 'run'") == [(2, 2)]
