"""Commits of different runs, made by several servers at a time: who waits for whom, and what is never passed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support import postgres
from support.app import ME, Place, finish_run, reads, says
from support.database_trips import count_trips
from support.waiting import wait_until

from kairos_mcp.app.app import App
from kairos_mcp.budget.ledger import SharedChange
from kairos_mcp.core.errors import BadArguments
from kairos_mcp.core.limits import Limits, Units
from kairos_mcp.core.run_spec import PlannerRequest
from kairos_mcp.store.account_changes import write_shared
from kairos_mcp.store.rows import Session

pytestmark = pytest.mark.postgres
WITHIN_S = 10.0
ONE_CALL = Units(model_calls=1)
NOTE = "insert into note(run, text, step) values (?, ?, 0)"


@pytest.fixture
def watched(server: str) -> str:
    """A database with three runs and two days, one of which has room for ten calls."""
    where = postgres.make_watched_schema(server)
    with postgres.open_session(where) as session:
        for n in range(1, 4):
            session.rows(
                "insert into run(n, id, flow, version, spec, principal, via, client, start_digest, workspace, account,"
                " created_at, route) values (?, ?, 'call', 1, '{}', 'me', 'mcp', '', '', '', 0, 1, 'scripted')",
                (n, f"run-{n}"),
            )
        for day, cap in ((1, 10), (2, None)):
            session.rows(
                "insert into account(id, scope, name, period, cap_model_calls) values (?, 'day', 'me', ?, ?)",
                (day, str(day), cap),
            )
        session.rows("delete from unlocked")
    return where


@asynccontextmanager
async def two_servers(where: str, tmp_path: Path) -> AsyncIterator[tuple[Any, Any]]:
    from kairos_mcp.store.postgres.database import PostgresStore

    servers = [PostgresStore(tmp_path / name, where, "test") for name in ("one", "other")]
    with ExitStack() as stack:
        for each in servers:
            await each.submit(lambda session: session.row("select 1"))
            for _ in range(2):
                stack.enter_context(each.writer.active_run())
        yield servers[0], servers[1]
    for each in servers:
        await each.close()


def rows_of(where: str, statement: str) -> list[tuple[Any, ...]]:
    with postgres.open_session(where) as session:
        return session.rows(statement)


def note(run: int, text: str) -> Callable[[Session], None]:
    return lambda session: session.rows(NOTE, (run, text)) and None


class Held:
    """A job of a run that holds its transaction open until it is let go of."""

    def __init__(self, run: int) -> None:
        self.run, self.has_begun, self.may_end = run, threading.Event(), threading.Event()

    def __call__(self, session: Session) -> None:
        session.rows(NOTE, (self.run, "held"))
        self.has_begun.set()
        assert self.may_end.wait(WITHIN_S)


async def has_waited(task: asyncio.Future[Any], where: str) -> bool:
    """Whether it waits for a lock; False once it has ended without."""
    waits = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and application_name = 'kairos-mcp'"
    while not task.done():
        if await asyncio.to_thread(rows_of, where, waits) != [(0,)]:
            return True
        await asyncio.sleep(0.01)
    return False


@pytest.mark.parametrize(("first", "second", "waits"), [(1, 2, False), (1, 1, True), (1, None, True), (None, 1, True)])
async def test_a_job_waits_for_those_of_its_own_run_and_for_those_of_any(
    watched: str, tmp_path: Path, first: int | None, second: int | None, waits: bool
) -> None:
    async with two_servers(watched, tmp_path) as (one, other):
        held = Held(1)
        holding = asyncio.create_task(one.submit(held, of_run=first))
        await asyncio.to_thread(held.has_begun.wait, WITHIN_S)
        writing = asyncio.create_task(other.submit(note(second or 3, "second"), of_run=second))
        try:
            assert await asyncio.wait_for(has_waited(writing, watched), WITHIN_S) == waits
        finally:
            held.may_end.set()
            await holding
            await writing
    assert len(rows_of(watched, "select * from note")) == 2
    assert rows_of(watched, "select * from unlocked") == []


async def test_what_is_written_without_the_lock_of_its_run_is_found(watched: str, tmp_path: Path) -> None:
    """So that the tests that look for it say something."""
    async with two_servers(watched, tmp_path) as (one, _):
        await one.submit(note(2, "of another run"), of_run=1)
    assert ("note", 2) in rows_of(watched, "select * from unlocked")


async def test_a_shared_account_is_never_taken_past_its_cap(watched: str, tmp_path: Path) -> None:
    """Forty jobs of two servers, in groups: ten have room, and each is told so rightly."""

    def call(session: Session) -> bool:
        write_shared(session, 2, SharedChange(ONE_CALL))
        return write_shared(session, 1, SharedChange(ONE_CALL, limited=ONE_CALL))

    async with two_servers(watched, tmp_path) as (one, other):
        jobs = [server.submit(call, of_run=n) for _ in range(20) for server, n in ((one, 1), (other, 2))]
        had_room = await asyncio.gather(*jobs)
    assert sum(had_room) == 10
    assert rows_of(watched, "select held_model_calls from account order by id") == [(10,), (40,)]


async def test_a_group_without_room_for_all_is_made_once_more_and_no_third_time(watched: str, tmp_path: Path) -> None:
    def call(session: Session) -> bool:
        return write_shared(session, 1, SharedChange(ONE_CALL, limited=ONE_CALL))

    async with two_servers(watched, tmp_path) as (one, _):
        with count_trips(one.writer) as groups:
            had_room = await asyncio.gather(*(one.submit(call, of_run=1 + n % 3) for n in range(20)))
    assert sum(had_room) == 10
    assert [(group.jobs, group.is_alone) for group in groups] == [(20, False), (20, True)]
    assert rows_of(watched, "select held_model_calls from account order by id") == [(10,), (0,)]


async def test_a_job_that_refuses_after_it_has_written_leaves_nothing(watched: str, tmp_path: Path) -> None:
    """Also where it waits for its results, since an account had no room for its group."""

    def charge_or_refuse(session: Session) -> None:
        write_shared(session, 2, SharedChange(ONE_CALL))
        if not write_shared(session, 1, SharedChange(ONE_CALL, limited=ONE_CALL)):
            raise BadArguments("There is no room.", "Ask for less.")

    async with two_servers(watched, tmp_path) as (one, _):
        jobs = [one.submit(charge_or_refuse, of_run=1 + n % 3) for n in range(12)]
        found = await asyncio.gather(*jobs, return_exceptions=True)
    assert [type(each) for each in found].count(BadArguments) == 2
    assert rows_of(watched, "select held_model_calls from account order by id") == [(10,), (10,)]


@pytest.mark.parametrize("table", ["run", "account"])
async def test_a_group_takes_what_others_may_want_in_the_order_of_numbers(
    watched: str, tmp_path: Path, table: str
) -> None:
    """So that no two wait for each other: while it waits for the first, it has not taken the second."""
    import psycopg

    key = "n" if table == "run" else "id"

    def charge_both(session: Session) -> None:
        for account in (2, 1):
            write_shared(session, account, SharedChange(ONE_CALL))

    def is_free(number: int) -> bool:
        try:
            rows_of(watched, f"select 1 from {table} where {key} = {number} for no key update nowait")
        except psycopg.errors.LockNotAvailable:
            return False
        return True

    async with two_servers(watched, tmp_path) as (one, _):
        with postgres.open_session(watched) as holding:
            holding.rows("begin")
            holding.rows(f"select 1 from {table} where {key} = 1 for no key update")
            both = asyncio.gather(*(one.submit(charge_both, of_run=n) for n in (2, 1)))
            assert await asyncio.wait_for(has_waited(both, watched), WITHIN_S)
            assert is_free(2)
            holding.rows("rollback")
        await both
    assert rows_of(watched, "select held_model_calls from account order by id") == [(2,), (2,)]


async def test_a_job_that_was_told_what_is_not_so_is_run_again_and_told_what_is(watched: str, tmp_path: Path) -> None:
    def change_nothing(session: Session) -> int:
        return session.change("update run set paused = 'now' where n = 1 and fence = 99")

    def find_something(session: Session) -> bool:
        return session.finds("select 1 from run where n = 2")

    async with two_servers(watched, tmp_path) as (one, _):
        jobs = [(change_nothing, 1), (find_something, 2), (note(3, "of another"), 3)]
        found = await asyncio.gather(*(one.submit(job, of_run=run) for job, run in jobs))
    assert found[:2] == [0, True]
    assert rows_of(watched, "select text from note") == [("of another",)]


async def test_a_job_that_turns_out_to_concern_other_runs_is_run_alone(watched: str, tmp_path: Path) -> None:
    async with two_servers(watched, tmp_path) as (one, other):
        held = Held(1)
        holding = asyncio.create_task(other.submit(held, of_run=1))
        await asyncio.to_thread(held.has_begun.wait, WITHIN_S)

        def write_of_all(session: Session) -> None:
            session.rows(NOTE, (2, "its own"))
            session.require_alone()
            session.rows(NOTE, (1, "of another run"))

        both = asyncio.gather(one.submit(write_of_all, of_run=2), one.submit(note(3, "beside it"), of_run=3))
        beside = "select 1 from note where text = 'beside it'"
        await asyncio.to_thread(wait_until, lambda: rows_of(watched, beside) != [], WITHIN_S)
        assert rows_of(watched, "select 1 from note where run in (1, 2)") == []
        held.may_end.set()
        await holding
        await both
    assert sorted(rows_of(watched, "select run, text from note")) == [
        (1, "held"), (1, "of another run"), (2, "its own"), (3, "beside it"),
    ]  # fmt: skip
    assert rows_of(watched, "select * from unlocked") == []


@pytest.mark.parametrize("runs", [1, 12])
async def test_a_group_of_commits_from_memory_takes_three_trips_whatever_its_size(
    place: Place, server: str, monkeypatch: pytest.MonkeyPatch, runs: int
) -> None:
    monkeypatch.setenv(postgres.CHOICE, server)
    async with App.open(place.settings(reads("a.txt"), reads("b.txt"), says("done")), via="mcp") as app:
        warm = await app.runs.start(PlannerRequest("warm"), ME)
        await finish_run(app, warm.run_id)
        with count_trips(app._store.writer) as groups:
            goals = [f"look {n}" for n in range(runs)]
            started = await asyncio.gather(
                *(app.runs.start(PlannerRequest(goal, limits=Limits(rounds=4)), ME) for goal in goals)
            )
            for each in started:
                await finish_run(app, each.run_id)
    from_memory = [group for group in groups if not group.is_alone]  # the others are starts
    assert max(group.jobs for group in from_memory) >= runs / 2
    assert {group.trips for group in from_memory} == {3}
