"""`kairos-mcp work` drives what others start: an app that does not drive, and workers in processes of their own."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from support import forked_program, postgres
from support.app import ME, Place, reads, says
from support.commands import command
from support.forked_program import Forked
from support.http_server import Site
from support.postgres import both_stores
from support.task_client import AT_ONCE, task_client_of
from support.waiting import wait_until

from kairos_mcp.app.app import App
from kairos_mcp.app.drive_mode import DriveMode
from kairos_mcp.core.run_spec import PlannerRequest

WITHIN_S = 30.0
SLOW = (reads("a.txt", delay_s=0.2), says("done", delay_s=0.2))


@contextmanager
def worker(place: Place, *words: str) -> Iterator[Forked]:
    """A worker on this place until the block ends."""
    environ = {**os.environ, "KAIROS_SCRIPT": str(place.script)}
    if (database := postgres.database_of(place.root)) is not None:
        environ["KAIROS_STORE"] = database
    options = ("--home", str(place.home), "--workspace", str(place.workspace))
    process = forked_program.start(["work", *words, *options], env=environ)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def front(place: Place, *lines: Any) -> Any:
    """An app as of `serve --no-drive`."""
    return App.open(place.settings(*lines), via="mcp", mode=DriveMode(drives=False))


async def start(app: App, goals: int) -> list[str]:
    requests = [PlannerRequest(f"look {n}") for n in range(goals)]
    return [(await app.runs.start(request, ME)).run_id for request in requests]


def owners(place: Place) -> set[Any]:
    return {owner for (owner,) in place.rows("select owner from run where outcome is null")}


@both_stores
async def test_a_run_of_a_server_that_does_not_drive_is_driven_by_a_worker(place: Place) -> None:
    async with front(place, *SLOW) as app:
        (run_id,) = await start(app, 1)
        await app.runs.wait([run_id], until="done", wait_s=0.6, caller=ME)
        assert owners(place) == {0}
        assert place.rows("select count(*) from step") == [(0,)]
        with worker(place):
            await app.runs.wait([run_id], until="done", wait_s=WITHIN_S, caller=ME)
            assert (await app.runs.report(run_id, ME)).summary == "done"
    assert place.rows("select via from owner order by via") == [("mcp",), ("work",)]


@both_stores
async def test_a_worker_drives_no_more_runs_than_it_has_slots(place: Place) -> None:
    async with front(place, reads("a.txt"), says("done", delay_s=1.5)) as app:
        ids = await start(app, 5)
        with worker(place, "--slots", "2"):
            wait_until(lambda: len(place.rows("select 1 from step where path = 'round-2'")) == 2, WITHIN_S)
            await asyncio.sleep(0.5)  # in which it would take another
            assert place.rows("select count(*) from run where owner <> 0") == [(2,)]
            await app.runs.wait(ids, until="done", wait_s=WITHIN_S, caller=ME)
            wait_until(lambda: place.rows("select count(*) from run where outcome is not null") == [(5,)], WITHIN_S)


@pytest.mark.unreplayed
@both_stores
async def test_what_was_begun_is_taken_before_what_is_queued(place: Place) -> None:
    """Of six runs, the newest was left by a server that has ended, the one before it by a worker that let go of it."""
    async with front(place, says("done", delay_s=5.0)) as app:
        await start(app, 6)
    place.rows("insert into owner(lock, pid, via, started_at) values ('of one that ended', 0, 'work', 0)")
    place.rows(
        "update run set fence = 2, owner = (select id from owner where lock = 'of one that ended')"
        " where n = (select max(n) from run)"
    )
    place.rows("update run set fence = 3 where n = (select max(n) - 1 from run)")
    async with App.open(place.settings(says("done", delay_s=5.0)), via="work", mode=DriveMode(slots=2)) as app:
        await app.begin_work()
        newest = place.rows("select n from run order by n desc limit 2")
        taken = "select n from run where owner = (select max(id) from owner) order by n desc"
        assert place.rows(taken) == newest


@both_stores
async def test_a_worker_that_is_told_to_end_finishes_its_steps_and_leaves_the_rest(place: Place) -> None:
    async with front(place, reads("a.txt", delay_s=2.0), says("done")) as app:
        await start(app, 1)
        with worker(place) as process:
            wait_until(lambda: place.rows("select 1 from step"), WITHIN_S)
            os.kill(process.pid, signal.SIGTERM)
            assert process.wait(WITHIN_S) == 0
        assert place.rows("select path, body is not null from step left join answer on step.id = answer.step") == [
            ("round-1", 1)
        ]
        with worker(place):
            wait_until(lambda: place.rows("select 1 from run where outcome is not null"), WITHIN_S)
    assert place.rows("select count(*) from attempt") == [(0,)]


@both_stores
async def test_what_an_ended_worker_left_is_shared_by_the_others(place: Place) -> None:
    async with front(place, *SLOW) as app:
        ids = await start(app, 12)
        with worker(place, "--slots", "12") as first, worker(place), worker(place):
            wait_until(lambda: owners(place) - {0}, WITHIN_S)
            first.kill()
            await app.runs.wait(ids, until="done", wait_s=WITHIN_S, caller=ME)
            wait_until(lambda: place.rows("select count(*) from run where outcome is not null") == [(12,)], WITHIN_S)
    assert place.rows("select count(*) from step") == place.rows("select count(*) from answer") == [(36,)]


@both_stores
async def test_a_task_goes_on_while_no_worker_lives(place: Place) -> None:
    """It is looked at after the only one was killed, and ends with what the next one comes to."""
    lines = (reads("a.txt"), says("done", delay_s=1.0))
    async with front(place, *lines) as app, task_client_of(app, AT_ONCE) as client:
        place.store().open()  # so that rows can be looked for from now on
        with worker(place):
            is_there = "select 1 from owner where via = 'work'"
            await asyncio.to_thread(wait_until, lambda: place.rows(is_there), WITHIN_S)
            task = await client.begin_task("planner_run", goal="look", route="scripted", wait_s=0)
            begun = (
                "select 1 from step left join answer on answer.step = step.id where path = 'round-2' and body is null"
            )
            await asyncio.to_thread(wait_until, lambda: place.rows(begun), WITHIN_S)
        assert (await client.get(task))["status"] == "working"
        assert place.rows("select ending from task") == [(None,)]
        with worker(place):
            assert (await client.wait_for_result(task))["summary"] == "done"
    assert place.rows("select ended from attempt") == [("unknown",)]


def test_a_server_over_http_that_does_not_drive_is_answered_by_a_worker(place: Place) -> None:
    place.store().open()  # so that rows can be looked for from now on
    place.settings(*SLOW)
    site = Site.start(place.root, drives=False)
    try:
        with worker(place):
            wait_until(lambda: place.rows("select 1 from owner where via = 'work'"), WITHIN_S)
            answer = site.call("planner_run", {"goal": "look", "wait_s": 15}).json["result"]
        assert answer["structuredContent"]["status"] == "completed"
        (server,) = place.rows("select id from owner where via = 'mcp'")
        assert place.rows("select count(*) from run where owner = ?", *server) == [(0,)]
    finally:
        site.stop()


def test_a_host_s_server_can_t_be_told_not_to_drive(place: Place) -> None:
    said = command("serve", "--no-drive", "--home", str(place.home), folder=place.root, environ=os.environ)
    assert said.code == 2
    assert "--transport http" in said.err


@both_stores
async def test_an_answer_that_comes_to_a_server_that_does_not_drive_is_left_to_a_worker(place: Place) -> None:
    async with front(place, *SLOW) as app:
        run_id = (await app.runs.start(PlannerRequest("think", route="caller"), ME)).run_id
        with worker(place):
            wait_until(lambda: place.rows("select 1 from waiting"), WITHIN_S)
            wait_until(lambda: owners(place) == {None}, WITHIN_S)
        await app.answers.submit(run_id, {"round-1": {"content": "thought"}}, ME)
        assert owners(place) == {0}
        with worker(place):
            wait_until(lambda: place.rows("select 1 from run where outcome is not null"), WITHIN_S)
    assert place.rows("select count(*) from answer") == [(1,)]
