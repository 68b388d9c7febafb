"""Many runs over workers that are killed, on a database that is restarted: each ends once, and the books hold."""

from __future__ import annotations

import asyncio
import os
import random
import time
from threading import Thread
from typing import Any

import pytest
from support import forked_program, postgres
from support.app import ME, Place, reads, says
from support.forked_program import Forked

from kairos_mcp.app.app import App
from kairos_mcp.app.run_pool import DriveMode
from kairos_mcp.core.errors import KairosError
from kairos_mcp.core.limits import Limits
from kairos_mcp.core.outcome import Outcome
from kairos_mcp.core.run_spec import PlannerRequest
from kairos_mcp.settings.settings import Settings

pytestmark = [pytest.mark.postgres, pytest.mark.slow, pytest.mark.unreplayed]  # so many would take minutes
RUNS = 1_000
WORKERS = 4
BESIDE = 50  # starts that are under way at a time
KILL_EVERY_S = 2.5
WITHIN_S = 240.0
LINES = (reads("a.txt", delay_s=0.5), reads("b.txt", delay_s=0.5), says("done", delay_s=0.5))


def start_worker(place: Place, database: str) -> Forked:
    unlimited = {"KAIROS_DAY_MODEL_CALLS": "1000000"}
    environ = {**os.environ, **unlimited, "KAIROS_STORE": database, "KAIROS_SCRIPT": str(place.script)}
    options = ("--home", str(place.home), "--workspace", str(place.workspace))
    return forked_program.start(["work", *options], env=environ)


async def start_runs(settings: Settings) -> None:
    """As a server that does not drive."""
    async with App.open(settings, via="mcp", mode=DriveMode(drives=False)) as app:
        for first in range(0, RUNS, BESIDE):
            goals = range(first, min(first + BESIDE, RUNS))
            await asyncio.gather(*(app.runs.start_planner(PlannerRequest(f"look {n}"), ME) for n in goals))


def count_runs(place: Place) -> tuple[int, int]:
    try:
        ((all_runs, ended),) = place.rows("select count(*), count(outcome) from run")
    except KairosError:
        return 0, 0
    return all_runs, ended


def test_a_thousand_runs_end_once_over_workers_that_are_killed(
    place: Place, own_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = postgres.make_schema(own_server.get_uri())
    monkeypatch.setenv(postgres.CHOICE, own_server.get_uri())
    (place.root / postgres.NAMED_IN).write_text(database)
    settings = place.settings(*LINES, day=Limits())
    workers = [start_worker(place, database) for _ in range(WORKERS)]
    starting = Thread(target=lambda: asyncio.run(start_runs(settings)))
    began = killed_at = time.monotonic()
    kills, is_restarted, chance = 0, False, random.Random(1)
    starting.start()
    try:
        while (counts := count_runs(place)) != (RUNS, RUNS):
            assert time.monotonic() - began < WITHIN_S, counts
            if time.monotonic() - killed_at > KILL_EVERY_S:
                at = chance.randrange(WORKERS)
                workers[at].kill()
                workers[at].wait()
                workers[at] = start_worker(place, database)
                kills, killed_at = kills + 1, time.monotonic()
            if not is_restarted and counts[1] > RUNS / 3:
                postgres.restart_server(own_server)
                is_restarted = True
            time.sleep(0.2)
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
        starting.join()
    assert is_restarted
    assert place.rows("select json_extract(outcome, '$.status'), count(*) from run group by 1") == [("completed", RUNS)]
    assert place.rows("select count(*) from mark") == place.rows("select count(*) from answer") == [(5 * RUNS,)]
    assert place.store().find_damage(Outcome) == []
    lost = place.rows("select count(*) from attempt")
    print(f"{RUNS} runs, {kills} kills, {lost} attempts lost, {time.monotonic() - began:.1f} s")
