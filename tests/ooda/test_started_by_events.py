"""Mandates that start when a run of another one has ended: once for each event, whoever looks, whatever is killed."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support.app import ME, Place, place_in, rests, says, start_run
from support.cycles import MANDATE, cycle, noop
from support.postgres import both_stores

from kairos_mcp.app.app import App
from kairos_mcp.app.drive_mode import DriveMode
from kairos_mcp.core.errors import BadArguments
from kairos_mcp.core.run_spec import CyclesRequest, MandateRef
from kairos_mcp.settings.table_values import ServerSetting

AFTER = {**MANDATE, "id": "after", "starts_on": [{"event": "run.ended", "mandate_id": "links"}], "max_cycles": 1}


@asynccontextmanager
async def opened(place: Place) -> AsyncIterator[App]:
    """An app as of a worker, which starts nothing unless it is told to."""
    settings = place.settings(*cycle(noop("all well")))
    async with App.open(settings, via="work", mode=DriveMode(slots=0)) as app:
        yield app


async def end_run(app: App) -> str:
    """Let a run of the first mandate end; return its id."""
    run_id = (await app.runs.start(CyclesRequest(MandateRef("links")), ME)).run_id
    await rests(app, run_id)
    return run_id


async def save_both(app: App) -> None:
    for mandate in ({**MANDATE, "max_cycles": 1}, AFTER):
        await app.mandates.save(mandate, ME)


def started(place: Place) -> list[tuple[Any, ...]]:
    return place.rows("select mandate, via, substr(key, 1, 16) from run where mandate = 'after' order by n")


ONE = ("after", "clock", "event:after:evt_")


@both_stores
async def test_workers_that_look_at_once_start_one_run_for_each_event(place: Place) -> None:
    async with AsyncExitStack() as stack:
        apps = [await stack.enter_async_context(opened(place)) for _ in range(3)]
        await save_both(apps[0])
        await asyncio.gather(*(app.schedules.start_due() for app in apps))
        assert started(place) == []
        await end_run(apps[0])
        await asyncio.gather(*(app.schedules.start_due() for app in apps))
        assert started(place) == [ONE]
        (run_id,) = place.rows("select id from run where mandate = 'after'")[0]
        await apps[0].control.drive(run_id)
        await rests(apps[0], run_id)
        await asyncio.gather(*(app.schedules.start_due() for app in apps))
        assert started(place) == [ONE]


async def test_while_a_run_is_open_events_wait_and_none_is_lost_before_its_record(place: Place) -> None:
    async with opened(place) as app:
        await save_both(app)
        await end_run(app)
        await end_run(app)
        for count in (1, 2):
            await app.schedules.start_due()
            await app.schedules.start_due()  # its run is open
            assert started(place) == [ONE] * count
            ((run_id,),) = place.rows("select id from run where mandate = 'after' and outcome is null")
            await app.control.drive(run_id)
            await rests(app, run_id)
        place.rows("update listener set event = 0")  # as where a worker was killed before it recorded the event
        await app.schedules.start_due()
        assert started(place) == [ONE] * 2


async def test_a_mandate_can_t_start_itself(place: Place) -> None:
    async with opened(place) as app:
        with pytest.raises(BadArguments, match="itself"):
            await app.mandates.save({**AFTER, "id": "links"}, ME)


def served(other: Place) -> ServerSetting:
    """A server of others that has events: a Kairos of its own folder."""
    command = (sys.executable, "-m", "kairos_mcp", "serve", "--home", str(other.home))
    return ServerSetting("other", command, sandbox=False)


@pytest.mark.slow
async def test_an_event_of_a_server_starts_one_run_and_what_was_before_starts_none(
    place: Place, tmp_path: Path
) -> None:
    other = place_in(tmp_path / "other")
    on_server = {**AFTER, "starts_on": [{"event": "run.ended", "server": "other"}]}
    settings = place.settings(*cycle(noop("all well")), servers=(served(other),))
    async with (
        App.open(other.settings(says("done"), says("done"), says("done")), via="mcp") as elsewhere,
        App.open(settings, via="work", mode=DriveMode(slots=0)) as app,
        App.open(settings, via="work", mode=DriveMode(slots=0)) as second,
    ):
        await app.mandates.save(on_server, ME)
        await start_run(elsewhere)
        await app.schedules.start_due()
        assert started(place) == []
        for count in (1, 2):
            await start_run(elsewhere, f"another {count}")
            await asyncio.gather(app.schedules.start_due(), second.schedules.start_due())
            assert started(place) == [("after", "clock", "event:after:othe")] * count
            ((run_id,),) = place.rows("select id from run where mandate = 'after' and outcome is null")
            await app.control.drive(run_id)
            await rests(app, run_id)
        await app.schedules.start_due()
        assert len(started(place)) == 2


@pytest.mark.parametrize(
    "trigger",
    [
        {"event": "run.ended"},
        {"event": "run.begun", "mandate_id": "links"},
        {"event": "run.ended", "mandate_id": "links", "server": "other"},
    ],
)
async def test_a_trigger_that_names_no_event_is_refused(place: Place, trigger: dict[str, Any]) -> None:
    async with opened(place) as app:
        with pytest.raises(BadArguments, match="starts_on"):
            await app.mandates.save({**AFTER, "starts_on": [trigger]}, ME)
