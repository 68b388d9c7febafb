"""Many runs over workers that are killed, on a database that is restarted: each ends once, and the books hold.

How many is RUNS, or what DISTURBED_RUNS says.
"""

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
from kairos_mcp.app.drive_mode import DriveMode
from kairos_mcp.core.errors import KairosError
from kairos_mcp.core.limits import Limits
from kairos_mcp.core.outcomes import Outcome
from kairos_mcp.core.run_spec import PlannerRequest
from kairos_mcp.settings.settings import Settings

pytestmark = [pytest.mark.postgres, pytest.mark.slow, pytest.mark.unreplayed]  # so many would take minutes
RUNS = int(os.environ.get("DISTURBED_RUNS", "1000"))
WORKERS = 4
SLOTS = 500
MOST_OPEN = 150  # far fewer than the slots, so that whoever sees a run of a dead one can take it
OPEN_RUNS = "select count(*) from run where outcome is null"
BESIDE = 50  # starts that are under way at a time
KILL_EVERY_S = 2.5
WITHIN_S = 0.24 * max(RUNS, 1_000)
TAKEN_S = 3.0  # after a kill; of 95 of 100 runs
LEASE_S = 10.0
LINES = (reads("a.txt", delay_s=0.5), reads("b.txt", delay_s=0.5), says("done", delay_s=0.5))


def start_worker(place: Place, database: str) -> Forked:
    unlimited = {"KAIROS_DAY_MODEL_CALLS": "1000000"}
    environ = {**os.environ, **unlimited, "KAIROS_STORE": database, "KAIROS_SCRIPT": str(place.script)}
    options = ("--home", str(place.home), "--workspace", str(place.workspace), "--slots", str(SLOTS))
    return forked_program.start(["work", *options], env=environ)


async def start_runs(place: Place, settings: Settings) -> None:
    """As a server that does not drive."""
    async with App.open(settings, via="mcp", mode=DriveMode(drives=False)) as app:
        for first in range(0, RUNS, BESIDE):
            while (await asyncio.to_thread(look, place, OPEN_RUNS))[0][0] > MOST_OPEN:  # noqa: ASYNC110 - they end elsewhere
                await asyncio.sleep(0.1)
            goals = range(first, min(first + BESIDE, RUNS))
            await asyncio.gather(*(app.runs.start(PlannerRequest(f"look {n}"), ME) for n in goals))


def look(place: Place, statement: str, *bindings: Any) -> list[tuple[Any, ...]]:
    """The rows, as soon as the database is there."""
    import psycopg

    until = time.monotonic() + 20
    while True:
        try:
            return place.rows(statement, *bindings)
        except (KairosError, psycopg.Error):
            assert time.monotonic() < until
            time.sleep(0.1)


def seconds_until_taken(place: Place, pid: int) -> list[float]:
    """Of each run that a worker had when it was killed: how long nobody else had it."""
    owned = "select count(*) from run where owner in (select id from owner where pid = ?) and outcome is null"
    began, took, ((left,),) = time.monotonic(), [], look(place, owned, pid)
    while left:
        time.sleep(0.02)
        ((now,),) = look(place, owned, pid)
        took += [time.monotonic() - began] * (left - now)
        left = now
        assert time.monotonic() - began < 60, f"{left} runs are still a killed worker's"
    return took


def percentile(times: list[float], part: float) -> float:
    return sorted(times)[int(part * (len(times) - 1))]


def test_a_thousand_runs_end_once_over_workers_that_are_killed(
    place: Place, own_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = postgres.make_schema(own_server.get_uri())
    postgres.wait_until_locks_count(database, LEASE_S)
    monkeypatch.setenv(postgres.CHOICE, own_server.get_uri())
    (place.root / postgres.NAMED_IN).write_text(database)
    settings = place.settings(*LINES, day=Limits())
    workers = [start_worker(place, database) for _ in range(WORKERS)]
    starting = Thread(target=lambda: asyncio.run(start_runs(place, settings)), daemon=True)
    began = killed_at = time.monotonic()
    kills, is_restarted, restarted_at, chance = 0, False, began - LEASE_S, random.Random(1)
    taken: dict[str, list[float]] = {"a kill": [], "a kill after a restart": []}
    starting.start()
    try:
        while (counts := look(place, "select count(*), count(outcome) from run")) != [(RUNS, RUNS)]:
            assert time.monotonic() - began < WITHIN_S, counts
            is_due = time.monotonic() - killed_at > chance.uniform(0.5, 1.5) * KILL_EVERY_S
            if is_due and counts[0][1] < RUNS * 5 // 6:  # each kill sets the last ones back
                at = chance.randrange(WORKERS)
                workers[at].kill()
                workers[at].wait()
                is_new = time.monotonic() - restarted_at < LEASE_S  # its locks don't count yet
                taken["a kill after a restart" if is_new else "a kill"] += seconds_until_taken(place, workers[at].pid)
                workers[at] = start_worker(place, database)
                kills, killed_at = kills + 1, time.monotonic()
            if not is_restarted and counts[0][1] > RUNS / 3 and taken["a kill"]:
                postgres.restart_server(own_server)
                is_restarted, restarted_at = True, time.monotonic()
            time.sleep(0.2)
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    took_s = time.monotonic() - began
    assert is_restarted
    assert place.rows("select json_extract(outcome, '$.status'), count(*) from run group by 1") == [("completed", RUNS)]
    assert place.rows("select count(*) from step") == place.rows("select count(*) from answer") == [(5 * RUNS,)]
    assert place.store().find_damage(Outcome) == []
    spent = "select sum(spent_model_calls), sum(spent_total_tokens), sum(held_model_calls) from account where scope = ?"
    assert place.rows(spent, "run") == place.rows(spent, "day")
    ((lost,),) = place.rows("select count(*) from attempt")
    print(f"{RUNS} runs, {kills} kills, {lost} attempts lost, {took_s:.1f} s; {place.rows(spent, 'day')} charged")
    for what, times in taken.items():
        print(f"{len(times)} runs taken over after {what}")
        if times:
            print(f"p50 {percentile(times, 0.5):.2f} s, p95 {percentile(times, 0.95):.2f} s, most {max(times):.2f} s")
    assert percentile(taken["a kill"], 0.95) < TAKEN_S
