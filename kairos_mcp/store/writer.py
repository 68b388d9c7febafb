"""The one connection that writes. Jobs that arrive together share one commit; the event loop never waits for a lock.

A job is a function of the connection, run inside a transaction. It refuses (KairosError, NotForCallers) before its
first write, so that jobs of many runs share a transaction without savepoints. Where a commit runs was measured: with
one active run, in the event loop is quickest; many runs at full durability share one sync in a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import apsw

from kairos_mcp.core.errors import KairosError, NotForCallers
from kairos_mcp.settings.settings import Durability
from kairos_mcp.store.connection import SqliteSession, as_store_error, connect, make_busy_handler
from kairos_mcp.store.session import Session

T = TypeVar("T")
Job = Callable[[Session], T]

CHECKPOINT_PAGES = 1_000  # a passive checkpoint each time the log has grown by this much
GATHER_S = 0.001  # after a commit, wait so long for the next jobs of those it served; a sync takes longer anyway
RESTART_PAGES = 10_000  # from here on a checkpoint waits for readers, so that the log starts again from its beginning


@dataclass(slots=True)
class QueuedJob:
    """A job and its result. `done`: set while somebody awaits it; a commit in the event loop needs none."""

    job: Job[Any]
    done: asyncio.Future[Any] | None = None
    value: Any = None
    error: BaseException | None = None

    def report(self) -> None:
        if self.done is None or self.done.cancelled():
            return
        if self.error is not None:
            self.done.set_exception(self.error)
        else:
            self.done.set_result(self.value)


class Writer:
    """Commits jobs: in the event loop while one run is active, in groups while several are."""

    def __init__(self, path: Path, durability: Durability, connection: SqliteSession) -> None:
        self.commits = 0
        self._path = path
        self._durability: Durability = durability
        self._connection = connection
        self._may_wait = True  # for the lock: in the event loop it may not
        connection.set_busy_handler(make_busy_handler(lambda: self._may_wait))
        self._queue: list[QueuedJob] = []
        self._active_runs = 0
        self._is_flush_scheduled = False
        self._is_committing = False
        self._commit_thread: ThreadPoolExecutor | None = None
        self._log_pages = self._checkpointed_pages = 0
        self._checkpoint_thread: ThreadPoolExecutor | None = None
        self._is_checkpointing = False
        connection.set_wal_hook(self._on_wal_written)

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

    def commit_at_once(self, job: Job[T]) -> tuple[T] | None:
        """Run the job in a transaction of its own, and return its result. None, and nothing is done, while several
        runs are active or somebody else writes: then it is to be submitted.

        Raises what the job raises, or the store's errors.
        """
        queued = QueuedJob(job)
        if self._active_runs > 1 or self._is_committing or self._queue or not self._commit_here([queued]):
            return None
        if queued.error is not None:
            raise queued.error
        return (queued.value,)

    async def submit(self, job: Job[T]) -> T:
        """Run the job in a transaction and return its result once it is durable.

        Raises what the job raises, or the store's errors.
        """
        if (done := self.commit_at_once(job)) is not None:
            return done[0]
        queued = QueuedJob(job)
        queued.done = asyncio.get_running_loop().create_future()
        self._queue.append(queued)
        self._schedule_flush()
        value: T = await queued.done
        return value

    async def close(self) -> None:
        """Commit what is queued, let a running checkpoint end, and close the connection."""
        while self._queue or self._is_committing or self._is_flush_scheduled:
            await asyncio.sleep(0)
            if self._is_committing:
                await asyncio.sleep(0.001)
        for thread in (self._commit_thread, self._checkpoint_thread):
            if thread is not None:
                thread.shutdown(wait=True)
        self._connection.close()

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
        if self._durability == "process" and self._commit_here(group):
            for queued in group:
                queued.report()
        else:
            self._commit_in_thread(group)

    def _commit_here(self, group: list[QueuedJob]) -> bool:
        """Commit in the event loop without waiting; False where another process holds the lock."""
        self._may_wait = False
        try:
            _commit(self._connection, group)
        except apsw.BusyError:
            return False
        finally:
            self._may_wait = True
        self.commits += 1
        self._checkpoint_if_grown()
        return True

    def _commit_in_thread(self, group: list[QueuedJob]) -> None:
        if self._commit_thread is None:
            self._commit_thread = ThreadPoolExecutor(1, "kairos-writer")
        self._is_committing = True
        loop = asyncio.get_running_loop()

        def finish_commit() -> None:
            self._is_committing = False
            self.commits += 1
            self._checkpoint_if_grown()
            for queued in group:
                queued.report()
            if self._queue:
                self._schedule_flush(GATHER_S)

        def work() -> None:
            try:
                _commit(self._connection, group)
            except BaseException as error:  # whatever it was, everyone who waits has to be told
                for queued in group:
                    queued.error = queued.error or as_store_error(error)
            loop.call_soon_threadsafe(finish_commit)

        self._commit_thread.submit(work)

    def _on_wal_written(self, _connection: apsw.Connection, _database: str, pages: int) -> int:
        self._log_pages = pages
        return apsw.SQLITE_OK

    def _checkpoint_if_grown(self) -> None:
        if self._log_pages < self._checkpointed_pages:
            self._checkpointed_pages = 0  # the log has started again from its beginning
        if self._is_checkpointing or self._log_pages - self._checkpointed_pages < CHECKPOINT_PAGES:
            return
        if self._checkpoint_thread is None:
            self._checkpoint_thread = ThreadPoolExecutor(1, "kairos-checkpoint")
        self._is_checkpointing, self._checkpointed_pages = True, self._log_pages
        mode = apsw.SQLITE_CHECKPOINT_RESTART if self._log_pages > RESTART_PAGES else apsw.SQLITE_CHECKPOINT_PASSIVE
        self._checkpoint_thread.submit(self._checkpoint, mode)

    def _checkpoint(self, mode: int) -> None:
        try:
            connection = connect(self._path, self._durability)
            try:
                connection.wal_checkpoint(mode=mode)
            finally:
                connection.close()
        except (apsw.Error, KairosError):
            pass  # a failed checkpoint costs only space; the next one tries again
        finally:
            self._is_checkpointing = False


def _commit(connection: SqliteSession, group: list[QueuedJob]) -> None:
    """Run all jobs in one transaction; if that fails, each in its own. Raises BusyError only."""
    try:
        _transact(connection, group)
    except apsw.BusyError:
        raise
    except Exception as error:  # also a bug in one job: the others are not affected, and nobody waits for ever
        if len(group) == 1:
            group[0].error = as_store_error(error)
            return
        for queued in group:
            queued.error = None
            try:
                _transact(connection, [queued])
            except Exception as alone:
                queued.error = as_store_error(alone)


def _transact(connection: SqliteSession, group: list[QueuedJob]) -> None:
    connection.execute("begin immediate")
    try:
        for queued in group:
            try:
                queued.value = queued.job(connection)
            except (KairosError, NotForCallers) as refusal:
                queued.error = refusal
        connection.execute("commit")
    except BaseException:
        if connection.in_transaction:
            connection.execute("rollback")
        raise
