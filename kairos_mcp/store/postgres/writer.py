"""The one connection of a process that writes: jobs that arrive together share one transaction, in a thread.

A transaction holds the lock of all writers from its first statement on, as SQLite's does, so that a job finds nothing
changed between what it reads and what it writes. A commit whose reply was lost is not made again: the database is asked
what came of it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TypeVar

import psycopg

from kairos_mcp.core.errors import KairosError, NotForCallers, StoreUnavailable
from kairos_mcp.store.postgres.session import PostgresSession, as_store_error, connect
from kairos_mcp.store.writer import Job, QueuedJob

T = TypeVar("T")

WRITERS_LOCK = 0x6B616972  # of all transactions that write: "kair"
_BEGIN = "begin"
_LOCK = "select pg_current_xact_id()::text, pg_advisory_xact_lock($1)"
_STATUS = "select pg_xact_status($1::text::xid8)"
STATUS_S = 15.0  # longer than the bounds of a session allow a transaction without a client to last
STATUS_STEP_S = 0.05
GATHER_S = 0.001  # after a commit, wait so long for the next jobs of those it served


class _TransactionLost(psycopg.OperationalError):
    """The connection was lost, and the transaction was undone with it: nothing was written."""


class PostgresWriter:
    """Commits jobs in groups."""

    def __init__(self, where: str) -> None:
        self.commits = 0
        self._where = where
        self._session: PostgresSession | None = None
        self._queue: list[QueuedJob] = []
        self._active_runs = 0
        self._is_flush_scheduled = False
        self._is_committing = False
        self._thread = ThreadPoolExecutor(1, "kairos-writer")

    @contextmanager
    def active_run(self) -> Iterator[None]:
        """Count a run as active within."""
        self._active_runs += 1
        try:
            yield
        finally:
            self._active_runs -= 1

    @property
    def has_one_run(self) -> bool:
        """Whether no more than one run is active."""
        return self._active_runs <= 1

    def commit_at_once(self, _job: Job[T]) -> tuple[T] | None:
        """Return None, and do nothing: the event loop waits for no network."""
        return None

    async def submit(self, job: Job[T]) -> T:
        """Run the job in a transaction and return its result once it is durable.

        Raises what the job raises, or the store's errors. A job may be run again where its transaction was undone.
        """
        queued = QueuedJob(job, asyncio.get_running_loop().create_future())
        self._queue.append(queued)
        self._schedule_flush()
        assert queued.done is not None
        value: T = await queued.done
        return value

    async def close(self) -> None:
        """Commit what is queued, and close the connection."""
        while self._queue or self._is_committing or self._is_flush_scheduled:  # noqa: ASYNC110 - a thread commits
            await asyncio.sleep(0.001)
        self._thread.shutdown(wait=True)
        self._drop_session()

    def _schedule_flush(self, within_s: float = 0) -> None:
        if not self._is_flush_scheduled and not self._is_committing:
            self._is_flush_scheduled = True
            asyncio.get_running_loop().call_later(within_s, self._flush)

    def _flush(self) -> None:
        self._is_flush_scheduled = False
        if not self._queue or self._is_committing:
            return
        group, self._queue = self._queue, []
        self._is_committing = True
        loop = asyncio.get_running_loop()

        def finish_commit() -> None:
            self._is_committing = False
            self.commits += 1
            for queued in group:
                queued.report()
            if self._queue:
                self._schedule_flush(GATHER_S)

        def work() -> None:
            try:
                self._commit(group)
            except BaseException as error:  # whatever it was, everyone who waits has to be told
                for queued in group:
                    queued.error = queued.error or as_store_error(error)
            loop.call_soon_threadsafe(finish_commit)

        self._thread.submit(work)

    def _commit(self, group: list[QueuedJob]) -> None:
        """Run all jobs in one transaction; where that fails, each in its own."""
        try:
            self._transact_again(group)
        except Exception as error:  # also a bug in one job: the others are not affected, and nobody waits for ever
            if len(group) == 1:
                group[0].error = as_store_error(error)
                return
            for queued in group:
                queued.error = None
                try:
                    self._transact_again([queued])
                except Exception as alone:
                    queued.error = as_store_error(alone)

    def _transact_again(self, group: list[QueuedJob]) -> None:
        """Run the jobs in one transaction, and once more on a new connection where it was undone with the old one."""
        try:
            self._transact(group)
        except _TransactionLost:
            self._transact(group)

    def _transact(self, group: list[QueuedJob]) -> None:
        session = self._open_session()
        try:
            transaction = begin(session)
            for queued in group:
                queued.error = None
                try:
                    queued.value = queued.job(session)
                except (KairosError, NotForCallers) as refusal:
                    queued.error = refusal
        except BaseException as error:
            undo(session)
            if isinstance(error, psycopg.Error) and self._is_lost():
                raise _TransactionLost from error
            raise
        try:
            commit(session)
        except psycopg.Error:
            if not self._is_lost():
                undo(session)
                raise
            self._require_committed(transaction)

    def _require_committed(self, transaction: str) -> None:
        """Ask what came of a commit whose reply was lost. Raises _TransactionLost where it was undone, and
        StoreUnavailable where nobody can say."""
        deadline = time.monotonic() + STATUS_S
        while time.monotonic() < deadline:
            try:
                found = self._open_session().row(_STATUS, (transaction,))
            except psycopg.OperationalError:
                self._drop_session()
                found = None
            except KairosError:
                found = None
            match found:
                case ("committed",):
                    return
                case ("aborted",):
                    raise _TransactionLost
                case _:  # it may still be on its way, or the database is starting
                    time.sleep(STATUS_STEP_S)
        raise StoreUnavailable(
            "The database was lost during a commit, and does not say what came of it.",
            "Call again once it can be reached: what was written is found then.",
        )

    def _open_session(self) -> PostgresSession:
        if self._session is None:
            self._session = PostgresSession(connect(self._where))
        return self._session

    def _is_lost(self) -> bool:
        """Whether the connection is lost; it is forgotten then."""
        if self._session is not None and not self._session.connection.closed:
            return False
        self._drop_session()
        return True

    def _drop_session(self) -> None:
        if self._session is not None:
            with suppress(psycopg.Error):
                self._session.close()
            self._session = None


def begin(session: PostgresSession) -> str:
    """Begin a transaction that writes, in one trip, and return its number. Nobody else writes until it ends."""
    with session.connection.pipeline():
        session.connection.execute(_BEGIN, prepare=False)
        found = session.connection.execute(_LOCK, (WRITERS_LOCK,))
    row = found.fetchone()
    assert row is not None
    return str(row[0])


def commit(session: PostgresSession) -> None:
    """Commit the transaction. Raises the database's errors, also where a statement of it had failed: the database then
    undoes it, and calls that no error."""
    if session.connection.execute("commit", prepare=False).statusmessage != "COMMIT":
        raise psycopg.errors.InFailedSqlTransaction("the transaction was undone")


def undo(session: PostgresSession) -> None:
    """Undo the transaction; a lost connection has undone it already."""
    with suppress(psycopg.Error):
        session.connection.execute("rollback", prepare=False)
