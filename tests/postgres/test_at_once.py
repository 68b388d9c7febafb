"""Eight replicas that are asked the same at the same time: one run, one answer, one verdict, one account of the day."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest
from support.app import ME, PERSON, Place, rests, says, start_run
from support.page_runs import writes
from support.postgres import on_database

from kairos_mcp.app.app import App
from kairos_mcp.core.errors import KairosError
from kairos_mcp.core.limits import Limits
from kairos_mcp.core.run_spec import PlannerRequest
from kairos_mcp.settings.settings import Settings

REPLICAS = 8


@pytest.fixture
async def replicas(place: Place) -> AsyncIterator[list[App]]:
    """Apps with a state folder each, as on as many machines."""
    settings = place.settings(writes("new.txt", "new"), says("done"), day=Limits(model_calls=100))
    async with AsyncExitStack() as stack:
        apps = [
            await stack.enter_async_context(App.open(on_machine(settings, place, number), via="mcp"))
            for number in range(REPLICAS)
        ]
        for app in apps:
            await app.records.read_spending(None, ME)  # from here on each has its connections
        yield apps


def on_machine(settings: Settings, place: Place, number: int) -> Settings:
    return replace(settings, home=place.root / f"machine-{number}")


@on_database
@pytest.mark.parametrize("key", ["one", None])
async def test_the_same_start_is_one_run(place: Place, replicas: list[App], key: str | None) -> None:
    starts = [app.runs.start(PlannerRequest("look", key=key, route="caller"), ME) for app in replicas]
    found = {started.run_id for started in await asyncio.gather(*starts)}
    assert place.rows("select id from run") == [(run_id,) for run_id in found]
    assert (await rests(replicas[-1], *found)).status == "input_required"
    assert place.rows("select count(*) from step") == [(1,)]


@on_database
async def test_the_first_calls_of_a_day_are_charged_to_one_account(place: Place, replicas: list[App]) -> None:
    await asyncio.gather(*(start_run(app, f"look {n}", tools=("write_file",)) for n, app in enumerate(replicas)))
    assert place.rows("select spent_model_calls, held_model_calls from account where scope = 'day'") == [(REPLICAS, 0)]


@on_database
async def test_of_answers_that_come_at_once_one_is_stored(place: Place, replicas: list[App]) -> None:
    run_id = await start_run(replicas[0], route="caller")
    done = await asyncio.gather(
        *(app.answers.submit(run_id, {"round-1": says(f"done by {n}")}, ME) for n, app in enumerate(replicas)),
        return_exceptions=True,
    )
    (stored,) = [n for n, came in enumerate(done) if came is None]
    assert all(isinstance(came, KairosError) for came in done if came is not None)
    reports = [await rests(app, run_id) for app in replicas]
    assert {(report.status, report.summary) for report in reports} == {("completed", f"done by {stored}")}
    assert place.rows("select count(*) from answer") == [(1,)]


@on_database
async def test_of_verdicts_that_come_at_once_one_counts(place: Place, replicas: list[App]) -> None:
    run_id = await start_run(replicas[0], tools=("write_file",))
    (item,) = (await rests(replicas[0], run_id)).waiting
    words = ["approve", "deny"] * (REPLICAS // 2)
    done = await asyncio.gather(
        *(
            app.answers.decide(run_id, item["key"], word, None, PERSON)
            for app, word in zip(replicas, words, strict=True)
        ),
        return_exceptions=True,
    )
    ((verdict,),) = place.rows("select verdict from approval")
    refused = [isinstance(came, KairosError) for came in done]
    assert refused == [word != verdict for word in words], done  # the same word again is no conflict
    assert (await rests(replicas[-1], run_id)).status == "completed"
    assert (place.workspace / "new.txt").exists() is (verdict == "approve")
    ended = "select count(*) from answer join step on step.id = answer.step where path = 'round-1/call-1'"
    assert place.rows(ended) == [(1,)]
