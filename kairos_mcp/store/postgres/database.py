"""The store in a PostgreSQL database: sessions that read in threads, and the writer, each at its first use."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from functools import cached_property, partial
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

import psycopg

from kairos_mcp.core.errors import KairosError, StoreBusy, StoreUnavailable
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.store import integrity
from kairos_mcp.store.database import Job, News, Store, make_folder
from kairos_mcp.store.key_file import KEY_BYTES
from kairos_mcp.store.ownership import ServedRuns
from kairos_mcp.store.postgres import schema
from kairos_mcp.store.postgres.check import ServerCheck, check_server, find_missing
from kairos_mcp.store.postgres.connection import Connection, connect, read_address, translate_errors
from kairos_mcp.store.postgres.copy import copy_folder
from kairos_mcp.store.postgres.ownership import SessionLock, SessionLocks
from kairos_mcp.store.postgres.session import PostgresSession, ReadingSession
from kairos_mcp.store.postgres.writer import PostgresWriter, begin, commit, undo
from kairos_mcp.store.rows import Session

T = TypeVar("T")

READERS = 4  # connections of one process that read at a time
LOOK_S = 1.0  # between looks at the rows where nobody said that something was committed
BETWEEN_S = 0.15  # the least time between two looks
RESTART_S = 20.0  # for which a database that was reached before is waited for
RESTART_STEP_S = 0.2


class PostgresStore(Store):
    """The store in the database, and in the schema, that `where` names. The state folder keeps what is no row.

    `password`: where the password is kept (`env:NAME`, `file:PATH`); None: libpq finds it, if one is needed.
    """

    def __init__(
        self, home: Path, where: str, via: str, *, password: str | None = None, served_runs: ServedRuns | None = None
    ) -> None:
        super().__init__(home, via, served_runs)
        self._where = where
        self._connect = partial(connect, where, password)
        self._idle: list[ReadingSession] = []
        self._opening = Lock()
        self._registering = asyncio.Lock()
        self._is_open = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._news = asyncio.Event()
        self._heard: set[int] = set()
        self._heard_of_any = False
        self._looked_at = 0.0
        self._ahead_ms: float | None = None  # of this machine's monotonic clock is the database's

    def describe(self) -> JsonObject:
        """Return where the database is, and the version of the library that speaks with it; no password."""
        named = read_address(self._where)
        major, minor = divmod(psycopg.pq.version(), 10_000)
        place = {key: str(named[key]) for key in ("host", "port", "dbname") if key in named}
        return {"store": psycopg.conninfo.make_conninfo(**place), "libpq": f"{major}.{minor}", "exists": True}

    @property
    def exists(self) -> bool:
        """A database is there before its first use."""
        return True

    @property
    def is_open(self) -> bool:
        """Whether its tables have been looked at."""
        return self._is_open

    def open(self) -> None:
        """Look at the version of the tables. Raises the store's errors, also where there are none."""
        if not self._is_open:
            with self._opening:
                self._open_once()

    def _open_once(self) -> None:
        if self._is_open:
            return
        session = PostgresSession(self._connect())
        try:
            with translate_errors():
                schema.check_version(session)
                before = time.monotonic()
                found = session.row("select (extract(epoch from clock_timestamp()) * 1000)::bigint")
                assert found is not None
                self._ahead_ms = found[0] - (before + time.monotonic()) / 2 * 1000
        finally:
            session.close()
        self._is_open = True

    def _connect_again(self) -> Connection:
        """Open a connection to a database that was reached before: it may be starting anew, so it is given time."""
        deadline = time.monotonic() + RESTART_S
        while True:
            try:
                return self._connect()
            except KairosError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(RESTART_STEP_S)  # nothing signals that it is back

    @cached_property
    def writer(self) -> PostgresWriter:
        """The connection that writes, opened at the first use."""
        return PostgresWriter(self._connect_again)

    async def read(self, read: Callable[[Session], T], *, one_state: bool = False) -> T:
        """As in Store; in a thread with a connection of its own, so that the event loop waits for no network."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._read, read, one_state)

    def _read(self, read: Callable[[Session], T], one_state: bool) -> T:
        self.open()
        while True:
            session, is_new = self._take_session()
            try:
                with session.one_state() if one_state else nullcontext():
                    return read(session)
            except (StoreBusy, StoreUnavailable):
                if is_new or not session.connection.closed:
                    raise  # else its connection was lost while nobody used it
            finally:
                if session.connection.closed or not session.is_whole:
                    session.close()
                else:
                    self._idle.append(session)

    def _take_session(self) -> tuple[ReadingSession, bool]:
        """Return a session that reads, and whether it is a new one."""
        try:
            return self._idle.pop(), False
        except IndexError:
            return ReadingSession(self._connect_again()), True

    async def submit(self, job: Job[T], *, of_run: int | None = None) -> T:
        """As in Store."""
        if not self._is_open:
            await asyncio.to_thread(self.open)
        return await self.writer.submit(job, of_run)

    @property
    def owners(self) -> SessionLocks:
        """As in Store."""
        return SessionLocks()

    def _make_ownership(self) -> SessionLock:
        return SessionLock(self._connect, self._served_runs, self._hear, outages=self.outages)

    async def register_owner(self, at: int) -> int:
        """As in Store; in a thread, since the first call makes a connection."""
        async with self._registering:
            if "ownership" not in self.__dict__:
                self._loop = asyncio.get_running_loop()
                self.__dict__["ownership"] = await asyncio.to_thread(self._open_ownership)
            return await super().register_owner(at)

    def _open_ownership(self) -> SessionLock:
        make_folder(self.home)  # what runs do is kept out of it, so it is there before one does anything
        self.open()
        return self._make_ownership()

    @property
    def _session_lock(self) -> SessionLock | None:
        found: SessionLock | None = self.__dict__.get("ownership")
        return found

    def _hear(self, backend: int | None, runs: Collection[int] | None) -> None:
        """In the thread of the session lock: a session in this process of the database has committed rows of these
        runs; None: perhaps of any."""
        writer: PostgresWriter | None = self.__dict__.get("writer")
        is_own = backend is not None and writer is not None and backend == writer.backend
        if self._loop is not None and not is_own:
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._note_news, runs)

    def _note_news(self, runs: Collection[int] | None) -> None:
        if runs is None:
            self._heard_of_any = True
        else:
            self._heard.update(runs)
        self._news.set()

    async def take_news(self) -> News:
        """As in Store; what this process commits is no news. A word may be lost, so there are news of any run each
        LOOK_S."""
        now = time.monotonic()
        news = News(frozenset(self._heard), self._heard_of_any or now - self._looked_at >= LOOK_S)
        self._heard.clear()
        self._heard_of_any = False
        self._news.clear()
        if news.of_any:
            self._looked_at = now
        return news

    async def wait_for_news(self, within_s: float) -> None:
        """As in Store; as soon as others have committed, though not more often than each BETWEEN_S."""
        began = time.monotonic()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._news.wait(), LOOK_S)
        if (left := min(within_s, BETWEEN_S) - (time.monotonic() - began)) > 0:
            await asyncio.sleep(left)

    @property
    def may_act(self) -> bool:
        """As in Store: its lock was held, and its lease renewed, a moment ago."""
        lock = self._session_lock
        return lock is None or lock.is_held

    def now(self) -> int:
        """As in Store: the database's clock; before the store is opened, that of this machine."""
        lock = self._session_lock
        ahead_ms = self._ahead_ms if lock is None else lock.ahead_ms
        return super().now() if ahead_ms is None else int(time.monotonic() * 1000 + ahead_ms)

    async def sealing_key(self) -> bytes:
        """As in Store; a row."""
        found = await self.read(_read_key)
        return await self.submit(_make_key) if found is None else found

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
            if missing := find_missing(session):  # statements may name it
                return [f"{integrity.STORE_DAMAGE}: {'; '.join(missing[: integrity.MAX_LISTED])}"]
            return integrity.find_wrong_rows(session, outcome)

    async def shrink(self) -> bool:
        """Do nothing: the database uses free space again by itself."""
        return False

    def migrate(self) -> tuple[int, int]:
        """Make the tables, or bring them to this version; return the version before and after. Raises the store's
        errors."""
        session = PostgresSession(self._connect())
        try:
            with translate_errors():
                return schema.migrate(session)
        finally:
            session.close()

    def plan_migration(self) -> tuple[int, list[str]]:
        """Return the version that the tables have, and the statements that `migrate` would run. Raises the store's
        errors."""
        session = PostgresSession(self._connect())
        try:
            with translate_errors():
                return schema.read_version(session), schema.plan_migration(session)
        finally:
            session.close()

    def copy_folder(self, folder: Path) -> tuple[dict[str, int], int]:
        """Copy a state folder into the empty database; see copy_folder. Raises the store's errors."""
        self.open()
        return copy_folder(folder, self._connect)

    def check_server(self) -> ServerCheck:
        """Look at the server of the database. Raises the store's errors."""
        return check_server(self._connect)

    def check_writable(self) -> None:
        """Raise the store's error that a write would raise now; write nothing."""
        session = PostgresSession(self._connect())
        try:
            with translate_errors():
                begin(session)
                undo(session)
        finally:
            session.close()

    @contextmanager
    def read_session(self) -> Iterator[Session]:
        """Open a connection for a worker thread that reads, and close it at the end."""
        session = ReadingSession(self._connect())
        try:
            yield session
        finally:
            session.close()

    @contextmanager
    def write_session(self) -> Iterator[Session]:
        """Open a connection for one short transaction of a worker thread or a command."""
        session = PostgresSession(self._connect())
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
            await asyncio.to_thread(self.ownership.close)
        while self._idle:
            with suppress(psycopg.Error):
                self._idle.pop().close()


def _read_key(session: Session) -> bytes | None:
    found = session.row("select value from secret where name = ?", (schema.SEALING_KEY,))
    return None if found is None else bytes(found[0])


def _make_key(session: Session) -> bytes:
    """Make the key, unless another server was first, and return it."""
    new = "insert into secret(name, value) values (?, ?) on conflict do nothing"
    session.rows(new, (schema.SEALING_KEY, os.urandom(KEY_BYTES)))
    key = _read_key(session)
    assert key is not None
    return key


def _measure_tables(session: Session) -> int:
    found = session.row(
        "select coalesce(sum(pg_total_relation_size(oid)), 0) from pg_class"
        " where relkind = 'r' and relnamespace = current_schema()::regnamespace"
    )
    return 0 if found is None else int(found[0])
