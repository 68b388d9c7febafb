"""The one connection of a process that writes to the database.

A transaction holds the lock of all writers from its first statement on, as SQLite's does, so that a job finds nothing
changed between what it reads and what it writes. A commit whose reply was lost is not made again: the database is asked
what came of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import psycopg

from kairos_mcp.core.errors import KairosError, StoreUnavailable
from kairos_mcp.store.group_writer import GroupWriter, Job, QueuedJob
from kairos_mcp.store.postgres.locks import CHANNEL, WRITERS_LOCK
from kairos_mcp.store.postgres.session import Connection, PostgresSession, as_store_error

T = TypeVar("T")

_BEGIN = "begin"
_LOCK = "select pg_current_xact_id()::text, pg_advisory_xact_lock($1)"
_COUNT = "update commits set number = number + 1"
_TELL = f"select pg_notify('{CHANNEL}', current_schema())"
_STATUS = "select pg_xact_status($1::text::xid8)"
STATUS_S = 15.0  # longer than the bounds of a session allow a transaction without a client to last
STATUS_STEP_S = 0.05


class _TransactionLost(psycopg.OperationalError):
    """The connection was lost, and the transaction was undone with it: nothing was written."""


class PostgresWriter(GroupWriter):
    """Commits jobs in groups, in a thread: the event loop waits for no network."""

    def __init__(self, connect_writer: Callable[[], Connection]) -> None:
        super().__init__()
        self._connect = connect_writer
        self._session: PostgresSession | None = None

    @property
    def backend(self) -> int | None:
        """The process in the database that makes this writer's commits."""
        session = self._session
        return None if session is None else session.connection.info.backend_pid

    def commit_at_once(self, _job: Job[T]) -> tuple[T] | None:
        """Return None, and do nothing: a commit waits for the network."""
        return None

    def _transact(self, group: list[QueuedJob]) -> None:
        """As in GroupWriter; once more on a new connection where the transaction was undone with the old one."""
        try:
            self._transact_once(group)
        except _TransactionLost:
            self._transact_once(group)

    def _transact_once(self, group: list[QueuedJob]) -> None:
        session = self._open_session()
        try:
            transaction = begin(session)
            for queued in group:
                queued.run(session)
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
            self._session = PostgresSession(self._connect())
        return self._session

    def _is_lost(self) -> bool:
        """Whether the connection is lost; it is forgotten then."""
        if self._session is not None and not self._session.connection.closed:
            return False
        self._drop_session()
        return True

    def _translate(self, error: BaseException) -> BaseException:
        return as_store_error(error)

    def _disconnect(self) -> None:
        self._drop_session()

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
    """Commit the transaction, in one trip, and let others know. Raises the database's errors, also where a statement of
    it had failed: the database then undoes it, and calls that no error."""
    with session.connection.pipeline():
        session.connection.execute(_COUNT)
        session.connection.execute(_TELL)
        ended = session.connection.execute("commit", prepare=False)
    if ended.statusmessage != "COMMIT":
        raise psycopg.errors.InFailedSqlTransaction("the transaction was undone")


def undo(session: PostgresSession) -> None:
    """Undo the transaction; a lost connection has undone it already."""
    with suppress(psycopg.Error):
        session.connection.execute("rollback", prepare=False)
