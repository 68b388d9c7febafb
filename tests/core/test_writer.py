"""The one connection that writes: what arrives together is one commit, nobody pays for another's failure."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from support import postgres
from support.app import Place
from support.postgres import both_stores

from kairos_mcp.core.errors import BadArguments, FenceLost, StoreBusy
from kairos_mcp.store.database import Store
from kairos_mcp.store.rows import Session

Job = Callable[[Session], Any]


def keeps(name: str) -> Job:
    return lambda session: session.rows("insert into text values (?, 'kept')", (name,))


def stored_names(place: Place) -> list[str]:
    return [name for (name,) in place.rows("select hash from text order by rowid")]


def open_store(place: Place, durability: Any = "process") -> Store:
    store = place.store(durability=durability)
    store.open()
    return store


@contextmanager
def moving(store: Store, runs: int) -> Iterator[None]:
    """As while so many runs move."""
    with ExitStack() as stack:
        for _ in range(runs):
            stack.enter_context(store.writer.active_run())
        yield


@pytest.fixture(params=["full", "process"])
def durability(request: pytest.FixtureRequest) -> Any:
    return request.param


async def test_one_run_commits_each_job_at_once(place: Place, durability: Any) -> None:
    store = open_store(place, durability)
    with moving(store, 1):
        for n in range(3):
            await store.submit(keeps(str(n)))
            assert stored_names(place) == [str(each) for each in range(n + 1)]
    assert store.writer.commits == 3
    await store.close()


async def test_what_several_runs_bring_together_is_one_commit_in_the_order_it_came(
    place: Place, durability: Any
) -> None:
    store = open_store(place, durability)
    names = [f"{n:02}" for n in range(20)]
    with moving(store, 20):
        await asyncio.gather(*(store.submit(keeps(name)) for name in names))
    assert stored_names(place) == names
    assert store.writer.commits < 4
    await store.close()


@pytest.mark.parametrize("refusal", [BadArguments("no"), FenceLost("run")])
async def test_a_job_that_refuses_takes_no_other_with_it(place: Place, durability: Any, refusal: Exception) -> None:
    def refuses(_: Session) -> None:
        raise refusal

    store = open_store(place, durability)
    with moving(store, 3):
        first, second, third = await asyncio.gather(
            store.submit(keeps("one")), store.submit(refuses), store.submit(keeps("two")), return_exceptions=True
        )
    assert second is refusal
    assert not isinstance(first, BaseException)
    assert not isinstance(third, BaseException)
    assert stored_names(place) == ["one", "two"]
    await store.close()


@pytest.mark.parametrize("runs", [1, 3])
async def test_a_job_that_refuses_after_a_write_leaves_nothing_and_takes_no_other_with_it(
    place: Place, durability: Any, runs: int
) -> None:
    refusal = BadArguments("no")

    def refuses_late(session: Session) -> None:
        keeps("half")(session)
        raise refusal

    store = open_store(place, durability)
    with moving(store, runs):
        jobs = (keeps("one"), refuses_late, keeps("two"))
        _, second, _ = await asyncio.gather(*map(store.submit, jobs), return_exceptions=True)
    assert second is refusal
    assert stored_names(place) == ["one", "two"]
    await store.close()


@pytest.mark.parametrize("breaks", [OverflowError, AssertionError, "constraint"])
async def test_a_job_that_breaks_takes_no_other_with_it(place: Place, durability: Any, breaks: Any) -> None:
    def break_half_way(session: Session) -> None:
        session.rows("insert into text values ('half', 'written')")
        if breaks == "constraint":
            session.rows("insert into text values ('half', 'again')")
        else:
            raise breaks

    store = open_store(place, durability)
    with moving(store, 3):
        async with asyncio.timeout(5):
            outcomes = await asyncio.gather(
                store.submit(keeps("one")),
                store.submit(break_half_way),
                store.submit(keeps("two")),
                return_exceptions=True,
            )
            assert [isinstance(outcome, Exception) for outcome in outcomes] == [False, True, False]
            await store.submit(keeps("three"))
    assert stored_names(place) == ["one", "two", "three"]
    await store.close()


async def test_a_job_that_breaks_alone_leaves_nothing_half_written(place: Place, durability: Any) -> None:
    def break_half_way(session: Session) -> None:
        session.rows("insert into text values ('half', 'written')")
        raise OverflowError

    store = open_store(place, durability)
    with pytest.raises(OverflowError):
        await store.submit(break_half_way)
    await store.submit(keeps("one"))
    assert stored_names(place) == ["one"]
    await store.close()


@both_stores
async def test_one_who_gives_up_waiting_does_not_undo_what_was_asked(place: Place) -> None:
    store = open_store(place, "full")
    with moving(store, 2):
        asked = asyncio.create_task(store.submit(keeps("one")))
        await asyncio.sleep(0)
        asked.cancel()
        await store.submit(keeps("two"))
    assert stored_names(place) == ["one", "two"]
    await store.close()


async def test_closing_commits_what_was_asked_before(place: Place, durability: Any) -> None:
    store = open_store(place, durability)
    with moving(store, 2):
        asked = [asyncio.create_task(store.submit(keeps(str(n)))) for n in range(5)]
        await asyncio.sleep(0)
        await store.close()
    await asyncio.gather(*asked)
    assert stored_names(place) == [str(n) for n in range(5)]


@contextmanager
def lock_store(place: Place) -> Iterator[ExitStack]:
    """Write as somebody else, until what is returned is closed, or as long as the block lasts."""
    with ExitStack() as other:
        session = other.enter_context(place.store().write_session())
        if postgres.is_chosen():
            session.rows("set local idle_in_transaction_session_timeout = 0")  # else the database ends it after 5 s
        yield other


async def longest_stall(until: asyncio.Future[Any] | asyncio.Task[Any]) -> float:
    """The longest time for which the loop did not come round while the task ran, in seconds."""
    worst, before = 0.0, time.monotonic()
    while not until.done():
        await asyncio.sleep(0.005)
        now = time.monotonic()
        worst, before = max(worst, now - before), now
    return worst


async def test_a_lock_of_another_delays_the_commit_and_not_the_loop(place: Place, durability: Any) -> None:
    store = open_store(place, durability)
    with lock_store(place) as other:
        asked = asyncio.create_task(store.submit(keeps("one")))
        released = asyncio.get_running_loop().call_later(0.3, other.close)
        async with asyncio.timeout(5):
            stall = await longest_stall(asked)
        assert released.when() <= asyncio.get_running_loop().time()
    assert stall < 0.2
    assert stored_names(place) == ["one"]
    await store.close()


@pytest.mark.slow
async def test_a_lock_held_for_long_ends_in_store_busy_after_five_seconds(place: Place) -> None:
    store = open_store(place, "full")
    with lock_store(place):
        began = time.monotonic()
        asked = asyncio.create_task(store.submit(keeps("one")))
        stall = await longest_stall(asked)
        with pytest.raises(StoreBusy):
            await asked
        assert 4.5 < time.monotonic() - began < 7
    assert stall < 0.2
    await store.submit(keeps("two"))
    assert stored_names(place) == ["two"]
    await store.close()


@pytest.mark.state_file("a database keeps its own log")
async def test_the_log_is_written_back_as_it_grows(place: Place) -> None:
    store = open_store(place)
    for n in range(40):
        await store.submit(lambda session, n=n: session.rows("insert into text values (?, ?)", (str(n), "x" * 200_000)))
    async with asyncio.timeout(5):
        while place.db.stat().st_size < 1_000_000:  # noqa: ASYNC110 - another's file or count has no event
            await asyncio.sleep(0.01)
    await store.close()
    assert not place.db.with_name("kairos.db-wal").exists()
    assert len(stored_names(place)) == 40
