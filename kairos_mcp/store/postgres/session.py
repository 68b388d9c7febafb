"""Sessions of PostgreSQL, which run the store's statements; those that are asked for together take one trip."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import NamedTuple, TypeVar

import psycopg
from psycopg.pq import TransactionStatus

from kairos_mcp.store.postgres.connection import Connection, translate_errors
from kairos_mcp.store.postgres.statements import number_places, order_bindings
from kairos_mcp.store.rows import Bindings, LastWrites, Row, Session

T = TypeVar("T")

_WRITES = ("INSERT", "UPDATE", "DELETE")  # how the status of a statement that writes begins
_BEGIN_STATE = "begin isolation level repeatable read read only"
_END_STATE = "rollback"


class _Query(NamedTuple):
    """A statement with numbered places, and its bindings in their order."""

    statement: str
    bindings: list[object]


class PostgresSession:
    """A connection to the database. Its errors pass as they are: the writer has to tell a failing store from a job that
    refuses."""

    last_writes: LastWrites | None = None

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._changed_rows = 0

    def rows(self, statement: str, bindings: Bindings = ()) -> list[Row]:
        cursor = self._execute(statement, bindings)
        return cursor.fetchall() if cursor.description is not None else []

    def row(self, statement: str, bindings: Bindings = ()) -> Row | None:
        cursor = self._execute(statement, bindings)
        return cursor.fetchone()

    def stream(self, statement: str, bindings: Bindings = ()) -> Iterator[Row]:
        numbered, names = number_places(statement)
        with self.connection.transaction(), psycopg.RawServerCursor(self.connection, "stream") as cursor:
            yield from cursor.execute(numbered, order_bindings(names, bindings))

    def finds(self, statement: str, bindings: Bindings = ()) -> bool:
        return self.row(statement, bindings) is not None

    def insert(self, statement: str, bindings: Bindings = ()) -> int:
        found = self.row(f"{statement} returning id", bindings)
        assert found is not None
        return int(found[0])

    def change(self, statement: str, bindings: Bindings = ()) -> int:
        return self._execute(statement, bindings).rowcount

    def changed_rows(self) -> int:
        return self._changed_rows

    def read_version(self) -> int:
        found = self.row("select coalesce(sum(number), 0) from commits")
        assert found is not None
        return int(found[0])

    def require_alone(self) -> None:
        return

    @contextmanager
    def one_state(self) -> Iterator[None]:
        self.connection.execute(_BEGIN_STATE)
        try:
            yield
        finally:
            with suppress(psycopg.Error):  # a broken connection holds no transaction either
                self.connection.execute(_END_STATE)

    def together(self, reads: Sequence[Callable[[Session], T]]) -> list[T]:
        ahead = _SessionAhead(self.connection)
        while True:
            try:
                return ahead.together(reads)
            except _NotFetched:
                ahead.keep(self._fetch(ahead.pending_queries))

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open."""
        return self.connection.info.transaction_status != TransactionStatus.IDLE

    def _execute(self, statement: str, bindings: Bindings) -> psycopg.Cursor[Row]:
        done = self.connection.execute(*_query(statement, bindings))
        self._count_changes(done)
        return done

    def _fetch(self, queries: Collection[_Query]) -> list[list[Row]]:
        """Send these queries at once, and return the rows of each: one trip."""
        with self._pipeline():
            sent = [self.connection.execute(*query) for query in queries]
        return [cursor.fetchall() for cursor in sent]

    def _pipeline(self) -> AbstractContextManager[object]:
        """What is executed within is sent at once."""
        return self.connection.pipeline()

    def _count_changes(self, done: psycopg.Cursor[Row]) -> None:
        if (done.statusmessage or "").startswith(_WRITES):
            self._changed_rows += done.rowcount


class ReadingSession(PostgresSession):
    """A connection that only reads: errors are translated where they happen.

    What is read of one state takes no trips for its transaction: its begin goes with the first statement, and nobody
    waits for its end. `is_whole`: False once what was sent at once has failed; then the driver takes statements for
    prepared that are not.
    """

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self.is_whole = True
        self._has_to_begin = self._has_to_end = False

    def stream(self, statement: str, bindings: Bindings = ()) -> Iterator[Row]:
        with translate_errors():
            if self._has_to_begin or self._has_to_end:
                self._fetch(())
            yield from super().stream(statement, bindings)

    @contextmanager
    def one_state(self) -> Iterator[None]:
        self._has_to_begin = True
        try:
            yield
        finally:
            if not self._has_to_begin:
                with suppress(psycopg.Error):  # a broken connection holds no transaction either
                    self.connection.pgconn.send_query(_END_STATE.encode())
                    self._has_to_end = True
            self._has_to_begin = False

    def _execute(self, statement: str, bindings: Bindings) -> psycopg.Cursor[Row]:
        if self._has_to_begin:
            with self._pipeline():
                return super()._execute(statement, bindings)
        with translate_errors():
            self._await_end()
            return super()._execute(statement, bindings)

    @contextmanager
    def _pipeline(self) -> Iterator[None]:
        """What is executed within is sent at once, after the begin of its state."""
        with translate_errors():
            self._await_end()
            try:
                with self.connection.pipeline():
                    if self._has_to_begin:
                        self._has_to_begin = False
                        self.connection.execute(_BEGIN_STATE, prepare=False)
                    yield
            except psycopg.Error:
                self.is_whole = False
                raise

    def _await_end(self) -> None:
        while self._has_to_end:
            self._has_to_end = self.connection.pgconn.get_result() is not None


class _NotFetched(BaseException):
    """A read that is made together with others needs rows that are not there yet. (No error: nothing may catch it.)"""


class _SessionAhead(PostgresSession):
    """What reads that are made together are called with: it has the rows that were fetched, and notes what is wanted.

    Each read is called until it needs rows that are not there; what all of them want is fetched at once, and they are
    called again.
    """

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self._fetched: dict[str, list[Row]] = {}
        self._wanted: dict[str, _Query] = {}

    @property
    def pending_queries(self) -> Collection[_Query]:
        """The queries whose rows are to be fetched."""
        return self._wanted.values()

    def keep(self, fetched: Sequence[list[Row]]) -> None:
        """Take the rows of what was wanted."""
        self._fetched.update(zip(self._wanted, fetched, strict=True))
        self._wanted.clear()

    def rows(self, statement: str, bindings: Bindings = ()) -> list[Row]:
        query = _query(statement, bindings)
        key = repr(query)
        if key not in self._fetched:
            self._wanted[key] = query
            raise _NotFetched
        return self._fetched[key].copy()

    def row(self, statement: str, bindings: Bindings = ()) -> Row | None:
        found = self.rows(statement, bindings)
        return found[0] if found else None

    def together(self, reads: Sequence[Callable[[Session], T]]) -> list[T]:
        values: list[T] = []
        for read in reads:
            with suppress(_NotFetched):
                values.append(read(self))
        if self._wanted:
            raise _NotFetched
        return values


def _query(statement: str, bindings: Bindings) -> _Query:
    numbered, names = number_places(statement)
    return _Query(numbered, order_bindings(names, bindings))
