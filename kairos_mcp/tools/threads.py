"""Worker threads, in which tools may block. The event loop does all bookkeeping; a thread only runs what it is given.

Each thread has its own queue, and the one that became idle last gets the next call, since its caches are warm. With
that, and with asyncio's futures alone, a call costs half of what it costs in a standard thread pool.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, TypeVar, TypeVarTuple

A = TypeVarTuple("A")
T = TypeVar("T")


@dataclass(slots=True)
class _ThreadJob:
    """A call to run in a thread, the future of its result, and the timer of its timeout."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    loop: asyncio.AbstractEventLoop
    done: asyncio.Future[Any]
    timer: asyncio.TimerHandle


class WorkerThreads:
    """At most so many threads, started as they are needed. Used from one event loop."""

    def __init__(self, max_threads: int, name: str) -> None:
        self._max_threads = max_threads
        self._name = name
        self._queues: list[SimpleQueue[_ThreadJob | None]] = []
        self._idle: list[SimpleQueue[_ThreadJob | None]] = []  # the last one is the warmest
        self._backlog: deque[_ThreadJob] = deque()

    def call(self, timeout_s: float, function: Callable[[*A], T], *arguments: *A) -> asyncio.Future[T]:
        """Run a function in a thread. The future has its result, or TimeoutError after `timeout_s` seconds, which
        include waiting for a thread.

        The thread itself can't be stopped: a function that should end early has to be told by other means.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        job = _ThreadJob(function, arguments, loop, done, loop.call_later(timeout_s, _set_timeout, done))
        if self._idle:
            self._idle.pop().put(job)
        elif len(self._queues) < self._max_threads:
            self._start_thread().put(job)
        else:
            self._backlog.append(job)
        return done

    def close(self) -> None:
        """Start nothing more. What is running ends by itself; its daemon thread does not keep the process alive."""
        for job in self._backlog:
            job.done.cancel()
        self._backlog.clear()
        for queue in self._queues:
            queue.put(None)

    def _start_thread(self) -> SimpleQueue[_ThreadJob | None]:
        queue: SimpleQueue[_ThreadJob | None] = SimpleQueue()
        self._queues.append(queue)
        name = f"{self._name}-{len(self._queues)}"
        threading.Thread(target=self._run_jobs, args=(queue,), name=name, daemon=True).start()
        return queue

    def _run_jobs(self, queue: SimpleQueue[_ThreadJob | None]) -> None:
        """Run one job after another, in a worker thread, until it is told to end."""
        while (job := queue.get()) is not None:
            value, error = None, None
            try:
                value = job.function(*job.arguments)
            except BaseException as raised:  # every failure has to reach the waiting caller
                error = raised
            try:
                job.loop.call_soon_threadsafe(self._finish_job, queue, job, value, error)
            except RuntimeError:
                return  # the loop is closed: nobody waits any more
            del job, value, error  # an idle thread keeps nothing alive

    def _finish_job(
        self, queue: SimpleQueue[_ThreadJob | None], job: _ThreadJob, value: object, error: BaseException | None
    ) -> None:
        job.timer.cancel()
        if not job.done.done():
            if error is None:
                job.done.set_result(value)
            else:
                job.done.set_exception(error)
        while self._backlog:
            waiting = self._backlog.popleft()
            if not waiting.done.done():  # else its time is over, or nobody wants it any more
                queue.put(waiting)
                return
        self._idle.append(queue)


def _set_timeout(done: asyncio.Future[Any]) -> None:
    if not done.done():
        done.set_exception(TimeoutError())
