"""Who is alive on a database: a session lock that goes with its connection, and a lease by the database's clock."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support import postgres
from support.app import ME, Place, says
from support.waiting import wait_until

from kairos_mcp.app.app import App
from kairos_mcp.core.errors import StoreUnavailable
from kairos_mcp.core.run_spec import PlannerRequest
from kairos_mcp.store.database import News
from kairos_mcp.store.rows import Session

pytestmark = pytest.mark.postgres
LEASE_S = 2.0
WITHIN_S = 15.0
END_SESSION = "select pg_terminate_backend(cast(? as integer), 5000)"
SERVER = """
import sys
from functools import partial
from kairos_mcp.store.postgres.ownership import SessionLock
from kairos_mcp.store.postgres.connection import connect
lock = SessionLock(partial(connect, sys.argv[1]), None, lambda _: None, float(sys.argv[2]))
print(lock.lock, flush=True)
sys.stdin.read()
lock.close()
"""


@contextmanager
def another_server(database: str, lease_s: float = LEASE_S) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process that holds a lock and a lease until its input ends; the name of its lock."""
    started = subprocess.Popen(
        (sys.executable, "-c", SERVER, database, str(lease_s)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert started.stdout is not None
        yield started, started.stdout.readline().strip()
    finally:
        started.kill()
        started.communicate()


def living(database: str, lock: str) -> bool:
    from kairos_mcp.store.postgres.ownership import SessionLocks

    with postgres.open_session(database) as session:
        return bool(SessionLocks().find_living(session, [lock]))


def open_store(database: str, tmp_path: Path) -> Any:
    from kairos_mcp.store.postgres.database import PostgresStore

    return PostgresStore(tmp_path / "home", database, "test")


def test_a_server_that_ends_lets_go_and_leaves_no_row(database: str, tmp_path: Path) -> None:
    with another_server(database) as (process, lock):
        assert living(database, lock)
        process.communicate("")
        assert not living(database, lock)
    with postgres.open_session(database) as session:
        assert session.rows("select lock from lease") == []


@pytest.mark.parametrize("runs", ["x,1", ",", "9" * 5_000, "-", "\u0663,"])
def test_whoever_sends_an_odd_notice_ends_no_lease(database: str, runs: str) -> None:
    """To connect to a database is enough for that, without a right on any of our tables."""
    from kairos_mcp.store.postgres.connection import connect
    from kairos_mcp.store.postgres.locks import CHANNEL
    from kairos_mcp.store.postgres.ownership import SessionLock

    heard: list[Any] = []
    lock = SessionLock(partial(connect, database), None, lambda _, runs: heard.append(runs), LEASE_S)
    try:
        with postgres.open_session(database) as session:
            session.rows(f"select pg_notify('{CHANNEL}', concat(current_schema(), ' ', ?::text))", (runs,))
            session.rows(f"select pg_notify('{CHANNEL}', concat(current_schema(), ' 7,8'))")
        wait_until(lambda: [7, 8] in heard, WITHIN_S)
        assert heard[-2:] == [None, [7, 8]]
    finally:
        lock.close()


def test_a_killed_server_is_dead_at_once_though_its_lease_is_not_over(database: str) -> None:
    postgres.wait_until_locks_count(database, LEASE_S)
    with another_server(database) as (process, lock):
        killed_at = time.monotonic()
        process.kill()
        wait_until(lambda: not living(database, lock), WITHIN_S)
        assert time.monotonic() - killed_at < LEASE_S / 2


def test_a_server_that_stands_still_is_dead_once_its_lease_is_over_and_lives_when_it_goes_on(database: str) -> None:
    with another_server(database) as (process, lock):
        stopped_at = time.monotonic()
        process.send_signal(signal.SIGSTOP)
        wait_until(lambda: not living(database, lock), WITHIN_S)
        assert LEASE_S / 2 < time.monotonic() - stopped_at < LEASE_S + 1
        process.send_signal(signal.SIGCONT)
        wait_until(lambda: living(database, lock), WITHIN_S)


def test_after_a_restart_of_the_database_nobody_is_taken_for_dead_before_the_lease_is_over(own_server: Any) -> None:
    """All locks have gone at once; one that has not locked again yet may be in the middle of a call."""
    database = postgres.make_schema(own_server.get_uri())
    with another_server(database, lease_s=8.0) as (process, lock):
        process.send_signal(signal.SIGSTOP)
        postgres.restart_server(own_server)
        assert living(database, lock)
        wait_until(lambda: not living(database, lock), WITHIN_S)
        process.send_signal(signal.SIGCONT)
        wait_until(lambda: living(database, lock), WITHIN_S)


async def test_a_lost_session_is_dead_until_there_is_another_and_may_not_act_meanwhile(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await asyncio.to_thread(postgres.wait_until_locks_count, database, 10)
    store = open_store(database, tmp_path)
    await store.register_owner(1)
    lock = store.ownership
    assert store.may_act

    def refuse() -> Any:
        raise StoreUnavailable("The database is not there.", "")

    connect = lock._connect
    monkeypatch.setattr(lock, "_connect", refuse)
    with postgres.open_session(database) as session:
        session.rows(END_SESSION, (lock._connection.info.backend_pid,))
    assert not living(database, lock.lock)
    await asyncio.to_thread(wait_until, lambda: not store.may_act, 1)
    await store.take_news()
    monkeypatch.setattr(lock, "_connect", connect)
    await asyncio.to_thread(wait_until, lambda: store.may_act, WITHIN_S)
    assert living(database, lock.lock)
    await store.wait_for_news(1)
    assert (await store.take_news()).of_any  # what others committed meanwhile was not heard
    await store.close()


@pytest.mark.parametrize("run", [None, 7])
async def test_what_others_commit_is_heard_and_what_this_process_commits_is_not(
    database: str, tmp_path: Path, run: int | None
) -> None:
    store, other = open_store(database, tmp_path), open_store(database, tmp_path)
    await store.register_owner(1)
    await store.take_news()

    def write(session: Session) -> None:
        session.rows("insert into text values ('h', 'body') on conflict do nothing")

    await store.submit(write, of_run=run)
    await asyncio.sleep(0.1)
    assert await store.take_news() == News()
    began = time.monotonic()
    await other.submit(write, of_run=run)
    await store.wait_for_news(0)
    assert time.monotonic() - began < 0.5  # without a word it looks once a second
    assert await store.take_news() == (News(of_any=True) if run is None else News(frozenset({run})))
    for each in (store, other):
        await each.close()


async def test_only_the_runs_of_which_something_is_heard_are_looked_at(place: Place) -> None:
    async with App.open(place.settings(*[says("done", delay_s=20.0)] * 2), via="mcp") as app:
        heard, other = [(await app.runs.start(PlannerRequest(goal), ME)).run_id for goal in ("one", "two")]
        ((n,),) = place.rows(f"select n from run where id = '{heard}'")
        workers = {worker.state.run.id: worker for worker, _ in app._context.pool.moving.values()}
        for worker in workers.values():
            await asyncio.sleep(0.05)  # until it has begun its step
            worker._inbox_changed = False
        waits = {run: asyncio.create_task(app._context.pool.change_signal.wait([run], 5)) for run in (heard, other)}
        await asyncio.sleep(0)
        await app.watcher._wake_for(News(frozenset({n})), ())
        await waits[heard]
        assert not waits[other].done()
        assert {run: worker._inbox_changed for run, worker in workers.items()} == {heard: True, other: False}
        await app.watcher._wake_for(News(of_any=True), ())
        await waits[other]
        assert all(worker._inbox_changed for worker in workers.values())


async def test_the_database_s_clock_is_the_store_s(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(database, tmp_path)
    await store.read(lambda session: session.row("select 1"))
    true_ms = time.time() * 1000
    monkeypatch.setattr(time, "time_ns", lambda: 1)
    monkeypatch.setattr(time, "time", lambda: 1.0)
    assert abs(store.now() - true_ms) < 5_000
    await store.register_owner(store.now())
    assert abs(store.now() - true_ms) < 5_000
    await store.close()


async def test_the_version_of_the_rows_rises_with_each_commit_and_with_nothing_else(
    database: str, tmp_path: Path
) -> None:
    """Within a job nobody else has written where it is still what it was: so texts are removed that nobody uses."""
    store, other = open_store(database, tmp_path), open_store(database, tmp_path)
    with ExitStack() as stack:
        watch = stack.enter_context(store.read_session())
        seen = watch.read_version()
        assert await other.submit(lambda _: watch.read_version()) == seen
        assert watch.read_version() != seen
    for each in (store, other):
        await each.close()


async def test_a_store_goes_on_after_its_connections_were_lost(database: str, tmp_path: Path) -> None:
    store = open_store(database, tmp_path)
    for n in range(3):
        await store.submit(lambda session, n=n: session.rows("insert into text values (?, '')", (str(n),)))
        assert await store.read(lambda session: session.row("select count(*) from text")) == (n + 1,)
        with postgres.open_session(database) as session:
            for pid in (store.writer.backend, *(idle.connection.info.backend_pid for idle in store._idle)):
                session.rows(END_SESSION, (pid,))
    await store.close()


async def test_a_read_of_one_state_goes_on_after_its_connection_was_lost(database: str, tmp_path: Path) -> None:
    store = open_store(database, tmp_path)
    for _ in range(2):
        assert await store.read(lambda session: session.row("select count(*) from run"), one_state=True) == (0,)
        (idle,) = store._idle
        with postgres.open_session(database) as session:
            session.rows(END_SESSION, (idle.connection.info.backend_pid,))
    await store.close()
