"""Many runs of one principal over four workers: all are charged to one day, which is never used past its cap."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from support import forked_program, postgres
from support.app import ME, Place, reads, says
from support.daily_accounts import count_passed_caps, watch_peaks
from support.replayed import differences_in_database

from kairos_mcp.app.app import App
from kairos_mcp.app.drive_mode import DriveMode
from kairos_mcp.core.limits import Limits
from kairos_mcp.core.outcomes import Outcome
from kairos_mcp.core.run_spec import PlannerRequest
from kairos_mcp.settings.settings import Settings

pytestmark = [pytest.mark.postgres, pytest.mark.slow, pytest.mark.unreplayed]  # it is, within the test
RUNS = 256
WORKERS = 4
CAP = 600  # of the 768 calls that the runs would make
WITHIN_S = 180.0
LINES = (reads("a.txt", delay_s=0.2), reads("b.txt", delay_s=0.2), says("done", delay_s=0.2))
TIMED_WORKER = """
import json, os, sys, time
from kairos_mcp.cli.main import main
from kairos_mcp.store.postgres.writer import PostgresWriter

took, submit = [], PostgresWriter.submit

async def submit_timed(self, job, of_run=None):
    began = time.monotonic()
    try:
        return await submit(self, job, of_run)
    finally:
        if of_run is not None:
            took.append(time.monotonic() - began)

PostgresWriter.submit = submit_timed
try:
    main()
finally:
    with open(os.environ["TOOK"], "w") as file:
        json.dump(took, file)
"""
IN_THE_DAY = "select coalesce(max(held_model_calls + spent_model_calls), 0) from account where scope = 'day'"


def start_worker(place: Place, database: str, took: Path) -> Any:
    environ = {**os.environ, "KAIROS_DAY_MODEL_CALLS": str(CAP), "KAIROS_STORE": database, "TOOK": str(took)}
    options = ("work", "--home", str(place.home), "--workspace", str(place.workspace))
    script = {"KAIROS_SCRIPT": str(place.script)}
    return forked_program.start(options, code=TIMED_WORKER, env=environ | script)


async def start_runs(settings: Settings) -> None:
    async with App.open(settings, via="mcp", mode=DriveMode(drives=False)) as app:
        await asyncio.gather(*(app.runs.start(PlannerRequest(f"look {n}"), ME) for n in range(RUNS)))


def test_a_day_that_all_runs_share_is_never_used_past_its_cap(
    place: Place, own_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = postgres.make_watched_schema(own_server.get_uri())
    monkeypatch.setenv(postgres.CHOICE, own_server.get_uri())
    (place.root / postgres.NAMED_IN).write_text(database)
    settings = place.settings(*LINES, day=Limits(model_calls=CAP))
    asyncio.run(start_runs(settings))
    watch_peaks(place)
    files = [place.root / f"took-{n}.json" for n in range(WORKERS)]
    began = time.monotonic()
    workers = [start_worker(place, database, file) for file in files]
    try:
        at_rest = "select count(*) from run where outcome is not null or paused is not null"
        while place.rows(at_rest) != [(RUNS,)]:
            assert time.monotonic() - began < WITHIN_S, place.rows(at_rest)
            assert place.rows(IN_THE_DAY)[0][0] <= CAP
            time.sleep(0.05)
        lasted = time.monotonic() - began
    finally:
        for worker in workers:
            os.kill(worker.pid, signal.SIGTERM)
        for worker in workers:
            worker.wait()
    assert place.rows("select cap_model_calls from account where scope = 'day'") == [(CAP,)]
    assert count_passed_caps(place) == 0  # by any commit, also where nobody looked
    assert place.rows(IN_THE_DAY) == [(CAP,)]  # and all of it was used
    assert place.rows("select count(*) from step where kind = 'round'") == [(CAP,)]
    with postgres.open_session(database) as session:
        assert session.rows("select deadlocks from pg_stat_database where datname = current_database()") == [(0,)]
    assert place.store().find_damage(Outcome) == []
    assert differences_in_database(database) == []
    took = sorted(each for file in files for each in json.loads(file.read_text()))
    p50, p99 = (took[int(len(took) * part)] * 1000 for part in (0.5, 0.99))
    print(f"{len(took)} commits by {WORKERS} workers in {lasted:.1f} s: p50 {p50:.0f} ms, p99 {p99:.0f} ms")
