"""Workers start mandates when they are due: once for each time over all of them, whatever ends them."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from support import forked_program, postgres
from support.app import ME, Place
from support.cycles import MANDATE, cycle, noop
from support.forked_program import Forked
from support.postgres import both_stores
from support.waiting import wait_until

from kairos_mcp.app.app import App
from kairos_mcp.app.drive_mode import DriveMode
from kairos_mcp.core.decision_rights import Caller

WITHIN_S = 30.0
LINES = cycle(noop("all well"))
ANN = Caller("ann")


def due_since(minutes: float) -> dict[str, str]:
    """A schedule that was due so long ago, and is so once a year."""
    at = datetime.now(UTC) - timedelta(minutes=minutes)
    return {"rule": f"{at.minute} {at.hour} {at.day} {at.month} *"}


@asynccontextmanager
async def opened(place: Place, slots: int = 4, **changes: Any) -> AsyncIterator[App]:
    """An app as of a worker, which starts nothing unless it is told to."""
    settings = replace(place.settings(*LINES), **changes)
    async with App.open(settings, via="work", mode=DriveMode(slots=slots)) as app:
        yield app


async def save(app: App, caller: Caller = ME, **changes: Any) -> None:
    mandate = {**MANDATE, "max_cycles": 1, "schedule": due_since(2), **changes}
    await app.mandates.save(mandate, caller)
    Place(app.settings.home.parent).rows("update mandate set saved_at = saved_at - 300000")


def worker(place: Place) -> Forked:
    environ = {**os.environ, "KAIROS_SCRIPT": str(place.script)}
    if (database := postgres.database_of(place.root)) is not None:
        environ["KAIROS_STORE"] = database
    options = ("--home", str(place.home), "--workspace", str(place.workspace))
    return forked_program.start(["work", *options], env=environ)


def end(process: Forked) -> None:
    process.kill()
    process.wait()


def runs(place: Place) -> list[tuple[Any, ...]]:
    return place.rows("select principal, mandate, via, owner, outcome is not null from run order by n")


@both_stores
async def test_workers_that_look_at_the_same_moment_start_a_mandate_once(place: Place) -> None:
    async with AsyncExitStack() as stack:
        apps = [await stack.enter_async_context(opened(place, slots=0)) for _ in range(4)]
        await save(apps[0])
        await asyncio.gather(*(app.schedules.start_due() for app in apps))
        assert runs(place) == [("local", "links", "clock", 0, 0)]
        ((due, saved_at),) = place.rows("select last_due, saved_at from mandate")
        assert saved_at < due < time.time() * 1000
        place.rows("update mandate set last_due = null")  # as when a further time has come
        assert (await apps[1].schedules.list_startable())[0] == []  # its run is open


@both_stores
async def test_what_came_due_while_nobody_worked_is_started_by_whoever_comes_and_only_once(place: Place) -> None:
    async with opened(place) as app:
        await save(app)
        await save(app, ANN, id="hers")
    first = worker(place)
    try:
        wait_until(lambda: place.rows("select count(*) from run where outcome is not null") == [(2,)], WITHIN_S)
    finally:
        end(first)
    assert sorted(run[:3] for run in runs(place)) == [("ann", "hers", "clock"), ("local", "links", "clock")]
    async with opened(place) as app:
        await app.schedules.start_due()
    assert len(runs(place)) == 2


async def test_a_run_that_a_worker_started_before_it_ended_is_gone_on_with(place: Place) -> None:
    async with opened(place, slots=0) as app:
        await save(app)
        await app.schedules.start_due()
    assert runs(place) == [("local", "links", "clock", 0, 0)]
    async with opened(place) as app:
        await app.begin_work()
        await app.runs.wait([place.rows("select id from run")[0][0]], until="done", wait_s=WITHIN_S, caller=ME)
    assert [run[4] for run in runs(place)] == [1]


async def test_nothing_is_started_before_its_time_without_a_model_or_in_a_folder_that_is_not_served(
    place: Place,
) -> None:
    async with opened(place, slots=0) as app:
        await save(app, schedule=due_since(-2))
        assert 0 < await app.schedules.start_due() <= 10
        await save(app)
    async with opened(place, slots=0, workspaces=()) as app:
        await app.schedules.start_due()
    async with opened(place, slots=0, script=None) as app:
        await app.schedules.start_due()
    assert runs(place) == []


async def test_a_start_that_is_refused_is_not_tried_at_each_look(place: Place, caplog: Any) -> None:
    async with opened(place, slots=0) as app:
        await save(app, tools=["no_such_tool"])
        for _ in range(3):
            await app.schedules.start_due()
    assert runs(place) == []
    assert [record.levelname for record in caplog.records if "can't be started" in record.message] == ["WARNING"]


@pytest.mark.slow
@both_stores
async def test_thirty_mandates_are_started_once_each_by_workers_that_are_killed(place: Place) -> None:
    async with opened(place) as app:
        for number in range(30):
            await save(app, id=f"m{number}")
    chance = random.Random(7)
    workers = [worker(place) for _ in range(3)]
    began = time.monotonic()
    try:
        while place.rows("select count(*) from run where outcome is not null") != [(30,)]:
            assert time.monotonic() - began < 3 * WITHIN_S, runs(place)
            await asyncio.sleep(chance.uniform(0.3, 0.9))
            end(workers.pop(0))
            workers.append(worker(place))
    finally:
        for process in workers:
            end(process)
    assert place.rows("select count(*), count(distinct mandate) from run") == [(30, 30)]
    assert place.rows("select count(*) from mandate where last_due is null") == [(0,)]
