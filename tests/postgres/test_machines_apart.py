"""What several machines on one database don't share: their clocks, what they hear, and the pooler before it."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import forked_program, postgres
from support.app import ME, Place, place_in, reads, rests, says, wait_for_step
from support.waiting import wait_until

from kairos_mcp.app.app import App, make_database
from kairos_mcp.app.drive_mode import DriveMode
from kairos_mcp.core.errors import StoreBusy, StoreUnavailable
from kairos_mcp.core.outcomes import Outcome
from kairos_mcp.core.run_spec import PlannerRequest

pytestmark = pytest.mark.postgres
WITHIN_S = 30.0
LINES = (reads("a.txt", delay_s=0.05), says("done", delay_s=0.05))
APART_S = 300
WORK_APART = """
import sys, time
ahead_s, now, now_ns = int(sys.argv.pop(1)), time.time, time.time_ns
time.time, time.time_ns = lambda: now() + ahead_s, lambda: now_ns() + ahead_s * 10**9
from kairos_mcp.cli.main import main
main()
"""


@pytest.fixture
def place(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setenv(postgres.CHOICE, server)
    return place_in(tmp_path / "place")


@contextmanager
def worker(place: Place, ahead_s: int) -> Iterator[None]:
    """A worker whose machine's clock is so far ahead."""
    environ = {**os.environ, "KAIROS_SCRIPT": str(place.script)}
    words = (str(ahead_s), "work", "--slots", "4", "--home", str(place.root / str(ahead_s)))
    process = forked_program.start(
        [*words, "--workspace", str(place.workspace)], code=WORK_APART, env=environ, stderr=subprocess.DEVNULL
    )
    try:
        yield
    finally:
        process.kill()
        process.wait()


async def test_clocks_of_machines_that_are_minutes_apart_change_nothing(place: Place) -> None:
    with ExitStack() as stack:
        async with App.open(place.settings(*LINES), via="mcp", mode=DriveMode(drives=False)) as front:
            for ahead_s in (APART_S, -APART_S):
                stack.enter_context(worker(place, ahead_s))
            starts = [front.runs.start(PlannerRequest(f"look {n}"), ME) for n in range(12)]
            ids = [started.run_id for started in await asyncio.gather(*starts)]
            for run_id in ids:
                await front.runs.wait([run_id], until="done", wait_s=WITHIN_S, caller=ME)
    workers = "select count(distinct step.fence), count(distinct pid) from step, owner where via = 'work'"
    assert place.rows(workers) == [(1, 2)]  # nobody was taken for dead
    assert place.rows("select count(*), count(outcome) from run") == [(12, 12)]
    times = "select at from step union all select at from answer union all select ended_at from run"
    now = "(extract(epoch from clock_timestamp()) * 1000)::bigint"
    off = f"select count(*) from ({times}) as times(at) where at > {now} or at < {now} - {APART_S * 1000 // 2}"
    assert place.rows(off) == [(0,)]
    assert place.rows("select spent_model_calls from account where scope = 'day'") == [(24,)]


async def test_a_server_that_hears_nothing_of_what_others_commit_looks_for_it(place: Place) -> None:
    lines = (says("done"),)
    async with (
        App.open(place.settings(*lines), via="mcp") as deaf,
        App.open(place.settings(*lines, home=place.root / "other"), via="mcp") as other,
    ):
        run_id = (await deaf.runs.start(PlannerRequest("look", route="caller"), ME)).run_id
        await rests(deaf, run_id)
        await asyncio.to_thread(deaf._context.store.ownership._connection.execute, "unlisten *")
        waiting = asyncio.create_task(deaf.runs.wait([run_id], until="done", wait_s=WITHIN_S, caller=ME))
        await asyncio.sleep(0.1)
        began = time.monotonic()
        await other.answers.submit(run_id, {"round-1": says("done")}, ME)
        await waiting
        assert time.monotonic() - began < 5  # it looks once a second
        assert (await rests(deaf, run_id)).status == "completed"


async def test_a_cancel_reaches_a_server_that_hears_nothing(place: Place) -> None:
    settings = place.settings(says("done", delay_s=2 * WITHIN_S))
    async with (
        App.open(settings, via="mcp") as deaf,
        App.open(replace(settings, home=place.root / "other"), via="mcp") as other,
    ):
        run_id = (await deaf.runs.start(PlannerRequest("look"), ME)).run_id
        await wait_for_step(deaf, "round-1")
        await asyncio.to_thread(deaf._context.store.ownership._connection.execute, "unlisten *")
        await other.control.cancel(run_id, ME)
        async with asyncio.timeout(5):  # it looks once a second
            await other.runs.wait([run_id], until="done", wait_s=WITHIN_S, caller=ME)
        assert (await other.runs.report(run_id, ME)).status == "cancelled"


