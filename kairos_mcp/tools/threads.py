"""Threads in which tools block. The event loop keeps the books: a thread runs what it is handed, and nothing else.

Each worker has a queue of its own, and the one that became idle last is handed the next call: it is still warm. That,
and no second kind of future in between, makes the way there and back half as dear as that of a thread pool.
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
    """A call on its way, who waits for it, and the alarm that rings when its time is over."""

    work: Callable[..., Any]
    arguments: tuple[Any, ...]
    loop: asyncio.AbstractEventLoop
    done: asyncio.Future[Any]
    alarm: asyncio.TimerHandle


class WorkerThreads:
    """At most so many threads, started as they are needed. Used from one event loop."""

    def __init__(self, max_threads: int, name: str) -> None:
        self._max_threads = max_threads
        self._name = name
        self._queues: list[SimpleQueue[_ThreadJob | None]] = []
        self._idle: list[SimpleQueue[_ThreadJob | None]] = []  # the last one is the warmest
        self._backlog: deque[_ThreadJob] = deque()

    def call(self, within_s: float, work: Callable[[*A], T], *arguments: *A) -> asyncio.Future[T]:
        """Have a thread do the work; what comes of it, or a TimeoutError after so many seconds, waiting included.

        The thread itself can't be stopped: whoever gives up on it tells it so by other means.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        job = _ThreadJob(work, arguments, loop, done, loop.call_later(within_s, _time_out, done))
        if self._idle:
            self._idle.pop().put(job)
        elif len(self._queues) < self._max_threads:
            self._start().put(job)
        else:
            self._backlog.append(job)
        return done

    def close(self) -> None:
        """Begin nothing more; what is being done ends by itself, and keeps no process alive."""
        for job in self._backlog:
            job.done.cancel()
        self._backlog.clear()
        for queue in self._queues:
            queue.put(None)

    def _start(self) -> SimpleQueue[_ThreadJob | None]:
        queue: SimpleQueue[_ThreadJob | None] = SimpleQueue()
        self._queues.append(queue)
        name = f"{self._name}-{len(self._queues)}"
        threading.Thread(target=self._serve, args=(queue,), name=name, daemon=True).start()
        return queue

    def _serve(self, queue: SimpleQueue[_ThreadJob | None]) -> None:
        """In a worker's thread: one job after the other, until there are no more."""
        while (job := queue.get()) is not None:
            value, error = None, None
            try:
                value = job.work(*job.arguments)
            except BaseException as raised:  # whatever it was, who waits must hear of it
                error = raised
            try:
                job.loop.call_soon_threadsafe(self._finish_job, queue, job, value, error)
            except RuntimeError:
                return  # the loop is closed: nobody waits any more
            del job, value, error  # an idle thread keeps nothing alive

    def _finish_job(
        self, queue: SimpleQueue[_ThreadJob | None], job: _ThreadJob, value: object, error: BaseException | None
    ) -> None:
        job.alarm.cancel()
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


def _time_out(done: asyncio.Future[Any]) -> None:
    if not done.done():
        done.set_exception(TimeoutError())
