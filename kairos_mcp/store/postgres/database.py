"""The store in a PostgreSQL database: sessions that read in threads, and the writer, each at its first use."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import psycopg

from kairos_mcp.core.errors import KairosError
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.store import integrity
from kairos_mcp.store.database import Store
from kairos_mcp.store.group_writer import Job
from kairos_mcp.store.ownership import ServedRuns
from kairos_mcp.store.postgres import schema
from kairos_mcp.store.postgres.session import PostgresSession, ReadingSession, connect, translate_errors
from kairos_mcp.store.postgres.writer import PostgresWriter, begin, commit, undo
from kairos_mcp.store.session import Session

T = TypeVar("T")

READERS = 4  # connections of one process that read at a time


class PostgresStore(Store):
    """The store in the database, and in the schema, that `where` names. The state folder keeps what is no row."""

    def __init__(self, home: Path, where: str, via: str, *, served_runs: ServedRuns | None = None) -> None:
        super().__init__(home, via, served_runs)
        self._where = where
        self._idle: list[ReadingSession] = []
        self._is_open = False

    def describe(self) -> JsonObject:
        """Return where the database is, and the version of the library that speaks with it; no password."""
        named = psycopg.conninfo.conninfo_to_dict(self._where)
        place = {key: str(named[key]) for key in ("host", "port", "dbname") if key in named}
        return {"store": psycopg.conninfo.make_conninfo(**place), "libpq": psycopg.pq.version(), "exists": True}

    @property
    def exists(self) -> bool:
        """A database is there before its first use."""
        return True

    @property
    def is_open(self) -> bool:
        """Whether its tables have been looked at."""
        return self._is_open

    def open(self) -> None:
        """Make the tables where there are none. Raises the store's errors."""
        if self._is_open:
            return
        self.home.mkdir(mode=0o700, parents=True, exist_ok=True)
        session = PostgresSession(connect(self._where))
        try:
            with translate_errors():
                schema.make_tables(session)
        finally:
            session.close()
        self._is_open = True

    @cached_property
    def writer(self) -> PostgresWriter:
        """The connection that writes, opened at the first use."""
        self.open()
        return PostgresWriter(self._where)

    async def read(self, read: Callable[[Session], T], *, one_state: bool = False) -> T:
        """As in Store; in a thread with a connection of its own, so that the event loop waits for no network."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._read, read, one_state)

    def _read(self, read: Callable[[Session], T], one_state: bool) -> T:
        self.open()
        session = self._idle.pop() if self._idle else ReadingSession(connect(self._where))
        try:
            if not one_state:
                return read(session)
            with session.one_state():
                return read(session)
        finally:
            if session.connection.closed:
                session.close()
            else:
                self._idle.append(session)

    async def submit(self, job: Job[T]) -> T:
        """Run the job in a transaction and return its result once it is durable; see PostgresWriter.submit."""
        return await self.writer.submit(job)

    async def measure(self) -> int:
        """Return the bytes of the tables, their indexes and their long values."""
        return await self.read(_measure_tables)

    async def read_figures(self) -> JsonObject:
        """Return the version of the tables; what is free within them the database does not say."""
        return {"free_bytes": None, "schema_version": await self.read(schema.read_version)}

    async def check_quickly(self) -> str:
        """Say that the rows can be read: the database watches over its own files."""
        try:
            await self.read(lambda session: session.row("select 1 from run limit 1"))
        except KairosError as damage:
            return damage.message
        return "ok"

    def find_damage(self, outcome: Any) -> list[str]:
        """As in Store, in one state of the database."""
        with self.read_session() as session, session.one_state():
            return integrity.find_wrong_rows(session, outcome)

    async def shrink(self) -> bool:
        """Do nothing: the database uses free space again by itself."""
        return False

    def check_writable(self) -> None:
        """Raise the store's error that a write would raise now; write nothing."""
        session = PostgresSession(connect(self._where))
        try:
            with translate_errors():
                begin(session)
                undo(session)
        finally:
            session.close()

    @contextmanager
    def read_session(self) -> Iterator[Session]:
        """Open a connection for a worker thread that reads, and close it at the end."""
        session = ReadingSession(connect(self._where))
        try:
            yield session
        finally:
            session.close()

    @contextmanager
    def write_session(self) -> Iterator[Session]:
        """Open a connection for one short transaction of a worker thread or a command."""
        session = PostgresSession(connect(self._where))
        try:
            with translate_errors():
                begin(session)
                try:
                    yield session
                except BaseException:
                    undo(session)
                    raise
                commit(session)
        finally:
            session.close()

    @cached_property
    def _threads(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(READERS, "kairos-reader")

    async def close(self) -> None:
        """Commit what is queued, then close everything that was opened."""
        opened = self.__dict__
        if "writer" in opened:
            await self.writer.close()
        if "_threads" in opened:
            self._threads.shutdown(wait=True)
        if "ownership" in opened:
            self.ownership.close()
        while self._idle:
            with suppress(psycopg.Error):
                self._idle.pop().close()


def _measure_tables(session: Session) -> int:
    found = session.row(
        "select coalesce(sum(pg_total_relation_size(oid)), 0) from pg_class"
        " where relkind = 'r' and relnamespace = current_schema()::regnamespace"
    )
    return 0 if found is None else int(found[0])