async def test_a_worker_that_hears_nothing_takes_what_others_start(place: Place) -> None:
    """What is written of a run is all that counts: without a word of it a worker finds it at its next look."""
    settings = place.settings(says("done"))
    async with (
        App.open(settings, via="mcp", mode=DriveMode(drives=False)) as front,
        App.open(settings, via="work", mode=DriveMode(slots=4)) as worker,
    ):
        await worker.begin_work()
        await asyncio.to_thread(worker._context.store.ownership._connection.execute, "unlisten *")
        for n in range(3):
            run_id = (await front.runs.start(PlannerRequest(f"look {n}"), ME)).run_id
            async with asyncio.timeout(5):  # it looks once a second
                await front.runs.wait([run_id], until="done", wait_s=WITHIN_S, caller=ME)
            assert (await front.runs.report(run_id, ME)).status == "completed"
    assert place.rows("select count(*), count(outcome) from run") == [(3, 3)]


# -- a pooler ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def pooled(own_server: Any, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[tuple[str, str]]:
    """A database with tables, as pgbouncer hands out its connections, for single transactions if not told otherwise,
    and directly."""
    if (program := shutil.which("pgbouncer")) is None:
        pytest.skip("pgbouncer is not installed")
    direct = own_server.get_uri()
    with postgres.open_session(direct) as session:
        from kairos_mcp.store.postgres.schema import migrate

        migrate(session)
    folder = tmp_path / "pooler"
    folder.mkdir(mode=0o777)
    settings = {
        "unix_socket_dir": folder, "listen_port": 6432, "auth_type": "any",
        "pool_mode": getattr(request, "param", "transaction"), "default_pool_size": 3,
        "ignore_startup_parameters": "options,extra_float_digits", "logfile": folder / "log", "pidfile": folder / "pid",
    }  # fmt: skip
    lines = [f"{name} = {value}" for name, value in settings.items()]
    where = f"postgres = host={own_server.pgdata} user=postgres"
    (folder / "pgbouncer.ini").write_text("\n".join(("[databases]", where, "[pgbouncer]", *lines, "")))
    as_user = {"user": own_server.system_user} if os.geteuid() == 0 else {}
    for each in (tmp_path, *list(tmp_path.parents)[:-2]):
        each.chmod(each.stat().st_mode | 0o755)
    folder.chmod(0o777)
    pooler = subprocess.Popen((program, "-q", folder / "pgbouncer.ini"), stderr=subprocess.DEVNULL, **as_user)
    try:
        wait_until((folder / ".s.PGSQL.6432").exists, WITHIN_S, (folder / "log").read_text)
        yield f"postgresql://postgres@/postgres?host={folder}&port=6432", direct
    finally:
        pooler.terminate()
        pooler.wait()


async def test_behind_a_pooler_of_transactions_it_is_refused_or_slower_and_nothing_is_lost(
    pooled: tuple[str, str], tmp_path: Path
) -> None:
    """Locks of sessions and what is prepared in them are not for it: whatever fails there, rows stay whole, and a
    server with a connection of its own ends what was begun."""
    through, direct = pooled
    place = Place(tmp_path / "place")
    place.workspace.mkdir(parents=True)
    (place.workspace / "a.txt").write_text("alpha\n")
    refused = started = 0
    async with App.open(place.settings(*LINES, store=through), via="mcp") as app:
        for n in range(20):
            try:
                await app.runs.start(PlannerRequest(f"look {n}", key=str(n)), ME)
                started += 1
            except (StoreBusy, StoreUnavailable) as refusal:
                refused += 1
                said = refusal
        await asyncio.sleep(0.5)
    print(f"{started} runs were started, {refused} refused", f"as {said}" if refused else "")
    async with App.open(place.settings(*LINES, store=direct, home=place.root / "other"), via="mcp") as app:
        ids = [(await app.runs.start(PlannerRequest(f"look {n}", key=str(n)), ME)).run_id for n in range(20)]
        for run_id in ids:
            assert (await app.runs.wait([run_id], until="done", wait_s=WITHIN_S, caller=ME)) is not None
            assert (await rests(app, run_id)).status == "completed"
    with postgres.open_session(direct) as session:
        assert session.row("select count(*), count(outcome) from run") == (20, 20)
        assert session.row("select count(*) from step") == session.row("select count(*) from answer") == (60,)
    assert place.store(store=direct).find_damage(Outcome) == []


@pytest.mark.parametrize(("pooled", "keeps_session"), [("transaction", False), ("session", True)], indirect=["pooled"])
def test_a_pooler_of_transactions_is_found_though_nobody_else_uses_it(
    pooled: tuple[str, str], tmp_path: Path, keeps_session: bool
) -> None:
    """Then each statement has the same connection as the one before."""
    settings = place_in(tmp_path / "place").settings()
    found = [make_database(replace(settings, store=where), "doctor").check_server() for where in pooled]
    assert [check.keeps_session for check in found] == [keeps_session, True]
