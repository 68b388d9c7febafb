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
    """A call to run in a thread, the future of its result, and the timer of its timeout.

    `ended` is held until the function has ended, where the caller waits for that in place; None once it does not.
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    loop: asyncio.AbstractEventLoop
    done: asyncio.Future[Any]
    timer: asyncio.TimerHandle | None = None
    ended: threading.Lock | None = None
    value: Any = None
    error: BaseException | None = None
    is_finished: bool = False


class WorkerThreads:
    """At most so many threads, started as they are needed. Used from one event loop."""

    def __init__(self, max_threads: int, name: str) -> None:
        self._max_threads = max_threads
        self._name = name
        self._queues: list[SimpleQueue[_ThreadJob | None]] = []
        self._idle: list[SimpleQueue[_ThreadJob | None]] = []  # the last one is the warmest
        self._backlog: deque[_ThreadJob] = deque()

    def call(
        self, timeout_s: float, function: Callable[[*A], T], *arguments: *A, in_place_s: float = 0
    ) -> asyncio.Future[T]:
        """Run a function in a thread. The future has its result, or TimeoutError after `timeout_s` seconds, which
        include waiting for a thread.

        `in_place_s`: wait so long for the result before returning. A short call then costs a third, since the event
        loop need not be woken. The thread itself can't be stopped: a function that should end early has to be told by
        other means.
        """
        loop = asyncio.get_running_loop()
        job = _ThreadJob(function, arguments, loop, loop.create_future())
        if in_place_s and self._idle:
            queue = self._idle.pop()
            if self._ends_in_place(queue, job, in_place_s):
                self._finish_job(queue, job)
                return job.done
        elif self._idle:
            self._idle.pop().put(job)
        elif len(self._queues) < self._max_threads:
            self._start_thread().put(job)
        else:
            self._backlog.append(job)
        job.timer = loop.call_later(timeout_s, _set_timeout, job.done)
        return job.done

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

    def _ends_in_place(self, queue: SimpleQueue[_ThreadJob | None], job: _ThreadJob, within_s: float) -> bool:
        """Give the thread of this queue the job and wait for it; return whether it ended within the time."""
        ended = job.ended = threading.Lock()
        ended.acquire()
        queue.put(job)
        if ended.acquire(timeout=within_s):
            return True
        job.ended = None  # from here on the thread reports to the event loop, if it has not ended just now
        return ended.acquire(blocking=False)

    def _run_jobs(self, queue: SimpleQueue[_ThreadJob | None]) -> None:
        """Run one job after another, in a worker thread, until it is told to end."""
        while (job := queue.get()) is not None:
            try:
                job.value = job.function(*job.arguments)
            except BaseException as raised:  # every failure has to reach the waiting caller
                job.error = raised
            ended = job.ended
            if ended is not None:
                ended.release()
            if job.ended is None:
                try:
                    job.loop.call_soon_threadsafe(self._finish_job, queue, job)
                except RuntimeError:
                    return  # the loop is closed: nobody waits any more
            del job, ended  # an idle thread keeps nothing alive

    def _finish_job(self, queue: SimpleQueue[_ThreadJob | None], job: _ThreadJob) -> None:
        """Hand over the result, once: the thread and the caller who waits in place may both have found the end."""
        if job.is_finished:
            return
        job.is_finished = True
        if job.timer is not None:
            job.timer.cancel()
        if not job.done.done():
            if job.error is None:
                job.done.set_result(job.value)
            else:
                job.done.set_exception(job.error)
        while self._backlog:
            waiting = self._backlog.popleft()
            if not waiting.done.done():  # else its time is over, or nobody wants it any more
                queue.put(waiting)
                return
        self._idle.append(queue)


def _set_timeout(done: asyncio.Future[Any]) -> None:
    if not done.done():
        done.set_exception(TimeoutError())
