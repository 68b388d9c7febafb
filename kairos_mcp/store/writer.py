"""The one connection that writes to the state file, and its checkpoints.

Where a commit runs was measured: with one active run, in the event loop is quickest; many runs at full durability share
one sync in a thread.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import apsw

from kairos_mcp.core.errors import KairosError
from kairos_mcp.settings.settings import Durability
from kairos_mcp.store.connection import SqliteSession, as_store_error, connect, make_busy_handler
from kairos_mcp.store.group_writer import GroupWriter, Job, QueuedJob

T = TypeVar("T")

CHECKPOINT_PAGES = 1_000  # a passive checkpoint each time the log has grown by this much
RESTART_PAGES = 10_000  # from here on a checkpoint waits for readers, so that the log starts again from its beginning


class Writer(GroupWriter):
    """Commits jobs: in the event loop while one run is active, in groups while several are."""

    def __init__(self, path: Path, durability: Durability, connection: SqliteSession) -> None:
        super().__init__()
        self._path = path
        self._durability: Durability = durability
        self._connection = connection
        self._may_wait = True  # for the lock: in the event loop it may not
        connection.set_busy_handler(make_busy_handler(lambda: self._may_wait))
        self._log_pages = self._checkpointed_pages = 0
        self._is_checkpointing = False
        connection.set_wal_hook(self._on_wal_written)

    def commit_at_once(self, job: Job[T]) -> tuple[T] | None:
        """As in GroupWriter: None while several runs are active or somebody else writes."""
        queued = QueuedJob(job)
        if self._active_runs > 1 or self._is_committing or self._queue or not self._commit_here([queued]):
            return None
        if queued.error is not None:
            raise queued.error
        return (queued.value,)

    def _commit_queued(self, group: list[QueuedJob]) -> None:
        if self._durability == "process" and self._commit_here(group):
            for queued in group:
                queued.report()
        else:
            super()._commit_queued(group)

    def _commit_here(self, group: list[QueuedJob]) -> bool:
        """Commit in the event loop without waiting; False where another process holds the lock."""
        self._may_wait = False
        try:
            self._commit(group)
        except apsw.BusyError:
            return False
        finally:
            self._may_wait = True
        self._count_commit()
        return True

    def _commit(self, group: list[QueuedJob]) -> None:
        """As in GroupWriter; also raises BusyError, where nothing was done."""
        try:
            self._transact(group)
        except apsw.BusyError:
            raise
        except Exception as error:
            self._commit_each(group, error)

    def _transact(self, group: list[QueuedJob]) -> None:
        self._connection.execute("begin immediate")
        try:
            for queued in group:
                queued.run(self._connection)
            self._connection.execute("commit")
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("rollback")
            raise

    def _translate(self, error: BaseException) -> BaseException:
        return as_store_error(error)

    def _disconnect(self) -> None:
        if "_checkpoint_thread" in self.__dict__:
            self._checkpoint_thread.shutdown(wait=True)  # a running checkpoint ends first
        if "_checkpointer" in self.__dict__:
            self._checkpointer.close()
        self._connection.close()

    def _count_commit(self) -> None:
        super()._count_commit()
        self._checkpoint_if_grown()

    def _on_wal_written(self, _connection: apsw.Connection, _database: str, pages: int) -> int:
        self._log_pages = pages
        return apsw.SQLITE_OK

    def _checkpoint_if_grown(self) -> None:
        if self._log_pages < self._checkpointed_pages:
            self._checkpointed_pages = 0  # the log has started again from its beginning
        if self._is_checkpointing or self._log_pages - self._checkpointed_pages < CHECKPOINT_PAGES:
            return
        self._is_checkpointing, self._checkpointed_pages = True, self._log_pages
        mode = apsw.SQLITE_CHECKPOINT_RESTART if self._log_pages > RESTART_PAGES else apsw.SQLITE_CHECKPOINT_PASSIVE
        self._checkpoint_thread.submit(self._checkpoint, mode)

    @cached_property
    def _checkpoint_thread(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(1, "kairos-checkpoint")

    @cached_property
    def _checkpointer(self) -> SqliteSession:
        """The connection of that thread, kept: to open one takes as long as many a checkpoint."""
        return connect(self._path, self._durability)

    def _checkpoint(self, mode: int) -> None:
        try:
            self._checkpointer.wal_checkpoint(mode=mode)
        except (apsw.Error, KairosError):
            pass  # a failed checkpoint costs only space; the next one tries again
        finally:
            self._is_checkpointing = False
