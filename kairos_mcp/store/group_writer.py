"""Jobs that write, queued and committed in groups; how a group is committed is the driver's.

A job is a function of a session, run inside a transaction. It refuses (KairosError, NotForCallers) before its first
write, so that jobs of many runs share a transaction without savepoints. The event loop never waits for a lock.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from kairos_mcp.core.errors import KairosError, NotForCallers
from kairos_mcp.store.session import Session

T = TypeVar("T")
Job = Callable[[Session], T]

GATHER_S = 0.001  # after a commit, wait so long for the next jobs of those it served; a sync takes longer anyway


@dataclass(slots=True, eq=False)
class QueuedJob:
    """A job and its result. `of_run`: the number of the run whose rows alone it writes; None: any rows. `done`: set
    while somebody awaits it; a commit in the event loop needs none. `awaits_results`: it was told the result of a
    statement beforehand, and told wrong."""

    job: Job[Any]
    of_run: int | None = None
    done: asyncio.Future[Any] | None = None
    value: Any = None
    error: BaseException | None = None
    awaits_results: bool = False

    def run(self, session: Session) -> None:
        """Run the job within a transaction; what it refuses is its own result, and ends nothing."""
        self.error, before = None, session.changed_rows()
        try:
            self.value = self.job(session)
        except (KairosError, NotForCallers) as refusal:
            if session.changed_rows() != before:
                raise  # a job that refuses after a write ends its transaction: no half of it is committed
            self.error = refusal

    def report(self) -> None:
        """Hand the result to whoever awaits it."""
        if self.done is None or self.done.cancelled():
            return
        if self.error is not None:
            self.done.set_exception(self.error)
        else:
            self.done.set_result(self.value)


class GroupWriter(ABC):
    """The one connection of a process that writes. `commits`: how many there were."""

    def __init__(self) -> None:
        self.commits = 0
        self._queue: list[QueuedJob] = []
        self._active_runs = 0
        self._is_flush_scheduled = False
        self._is_committing = False  # in the thread

    @contextmanager
    def active_run(self) -> Iterator[None]:
        """Count a run as active within; commits are grouped while two or more are."""
        self._active_runs += 1
        try:
            yield
        finally:
            self._active_runs -= 1

    @property
    def has_one_run(self) -> bool:
        """Whether no more than one run is active."""
        return self._active_runs <= 1

    @abstractmethod
    def commit_at_once(self, job: Job[T]) -> tuple[T] | None:
        """Run the job in a transaction of its own, and return its result. None, and nothing is done, where that would
        make the event loop wait: then it is to be submitted.

        Raises what the job raises, or the store's errors.
        """

    async def submit(self, job: Job[T], of_run: int | None = None) -> T:
        """Run the job in a transaction and return its result once it is durable. `of_run`: as in QueuedJob.

        Raises what the job raises, or the store's errors. A job may be run again where its transaction was undone.
        """
        if (done := self.commit_at_once(job)) is not None:
            return done[0]
        queued = QueuedJob(job, of_run)
        queued.done = asyncio.get_running_loop().create_future()
        self._queue.append(queued)
        self._schedule_flush()
        value: T = await queued.done
        return value

    async def close(self) -> None:
        """Commit what is queued, and close the connection."""
        while self._queue or self._is_committing or self._is_flush_scheduled:
            await asyncio.sleep(0)
            if self._is_committing:
                await asyncio.sleep(0.001)
        if "_commit_thread" in self.__dict__:
            self._commit_thread.shutdown(wait=True)
        self._disconnect()

    @abstractmethod
    def _transact(self, group: list[QueuedJob]) -> None:
        """Run the jobs in one transaction and commit it. Raises what undid it."""

    @abstractmethod
    def _translate(self, error: BaseException) -> BaseException:
        """Return the store's error for one of the driver's; any other error is returned unchanged."""

    @abstractmethod
    def _disconnect(self) -> None:
        """Close the connection."""

    def _count_commit(self) -> None:
        self.commits += 1

    def _schedule_flush(self, within_s: float = 0) -> None:
        if not self._is_flush_scheduled and not self._is_committing:
            self._is_flush_scheduled = True
            loop = asyncio.get_running_loop()
            if within_s:
                loop.call_later(within_s, self._flush)
            else:
                loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flush_scheduled = False
        if not self._queue or self._is_committing:
            return
        group, self._queue = self._queue, []
        self._commit_queued(group)

    def _commit_queued(self, group: list[QueuedJob]) -> None:
        """Commit a group in the thread, and tell everybody who waits for it."""
        self._is_committing = True
        loop = asyncio.get_running_loop()

        def finish_commit() -> None:
            self._is_committing = False
            self._count_commit()
            for queued in group:
                queued.report()
            if self._queue:
                self._schedule_flush(GATHER_S)

        def work() -> None:
            try:
                self._commit(group)
            except BaseException as error:  # whatever it was, everyone who waits has to be told
                for queued in group:
                    queued.error = queued.error or self._translate(error)
            loop.call_soon_threadsafe(finish_commit)

        self._commit_thread.submit(work)

    def _commit(self, group: list[QueuedJob]) -> None:
        """Run all jobs in one transaction; where that fails, each in its own."""
        try:
            self._transact(group)
        except Exception as error:  # also a bug in one job: the others are not affected, and nobody waits for ever
            self._commit_each(group, error)

    def _commit_each(self, group: list[QueuedJob], error: Exception) -> None:
        """Run each job in a transaction of its own, since that of all was undone by this error."""
        if len(group) == 1:
            group[0].error = self._translate(error)
            return
        for queued in group:
            queued.error = None
            try:
                self._transact([queued])
            except Exception as alone:
                queued.error = self._translate(alone)

    @cached_property
    def _commit_thread(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(1, "kairos-writer")
