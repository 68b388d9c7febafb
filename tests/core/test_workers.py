"""Threads in which tools block: how many there are, who waits, whose time is over, and what ends with the loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from kairos_mcp.tools.threads import WorkerThreads

WITHIN_S = 10.0


@pytest.fixture
def workers(request: pytest.FixtureRequest) -> Iterator[WorkerThreads]:
    opened = WorkerThreads(2, request.node.name)
    yield opened
    opened.close()


async def block_threads(workers: WorkerThreads, gate: threading.Event) -> list[asyncio.Future[bool]]:
    """Keep every thread busy until the gate opens."""
    started = [threading.Event(), threading.Event()]

    def wait(begun: threading.Event) -> bool:
        begun.set()
        return gate.wait(WITHIN_S)

    waiting = [workers.call(WITHIN_S, wait, begun) for begun in started]
    for begun in started:
        assert await asyncio.to_thread(begun.wait, WITHIN_S)
    return waiting


async def test_what_is_done_in_a_thread_comes_back(workers: WorkerThreads) -> None:
    assert await workers.call(WITHIN_S, divmod, 7, 2) == (3, 1)
    assert await workers.call(WITHIN_S, threading.get_ident) != threading.get_ident()


async def test_what_is_raised_there_is_raised_here_and_the_thread_goes_on(workers: WorkerThreads) -> None:
    with pytest.raises(ZeroDivisionError):
        await workers.call(WITHIN_S, divmod, 1, 0)
    assert await workers.call(WITHIN_S, divmod, 7, 2) == (3, 1)


async def test_the_thread_that_became_idle_last_serves_next(workers: WorkerThreads) -> None:
    gate = threading.Event()
    busy = await block_threads(workers, gate)
    gate.set()
    await asyncio.gather(*busy)
    assert len({await workers.call(WITHIN_S, threading.get_ident) for _ in range(20)}) == 1


async def test_no_more_threads_than_were_allowed_and_the_others_wait(
    workers: WorkerThreads, request: pytest.FixtureRequest
) -> None:
    gate, begun = threading.Event(), []
    busy = await block_threads(workers, gate)
    waiting = [workers.call(WITHIN_S, begun.append, n) for n in range(5)]
    assert sum(thread.name.startswith(request.node.name) for thread in threading.enumerate()) == 2
    assert begun == []
    gate.set()
    assert await asyncio.gather(*busy) == [True, True]
    await asyncio.gather(*waiting)
    assert sorted(begun) == [0, 1, 2, 3, 4]


async def test_a_call_that_takes_too_long_is_given_up_and_its_thread_serves_again(workers: WorkerThreads) -> None:
    gate = threading.Event()
    with pytest.raises(TimeoutError):
        await workers.call(0.01, gate.wait, WITHIN_S)
    gate.set()
    assert await workers.call(WITHIN_S, divmod, 7, 2) == (3, 1)


async def test_a_call_whose_time_is_over_while_it_waits_is_never_begun(workers: WorkerThreads) -> None:
    gate, begun = threading.Event(), []
    busy = await block_threads(workers, gate)
    with pytest.raises(TimeoutError):
        await workers.call(0.01, begun.append, "late")
    unwanted = workers.call(WITHIN_S, begun.append, "unwanted")
    unwanted.cancel()
    gate.set()
    await asyncio.gather(*busy)
    await workers.call(WITHIN_S, begun.append, "after")
    assert begun == ["after"]


async def test_closing_gives_up_what_waits_and_lets_end_what_is_done(workers: WorkerThreads) -> None:
    gate, begun = threading.Event(), []
    busy = await block_threads(workers, gate)
    waiting = workers.call(WITHIN_S, begun.append, "waiting")
    workers.close()
    gate.set()
    assert await asyncio.gather(*busy) == [True, True]
    assert waiting.cancelled()
    assert begun == []


def test_a_call_that_outlives_its_loop_ends_its_thread_quietly() -> None:
    gate, begun, served = threading.Event(), threading.Event(), []

    def last() -> None:
        served.append(threading.current_thread())
        begun.set()
        gate.wait(WITHIN_S)

    async def begin() -> None:
        WorkerThreads(1, "test").call(WITHIN_S, last)
        assert begun.wait(WITHIN_S)

    asyncio.run(begin())
    gate.set()
    served[0].join(WITHIN_S)
    assert not served[0].is_alive()
