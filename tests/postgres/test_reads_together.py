"""What is read together: the same rows as one after the other, in fewer trips, of one state where that is asked for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support import postgres
from support.database_trips import count_reads
from support.waiting import wait_until

from kairos_mcp.core.errors import UnknownRun
from kairos_mcp.store.connection import SqliteSession
from kairos_mcp.store.rows import Session, read_each, read_together

pytestmark = pytest.mark.postgres
ADD = "insert into owner(lock, pid, via, started_at) values (?, ?, 'test', 0)"
CREATE = "create table owner(id integer primary key, lock text, pid integer, via text, started_at integer)"
WITHIN_S = 10.0


@pytest.fixture
async def store(database: str, tmp_path: Path) -> AsyncIterator[Any]:
    from kairos_mcp.store.postgres.database import PostgresStore

    opened = PostgresStore(tmp_path, database, "test")
    for n in (3, 1, 2):
        await opened.submit(lambda session, n=n: session.rows(ADD, (f"lock-{n}", n)))
    yield opened
    await opened.close()


def find_next(session: Session, pid: int) -> int:
    """The number of the lock of the owner after this one: three statements, each with what the one before gave."""
    (lock,) = session.row("select lock from owner where pid = ?", (pid,)) or ("",)
    (found,) = session.row("select pid + 1 from owner where lock = ?", (lock,)) or (0,)
    return 0 if session.row("select 1 from owner where pid = ?", (found,)) is None else found


def read_all(session: Session) -> tuple[list[int], list[tuple[int]], bool]:
    return read_together(
        session,
        lambda session: read_each(session, find_next, [1, 2, 3]),
        lambda session: session.rows("select pid from owner where pid > :least order by pid", {"least": 1}),
        lambda session: session.finds("select 1 from owner where pid = 7"),
    )


async def test_reads_give_what_they_give_alone_in_as_many_trips_as_the_longest_of_them(store: Any) -> None:
    file = SqliteSession(":memory:")
    file.rows(CREATE)
    for n in (3, 1, 2):
        file.rows(ADD, (f"lock-{n}", n))
    with count_reads(store) as taken:
        assert await store.read(read_all) == read_all(file) == ([2, 3, 0], [(2,), (3,)], False)
    assert [(read.trips, read.statements) for read in taken] == [(3, 3 * 3 + 2)]


async def test_an_error_of_one_of_them_is_raised_and_the_next_read_finds_the_connection_whole(
    store: Any,
) -> None:
    def refuse(session: Session) -> None:
        session.rows("select 1 from owner")
        raise UnknownRun("none", "none")

    for _ in range(2):
        with pytest.raises(UnknownRun):
            await store.read(lambda session: read_together(session, refuse, read_all))
        assert (await store.read(read_all))[0] == [2, 3, 0]
    assert len(store._idle) == 1


async def test_a_statement_that_fails_spoils_no_later_read(store: Any) -> None:
    """Of what was sent after it nothing is prepared, though the driver takes it for that."""

    def divide(session: Session) -> object:
        return read_together(
            session,
            lambda session: session.rows("select 1 / (pid - pid) from owner"),
            lambda session: session.rows("select count(*), 'later' from owner"),
        )

    for _ in range(3):
        with pytest.raises(Exception, match="The database failed"):
            await store.read(divide)
        found = await store.read(lambda session: session.rows("select count(*), 'later' from owner"))
        assert found == [(3, "later")]


async def test_one_state_is_read_though_its_trips_are_several_and_is_left_at_the_end(store: Any, database: str) -> None:
    loop = asyncio.get_running_loop()

    def read(session: Session) -> list[list[tuple[int]]]:
        def count(session: Session) -> tuple[int]:
            return session.row("select count(*) from owner") or (0,)

        before = session.together([count, count])
        written = store.submit(lambda session: session.rows(ADD, (f"more-{number}", 0)))
        asyncio.run_coroutine_threadsafe(written, loop).result(WITHIN_S)
        return [before, session.together([count])]

    for number in range(2):
        with count_reads(store) as taken:
            assert await store.read(read, one_state=True) == [[(3 + number,)] * 2, [(3 + number,)]]
        assert [read.trips for read in taken] == [2]  # nobody waits for its begin, nor for its end
        (idle,) = store._idle
        await asyncio.to_thread(wait_until, partial(is_idle, database, idle.connection.info.backend_pid), WITHIN_S)


def is_idle(database: str, backend: int) -> bool:
    with postgres.open_session(database) as session:
        return session.rows("select state from pg_stat_activity where pid = ?", (backend,)) == [("idle",)]
