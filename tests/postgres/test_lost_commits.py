"""Commits on PostgreSQL: each happens once, whatever becomes of the connection in the middle of it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Literal

import pytest
from support import postgres

from kairos_mcp.core.errors import StoreUnavailable, UnknownRun
from kairos_mcp.store.rows import Session

pytestmark = pytest.mark.postgres
INSERT = "insert into owner(lock, pid, via, started_at) values (?, ?, 'test', 1)"


@pytest.fixture
def cut_socket(server: str, tmp_path: Path) -> Iterator[Any]:
    from postgres.cut_socket import CutSocket
    from psycopg.conninfo import conninfo_to_dict

    cut = CutSocket(tmp_path / "cut", Path(str(conninfo_to_dict(server)["host"])))
    with closing(cut):
        yield cut


def open_store(database: str, tmp_path: Path, **changes: Any) -> Any:
    from psycopg.conninfo import make_conninfo

    from kairos_mcp.store.postgres.database import PostgresStore

    return PostgresStore(tmp_path / "home", make_conninfo(database, **changes), "test")


def rows_of(database: str, statement: str) -> list[tuple[Any, ...]]:
    with postgres.open_session(database) as session:
        return session.rows(statement)


class Job:
    """Inserts a row that nothing keeps from being inserted twice, and counts how often it was run."""

    def __init__(self) -> None:
        self.runs = 0

    def __call__(self, session: Session) -> int:
        self.runs += 1
        return session.insert(
            "insert into client_completion(run, step, session, at, bound) values (1, 1, 's', 1, '[]')"
        )


@pytest.mark.parametrize(("cut", "runs"), [("after", 1), ("before", 2)])
async def test_a_commit_whose_reply_is_lost_happens_once(
    database: str, tmp_path: Path, cut_socket: Any, cut: Literal["before", "after"], runs: int
) -> None:
    """Cut after the server has the commit, it stands and is not made again; cut before, it is made again."""
    store, job = open_store(database, tmp_path, host=str(cut_socket.folder)), Job()
    await store.submit(lambda session: session.row("select 1"))
    cut_socket.cut_at_commit = cut
    number = await store.submit(job)
    await store.close()
    assert (cut_socket.cuts, job.runs) == (1, runs)
    assert rows_of(database, "select id from client_completion") == [(number,)]


async def test_a_transaction_that_is_undone_with_its_connection_is_made_again(database: str, tmp_path: Path) -> None:
    store, job = open_store(database, tmp_path), Job()

    def end_own_backend_once(session: Session) -> int:
        number = job(session)
        if job.runs == 1:
            ((pid,),) = session.rows("select pg_backend_pid()")
            rows_of(database, f"select pg_terminate_backend({pid}, 5000)")
            session.rows("select 1")
        return number

    number = await store.submit(end_own_backend_once)
    await store.close()
    assert job.runs == 2
    assert rows_of(database, "select id from client_completion") == [(number,)]


async def test_a_job_that_fails_undoes_nothing_of_the_others_in_its_group(database: str, tmp_path: Path) -> None:
    store = open_store(database, tmp_path)

    def refuse(_: Session) -> None:
        raise UnknownRun("no such run", "")

    def insert_twice(session: Session) -> None:
        for _ in range(2):
            session.rows(INSERT, ("same", 1))

    jobs = [lambda session, n=n: session.rows(INSERT, (f"lock-{n}", n)) for n in range(3)]
    with ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(store.writer.active_run())
        found = await asyncio.gather(*map(store.submit, [*jobs, refuse, insert_twice]), return_exceptions=True)
    await store.close()
    assert [type(each) for each in found] == [list, list, list, UnknownRun, StoreUnavailable]
    assert rows_of(database, "select pid from owner order by pid") == [(0,), (1,), (2,)]


async def test_a_job_that_goes_on_after_a_failed_statement_is_not_taken_for_committed(
    database: str, tmp_path: Path
) -> None:
    import psycopg

    store = open_store(database, tmp_path)

    def go_on(session: Session) -> int:
        session.rows(INSERT, ("lost", 1))
        with pytest.raises(psycopg.Error):
            session.rows("select 1 / 0")
        return 1

    with pytest.raises(StoreUnavailable):
        await store.submit(go_on)
    await store.close()
    assert rows_of(database, "select count(*) from owner") == [(0,)]


async def test_between_what_a_job_reads_and_what_it_writes_nobody_else_writes(database: str, tmp_path: Path) -> None:
    first, second = open_store(database, tmp_path), open_store(database, tmp_path)
    await first.submit(lambda session: session.rows(INSERT, ("count", 0)))
    await second.submit(lambda session: session.row("select 1"))
    has_begun, has_read = threading.Event(), threading.Event()

    def count(session: Session) -> None:
        ((before,),) = session.rows("select pid from owner")
        if has_begun.is_set():
            has_read.set()
        has_begun.set()
        has_read.wait(0.5)  # for the other to read the same, which it never does
        session.rows("update owner set pid = ?", (before + 1,))

    one = asyncio.create_task(first.submit(count))
    await asyncio.to_thread(has_begun.wait, 10)
    await second.submit(count)
    await one
    for store in (first, second):
        await store.close()
    assert rows_of(database, "select pid from owner") == [(2,)]


async def test_a_read_of_one_state_sees_nothing_that_is_written_meanwhile(database: str, tmp_path: Path) -> None:
    store, other = open_store(database, tmp_path), open_store(database, tmp_path)
    await other.submit(lambda session: session.rows(INSERT, ("first", 1)))
    loop = asyncio.get_running_loop()

    def read(session: Session) -> tuple[int, int]:
        (before,) = session.row("select count(*) from owner") or (0,)
        written = other.submit(lambda writing: writing.rows(INSERT, ("second", 2)))
        asyncio.run_coroutine_threadsafe(written, loop).result(10)
        (after,) = session.row("select count(*) from owner") or (0,)
        return before, after

    assert await store.read(read, one_state=True) == (1, 1)
    assert await store.read(lambda session: session.rows("select count(*) from owner")) == [(2,)]
    for each in (store, other):
        await each.close()
