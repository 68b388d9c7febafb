"""A worker that is killed, or stands still, after any statement to the database: another goes on with its run, and when
the first one goes on, nothing is done twice."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from postgres.interrupted_runs import CASES, EDITS, Case
from support import postgres
from support.app import ME, Place, assert_all_lawful, place_in
from support.waiting import wait_until

from kairos_mcp.app.app import App
from kairos_mcp.app.drive_mode import DriveMode
from kairos_mcp.core.errors import StoreBusy
from kairos_mcp.core.outcomes import Outcome
from kairos_mcp.views.run_report import RunReport

pytestmark = pytest.mark.postgres

WORK = """
import os, signal, sys, threading, psycopg
from kairos_mcp.store.postgres import connection, ownership
at, number = int(sys.argv[1]), int(sys.argv[2])
connection.BOUNDS = connection.BOUNDS.replace("timeout=5s", "timeout=1s")  # so long others wait for what it holds
connection.TRANSACTION_S = 2
ownership.SessionLock.__init__.__defaults__ = (2.0,)  # the lease
count, execute = 0, psycopg.Connection.execute
def execute_counted(connection, *arguments, **options):
    global count
    done = execute(connection, *arguments, **options)
    if threading.current_thread().name != "kairos-lease":
        count += 1
        if count == at:
            os.kill(os.getpid(), number)
    return done
psycopg.Connection.execute = execute_counted
sys.argv[1:3] = ["work"]
from kairos_mcp.cli.main import main
main()
"""


@contextmanager
def worker(place: Place, at: int, number: int) -> Iterator[subprocess.Popen[bytes]]:
    """A worker that sends itself this signal after so many statements."""
    environ = {**os.environ, "KAIROS_SCRIPT": str(place.script), **postgres.environ_of(place.root)}
    home = place.root / "other"
    home.mkdir(mode=0o700)
    (home / "kairos.toml").write_text(f'[[gate]]\ntools = "{EDITS.tools}"\nverdict = "{EDITS.verdict}"\n')
    words = (str(at), str(number), "--home", str(home), "--workspace", str(place.workspace))
    streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen((sys.executable, "-c", WORK, *words), env=environ, **streams)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def stands_still(process: subprocess.Popen[bytes]) -> bool:
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


async def ask_until_done(app: App, run_id: str) -> RunReport:
    """Ask again while the database is busy: one that stands still within a transaction holds it for a while."""
    async with asyncio.timeout(60):
        while True:
            with suppress(StoreBusy):
                await app.runs.wait([run_id], until="done", wait_s=20, caller=ME)
                return await app.runs.report(run_id, ME)


async def end_run(case: Case, place: Place, at: int, number: int) -> bool:
    """Have the run ended by another server after the signal; return whether the worker came to that statement."""
    settings = place.settings(*case.lines, gate=(EDITS,))
    async with App.open(settings, via="mcp", mode=DriveMode(drives=False)) as front:
        run_id = await case.start(front)
    ended = "select 1 from run where outcome is not null"
    with worker(place, at, number) as process:
        wait_until(lambda: process.poll() is not None or stands_still(process) or place.rows(ended))
        came = process.poll() is not None or stands_still(process)
        assert process.poll() in {None, -signal.SIGKILL}
        async with App.open(settings, via="mcp") as app:
            report = await ask_until_done(app, run_id)
            assert (report.status, report.summary) == ("completed", "done"), (at, report)
            if process.poll() is None:
                rows = place.rows("select * from answer order by step")
                os.kill(process.pid, signal.SIGCONT)
                await asyncio.sleep(0.3)  # for what it might do now
                assert rows == place.rows("select * from answer order by step")
            assert (
                place.rows("select count(*) from step") == place.rows("select count(*) from answer") == [(case.steps,)]
            )
            assert (place.workspace / "a.txt").read_text() == case.text
            await assert_all_lawful(app)
    assert place.store().find_damage(Outcome) == []
    return came


@pytest.mark.parametrize(
    ("case", "every"),
    [
        ("planner", 17),
        ("editor", 19),
        ("team", 43),
        pytest.param("planner", 1, marks=pytest.mark.slow),
        pytest.param("editor", 1, marks=pytest.mark.slow),
        pytest.param("team", 1, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_run_ends_once_wherever_its_worker_is_killed_or_stands_still(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str, number: signal.Signals, every: int
) -> None:
    monkeypatch.setenv(postgres.CHOICE, server)
    for at in range(2, 500, every):
        if not await end_run(CASES[case], place_in(tmp_path / str(at)), at, number):
            break
    assert at > 20
    print(f"{case}: {number.name} after each of {at} statements, every {every}")


@pytest.mark.parametrize("sent", ["before the end of a pipeline", "after it"])
async def test_a_transaction_of_who_stands_still_within_a_pipeline_is_ended(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: str
) -> None:
    """Else all others wait for what it has locked until it goes on."""
    from kairos_mcp.store.postgres import connection
    from kairos_mcp.store.postgres import writer as writers
    from kairos_mcp.store.postgres.database import PostgresStore

    monkeypatch.setattr(connection, "TRANSACTION_S", 1)
    still = writers.PostgresWriter(lambda: connection.connect(database))
    opened = still._open_session()
    writers.begin(opened)
    if sent == "before the end of a pipeline":
        opened.connection.pgconn.enter_pipeline_mode()
        opened.connection.pgconn.send_query_params(b"select 1", None)
        opened.connection.pgconn.send_flush_request()
        opened.connection.pgconn.flush()
    store = PostgresStore(tmp_path / "home", database, "test")
    began = time.monotonic()
    await store.submit(lambda session: session.row("select 1"))
    assert time.monotonic() - began < 4  # of the five for which it waits for the lock
    await store.close()
    opened.connection.close()
