"""The one connection of a process that writes to the database.

Jobs of single runs are committed in groups beside those of other servers (group_session.py). Any other job holds the
lock of all writers alone, as in SQLite, so that it finds nothing changed between what it reads and what it writes; so
does a job of one run that turns out to concern others. A commit whose reply was lost is not made again: the database is
asked what came of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TypeVar

import psycopg

from kairos_mcp.core.errors import KairosError, StoreUnavailable
from kairos_mcp.store.database import GroupWriter, Job, QueuedJob
from kairos_mcp.store.postgres.connection import Connection, as_store_error, bound_transactions
from kairos_mcp.store.postgres.group_session import GroupSession, Undone
from kairos_mcp.store.postgres.locks import CHANNEL, WRITERS_LOCK
from kairos_mcp.store.postgres.session import PostgresSession
from kairos_mcp.store.rows import Row

T = TypeVar("T")

_BEGIN = "begin"
_LOCK = "select pg_current_xact_id()::text, pg_advisory_xact_lock($1)"
_COUNT = (
    "insert into commits values (pg_backend_pid() % 1024, 1) on conflict (session) do update"
    " set number = commits.number + 1"
)
_COMMITTED = "COMMIT"
_TELL = f"select pg_notify('{CHANNEL}', concat(current_schema(), $1::text))"
MOST_TOLD = 100  # runs of a group that are made known by their numbers
_STATUS = "select pg_xact_status($1::text::xid8)"
STATUS_S = 15.0  # longer than the bounds of a session allow a transaction without a client to last
STATUS_STEP_S = 0.05
TRIES_BESIDE = 2  # of a group; then all of it is done alone


class _TransactionLost(psycopg.OperationalError):
    """The connection was lost, and the transaction was undone with it: nothing was written."""


class _Transaction:
    """A transaction by its number. `is_ending`: its commit may have been sent."""

    number = ""
    is_ending = False
    _ended: psycopg.Cursor[Row] | None = None

    def send_commit(self, session: PostgresSession, runs: Collection[int] = ()) -> None:
        """Within a pipeline, send the commit and the word to others: of these runs, or (none) of any."""
        self.is_ending = True
        session.connection.execute(_COUNT)
        self._ended = session.connection.execute("commit", prepare=False)
        # A transaction of its own: the database makes one after the other known, so none may wait for a disk meanwhile.
        named = f" {','.join(map(str, runs))}" if 0 < len(runs) <= MOST_TOLD else ""
        session.connection.execute(_TELL, (named,))

    @property
    def is_committed(self) -> bool:
        """Whether the database has said so."""
        return self._ended is not None and self._ended.statusmessage == _COMMITTED

    def require_committed(self) -> None:
        """Raise the database's error where a statement had failed: it then undoes all, and calls that no error."""
        if not self.is_committed:
            raise psycopg.errors.InFailedSqlTransaction("the transaction was undone")


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

    def _commit(self, group: list[QueuedJob]) -> None:
        """As in GroupWriter: the jobs of single runs first, beside other servers; then all others, alone."""
        beside = [queued for queued in group if queued.of_run is not None]
        alone = [queued for queued in group if queued.of_run is None]
        for _ in range(TRIES_BESIDE):
            if not beside:
                break
            try:
                alone += self._transact_again(partial(self._transact_group, is_alone=False), beside)
                beside = []
            except Undone as undone:
                alone += undone.jobs
                beside = [queued for queued in beside if queued not in undone.jobs]
            except StoreUnavailable as error:  # nobody knows what came of it, so it is not made again
                self._commit_each(beside, error)
                beside = []
            except psycopg.errors.DivisionByZero:  # an account has no room for all: each asks whether it has for it
                _await_results(beside)
                break
            except Exception:  # whose job it was is found out by running each alone
                break
        if alone := [*alone, *beside]:
            super()._commit(alone)

    def _commit_each(self, group: list[QueuedJob], error: Exception) -> None:
        """As in GroupWriter; not where the database can't be reached, or does not say whether it committed them."""
        if not isinstance(error, StoreUnavailable):
            super()._commit_each(group, error)
            return
        for queued in group:
            queued.error = error

    def _transact(self, group: list[QueuedJob]) -> None:
        """Run a group exclusively. If an optimistic job was wrong, rerun the whole group, awaiting every result."""
        transact = partial(self._transact_group, is_alone=True)
        try:
            self._transact_again(transact, group)
        except Undone:
            _await_results(group)
            self._transact_again(transact, group)

    def _transact_again(self, transact: Callable[[list[QueuedJob]], T], group: list[QueuedJob]) -> T:
        """Transact; once more on a new connection where the transaction was undone with the old one."""
        try:
            return transact(group)
        except _TransactionLost:
            return transact(group)

    def _transact_group(self, group: list[QueuedJob], *, is_alone: bool) -> list[QueuedJob]:
        """Commit jobs, alone or beside other servers, and return those that have to be alone and have written nothing.

        Raises Undone where one of these had written, or where a result was not the one that its job was given.
        """
        session = GroupSession(self._open_session().connection, is_alone=is_alone)
        named = () if is_alone else {queued.of_run for queued in group if queued.of_run is not None}
        try:
            with self._transaction(session) as transaction, session.connection.pipeline() as pipeline:
                transaction.number = session.begin(group)
                left = session.run_jobs(group)
                session.require_told_right(pipeline, left)
                session.write_last()
                transaction.send_commit(session, named)
        except BaseException as error:
            if not isinstance(error, Undone) or not error.is_synced:
                self._disconnect()  # the driver takes statements after a failed one for prepared, which they are not
            raise
        return left

    @contextmanager
    def _transaction(self, session: PostgresSession) -> Iterator[_Transaction]:
        """Undo the transaction of an error within. Where the reply to the commit was lost, ask what came of it.

        Raises _TransactionLost where the connection was lost before the commit.
        """
        transaction = _Transaction()
        try:
            yield transaction
            transaction.require_committed()
        except BaseException as error:
            if transaction.is_committed:
                return  # what failed was the word to others
            if not isinstance(error, psycopg.Error) or not self._is_lost():
                undo(session)
                raise
            if not transaction.is_ending:
                raise _TransactionLost from error
            self._require_committed(transaction.number)

    def _require_committed(self, transaction: str) -> None:
        """Ask what came of a commit whose reply was lost. Raises _TransactionLost where it was undone, and
        StoreUnavailable where nobody can say."""
        deadline = time.monotonic() + STATUS_S
        while time.monotonic() < deadline:
            try:
                found = self._open_session().row(_STATUS, (transaction,))
            except psycopg.OperationalError:
                self._disconnect()
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
            bound_transactions(self._session.connection)
        return self._session

    def _is_lost(self) -> bool:
        """Whether the connection is lost; it is forgotten then."""
        if self._session is not None and not self._session.connection.closed:
            return False
        self._disconnect()
        return True

    def _translate(self, error: BaseException) -> BaseException:
        return as_store_error(error)

    def _disconnect(self) -> None:
        if self._session is not None:
            with suppress(psycopg.Error):
                self._session.close()
            self._session = None


def _await_results(group: list[QueuedJob]) -> None:
    for queued in group:
        queued.awaits_results = True


def begin(session: PostgresSession) -> str:
    """Begin a transaction that writes, in one trip, and return its number. Nobody else writes until it ends."""
    with session.connection.pipeline():
        session.connection.execute(_BEGIN, prepare=False)
        found = session.connection.execute(_LOCK, (WRITERS_LOCK,))
    row = found.fetchone()
    assert row is not None
    return str(row[0])


def commit(session: PostgresSession) -> None:
    """Commit the transaction, in one trip, and let others know. Raises the database's errors."""
    transaction = _Transaction()
    with session.connection.pipeline():
        transaction.send_commit(session)
    transaction.require_committed()


def undo(session: PostgresSession) -> None:
    """Undo the transaction; a lost connection has undone it already."""
    with suppress(psycopg.Error):
        session.connection.execute("rollback", prepare=False)
