"""Threads in which functions may block, while the event loop does all bookkeeping.

Each thread has its own queue, and the one that became idle last gets the next call, since its caches are warm. With
that, and with asyncio's futures alone, a call costs half of what it costs in a standard thread pool. Where the event
loop waits for calls that are soon over it need not be woken, and several then cost one change of threads.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterable
from queue import SimpleQueue
from typing import Any, TypeVar, TypeVarTuple

A = TypeVarTuple("A")
T = TypeVar("T")

IN_PLACE_S = 0.001  # so long the event loop waits for one call; most of tools that read take a twentieth of it
MAX_TOGETHER = 16  # calls that it waits for at a time


class _ThreadJob:
    """A call to make in a thread, and the future of its result."""

    __slots__ = ("arguments", "done", "error", "function", "timeout_s", "timer", "value")

    def __init__(
        self, done: asyncio.Future[Any], timeout_s: float, function: Callable[..., Any], arguments: tuple[Any, ...]
    ) -> None:
        self.done, self.timeout_s, self.function, self.arguments = done, timeout_s, function, arguments
        self.timer: asyncio.TimerHandle | None = None
        self.value: Any = None
        self.error: BaseException | None = None

    def run(self) -> None:
        """Make the call, in a worker thread."""
        try:
            self.value = self.function(*self.arguments)
        except BaseException as raised:  # every failure has to reach the waiting caller
            self.error = raised

    def report(self) -> None:
        """Hand the result to the caller, in the event loop."""
        if self.timer is not None:
            self.timer.cancel()
        if self.done.done():
            return
        if self.error is None:
            self.done.set_result(self.value)
        else:
            self.done.set_exception(self.error)


class _Batch:
    """Calls that a thread makes one after the other. `waiting`: those not begun, `ended` those that are over.

    `is_left`: the event loop does not wait, so that the thread makes the call under way, and reports to the loop.
    `is_over` is held until the thread has nothing more to do.
    """

    __slots__ = ("ended", "is_finished", "is_left", "is_over", "loop", "waiting")

    def __init__(self, jobs: Iterable[_ThreadJob], loop: asyncio.AbstractEventLoop, *, is_left: bool) -> None:
        self.waiting, self.loop, self.is_left = deque(jobs), loop, is_left
        self.ended: deque[_ThreadJob] = deque()
        self.is_finished = False
        self.is_over = threading.Lock()
        self.is_over.acquire()

    def take_next(self) -> _ThreadJob | None:
        """Take the next call that was not begun: the thread, and the event loop once it has left, may both ask."""
        try:
            return self.waiting.popleft()
        except IndexError:
            return None

    def report(self) -> None:
        """Hand over the results that are there."""
        while self.ended:
            self.ended.popleft().report()


_Queue = SimpleQueue[_Batch | None]


class WorkerThreads:
    """A bounded number of threads, started as they are needed. Used from one event loop.

    Each call returns a future with the function's result, or TimeoutError after `timeout_s` seconds, which include
    waiting for a thread. The thread itself can't be stopped: a function that should end early has to be told by other
    means.
    """

    def __init__(self, max_threads: int, name: str) -> None:
        self._max_threads = max_threads
        self._name = name
        self._queues: list[_Queue] = []
        self._idle: list[_Queue] = []  # the last one is the warmest
        self._backlog: deque[_ThreadJob] = deque()
        self._together: list[_ThreadJob] = []

    def call(self, timeout_s: float, function: Callable[[*A], T], *arguments: *A) -> asyncio.Future[T]:
        """Call a function in a thread."""
        job = self._make_job(timeout_s, function, arguments)
        self._begin(job)
        return job.done

    def call_in_place(self, timeout_s: float, function: Callable[[*A], T], *arguments: *A) -> asyncio.Future[T]:
        """Call a function that is soon over as a rule, and wait for it a moment, with the whole event loop."""
        job = self._make_job(timeout_s, function, arguments)
        self._run_in_place([job])
        return job.done

    def call_together(self, timeout_s: float, function: Callable[[*A], T], *arguments: *A) -> asyncio.Future[T]:
        """The same for functions of several callers: those of one turn of the event loop are called one after the other
        in one thread, and waited for together. If one takes longer, those behind it go to other threads."""
        job = self._make_job(timeout_s, function, arguments)
        if not self._together:
            job.done.get_loop().call_soon(self._run_together)
        self._together.append(job)
        return job.done

    def close(self) -> None:
        """Start nothing more. What is running ends by itself; its daemon thread does not keep the process alive."""
        for job in (*self._backlog, *self._together):
            job.done.cancel()
        self._backlog.clear()
        self._together.clear()
        for queue in self._queues:
            queue.put(None)

    def _make_job(self, timeout_s: float, function: Callable[..., Any], arguments: tuple[Any, ...]) -> _ThreadJob:
        return _ThreadJob(asyncio.get_running_loop().create_future(), timeout_s, function, arguments)

    def _run_together(self) -> None:
        jobs, self._together = self._together[:MAX_TOGETHER], self._together[MAX_TOGETHER:]
        if self._together:  # others have the event loop in between
            jobs[0].done.get_loop().call_soon(self._run_together)
        if jobs:
            self._run_in_place(jobs)

    def _run_in_place(self, jobs: list[_ThreadJob]) -> None:
        """Have an idle thread make these calls, and wait for it as long as each is soon over; without one, or where one
        takes longer, they go on alone."""
        if not self._idle:
            for job in jobs:
                self._begin(job)
            return
        queue, batch = self._idle.pop(), _Batch(jobs, jobs[0].done.get_loop(), is_left=False)
        queue.put(batch)
        ended = 0
        while not batch.is_over.acquire(timeout=IN_PLACE_S):
            if len(batch.ended) > ended:
                ended = len(batch.ended)
                continue
            batch.is_left = True  # from here on the thread reports to the event loop, if it was not over just now
            if batch.is_over.acquire(blocking=False):
                break
            self._leave(batch, jobs)
            return
        self._finish(queue, batch)

    def _leave(self, batch: _Batch, jobs: list[_ThreadJob]) -> None:
        """Leave the thread to the call that it makes; give those behind it to other threads."""
        batch.report()
        while (behind := batch.take_next()) is not None:
            self._begin(behind)
        for job in jobs:
            if job.timer is None and not job.done.done():
                _set_timer(job)

    def _begin(self, job: _ThreadJob) -> None:
        """Have a thread make this call as soon as there is one."""
        _set_timer(job)
        if self._idle:
            self._give(self._idle.pop(), job)
        elif len(self._queues) == self._max_threads:
            self._backlog.append(job)
        else:
            try:
                self._give(self._start_thread(), job)
            except (RuntimeError, MemoryError) as error:  # there is no room for another thread just now
                if self._queues:
                    self._backlog.append(job)
                else:
                    job.done.set_exception(error)

    def _give(self, queue: _Queue, job: _ThreadJob) -> None:
        queue.put(_Batch([job], job.done.get_loop(), is_left=True))

    def _start_thread(self) -> _Queue:
        queue: _Queue = SimpleQueue()
        name = f"{self._name}-{len(self._queues) + 1}"
        threading.Thread(target=self._run_batches, args=(queue,), name=name, daemon=True).start()
        self._queues.append(queue)
        return queue

    def _run_batches(self, queue: _Queue) -> None:
        """Run one batch after another, in a worker thread, until it has to end."""
        while (batch := queue.get()) is not None:
            while (job := batch.take_next()) is not None:
                job.run()
                batch.ended.append(job)
                if batch.is_left:
                    break
            batch.is_over.release()
            if batch.is_left:
                try:
                    batch.loop.call_soon_threadsafe(self._finish, queue, batch)
                except RuntimeError:
                    return  # the loop is closed: nobody waits any more
            del batch, job  # an idle thread keeps nothing alive

    def _finish(self, queue: _Queue, batch: _Batch) -> None:
        """Hand over what a batch gave, and give its thread what waits for one; once: the thread and the loop that waits
        for it may both have found the end."""
        if batch.is_finished:
            return
        batch.is_finished = True
        batch.report()
        while self._backlog:
            waiting = self._backlog.popleft()
            if not waiting.done.done():  # else its time is over, or nobody wants it any more
                self._give(queue, waiting)
                return
        self._idle.append(queue)


def _set_timer(job: _ThreadJob) -> None:
    job.timer = job.done.get_loop().call_later(job.timeout_s, _set_timeout, job.done)


def _set_timeout(done: asyncio.Future[Any]) -> None:
    if not done.done():
        done.set_exception(TimeoutError())
