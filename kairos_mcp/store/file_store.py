"""The store in a file of the state folder: the connection that reads, and the writer, each at its first use.

Which servers of the folder are alive is said by locks on lock files: the kernel releases one when its process ends;
there is no heartbeat, and no clock is read.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import secrets
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import apsw

from kairos_mcp.core.errors import KairosError, StoreBusy, StoreCorrupt
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.settings.settings import Durability
from kairos_mcp.store import integrity, ownership, schema
from kairos_mcp.store.connection import SqliteSession, Writer, connect, translate_errors
from kairos_mcp.store.database import Job, News, Store, as_folder_error, make_folder
from kairos_mcp.store.key_file import state_key
from kairos_mcp.store.ownership import Ownership, ServedRuns
from kairos_mcp.store.rows import Session

LOCK_FOLDER = "owners"


class LockFile(Ownership):
    """This server's lock file, locked until the process ends."""

    def __init__(self, home: Path, served_runs: ServedRuns | None = None) -> None:
        super().__init__(served_runs)
        folder = home / LOCK_FOLDER
        try:
            self._lock_new_file(folder)
        except OSError as error:
            raise as_folder_error(error) from error

    def _lock_new_file(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, exist_ok=True)
        while True:
            self.lock = f"{os.getpid()}-{secrets.token_hex(4)}"
            self._path = folder / self.lock
            self._descriptor = os.open(self._path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
            if os.fstat(self._descriptor).st_nlink:
                return
            os.close(self._descriptor)  # another server removed the file between the two calls

    def close(self) -> None:
        """Remove the lock file and release the lock: a server without a file is not alive."""
        self._path.unlink(missing_ok=True)
        os.close(self._descriptor)


class LockFiles:
    """The lock files of a state folder, as `Owners`."""

    def __init__(self, home: Path) -> None:
        self._home = home

    def find_living(self, _session: Session, locks: Collection[str]) -> Collection[str]:
        """As in Owners."""
        with suppress(FileNotFoundError):
            there = set(os.listdir(self._home / LOCK_FOLDER))
            return {lock for lock in locks if lock in there and is_alive(self._home, lock)}
        return ()

    def is_stopped(self, pid: int) -> bool:
        """As in Owners: by SIGSTOP."""
        return is_stopped(pid)


def is_alive(home: Path, lock: str) -> bool:
    """Whether the server with this lock file still runs."""
    try:
        descriptor = os.open(home / LOCK_FOLDER / lock, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def living_processes(home: Path) -> list[int]:
    """The processes of the servers of this folder that have written and still run, by their lock files."""
    names = sorted(path.name for path in (home / LOCK_FOLDER).glob("*"))
    return [int(name.partition("-")[0]) for name in names if is_alive(home, name)]


def is_stopped(pid: int) -> bool:
    """Whether a process was stopped by a signal; False where the system doesn't say."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] in ("T", "t")


def remove_dead_locks(home: Path) -> None:
    """Remove the lock files of servers that have ended."""
    for path in (home / LOCK_FOLDER).glob("*"):
        if not is_alive(home, path.name):
            path.unlink(missing_ok=True)


T = TypeVar("T")

FILE = "kairos.db"
CHECKED_BYTES = 32 * 1024 * 1024  # a larger file is checked by `doctor` alone: 1 MiB takes about 1 ms


class FileStore(Store):
    """The store in one SQLite file. `salvage`: open a damaged file too, to read what is still readable."""

    def __init__(
        self,
        home: Path,
        durability: Durability,
        via: str,
        *,
        salvage: bool = False,
        served_runs: ServedRuns | None = None,
    ) -> None:
        super().__init__(home, via, served_runs)
        self._salvage = salvage
        self.path = home / FILE
        self._durability: Durability = durability
        self._seen_version = 0

    @cached_property
    def owners(self) -> LockFiles:
        """As in Store."""
        return LockFiles(self.home)

    def _make_ownership(self) -> LockFile:
        remove_dead_locks(self.home)
        return LockFile(self.home, self._served_runs)

    def describe(self) -> JsonObject:
        """Return where the file is, the version of SQLite, and whether there is one."""
        return {"store": str(self.path), "sqlite": apsw.sqlite_lib_version(), "exists": self.exists}

    @property
    def exists(self) -> bool:
        """Whether there is a state file."""
        return self.path.exists()

    @cached_property
    def reader(self) -> SqliteSession:
        """The connection that reads. Opening it creates the folder and migrates the file to the newest version."""
        make_folder(self.home)
        # SQLite would create it with the process's umask; its log and shared memory get the mode of this file.
        with suppress(OSError):  # it exists already, or SQLite reports what is wrong
            os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))
        with translate_errors(self.home):
            connection = connect(self.path, self._durability, reads=True)
            try:
                if not self._salvage:
                    _check_integrity(connection, self.path)
                schema.migrate(connection)
                connection.execute("pragma query_only = on")
            except BaseException:
                connection.close()
                raise
        return connection

    @cached_property
    def writer(self) -> Writer:
        """The connection that writes, opened at the first use."""
        self.open()  # migrated before anything writes
        return Writer(self.path, self._durability, connect(self.path, self._durability))

    def open(self) -> None:
        """Open the file, which makes the folder and migrates the file to the newest version."""
        assert self.reader is not None

    @property
    def is_open(self) -> bool:
        """Whether the file has been opened."""
        return "reader" in self.__dict__

    async def read(self, read: Callable[[Session], T], *, one_state: bool = False) -> T:
        """As in Store; called at once, since a thread costs more than the statements."""
        if one_state:
            with self.reader.one_state():
                return read(self.reader)
        return read(self.reader)

    async def submit(self, job: Job[T], *, of_run: int | None = None) -> T:
        """Run the job in a transaction and commit it; see Writer.submit. Nobody else writes, whatever `of_run` says.

        Where the file stays busy because another server was stopped (SIGSTOP) while it wrote, the StoreBusy error names
        that process: calling again would not help.
        """
        try:
            return await self.writer.submit(job)
        except StoreBusy as busy:
            stopped = next(
                (server for server in ownership.list_living(self.reader, self.owners) if server.stopped), None
            )
            if stopped is None:
                raise
            raise StoreBusy(
                f"{busy.message} A server that was stopped (process {stopped.pid}) may be what holds it.",
                f"Let it go on (kill -CONT {stopped.pid}), or end it (kill -KILL {stopped.pid}); others take its runs.",
            ) from busy

    async def take_news(self) -> News:
        """As in Store, of any run; commits of this process count too, since another connection makes them."""
        seen, self._seen_version = self._seen_version, self.reader.read_version()
        return News(of_any=seen != self._seen_version)

    async def sealing_key(self) -> bytes:
        """As in Store; a file of the folder."""
        return state_key(self.home)

    async def measure(self) -> int:
        """Return the bytes of the file and of its write-ahead log, where the newest rows are."""
        return sum(file.stat().st_size for file in (self.path, Path(f"{self.path}-wal")) if file.exists())

    async def read_figures(self) -> JsonObject:
        """As in Store."""
        (free_pages,), (page_bytes,), (version,) = (
            *self.reader.rows("pragma freelist_count"),
            *self.reader.rows("pragma page_size"),
            *self.reader.rows("pragma user_version"),
        )
        return {"free_bytes": free_pages * page_bytes, "schema_version": version}

    async def check_quickly(self) -> str:
        """As in Store."""
        try:
            return "; ".join(str(line) for (line,) in self.reader.rows("pragma quick_check(5)"))
        except KairosError as damage:
            return damage.message

    def find_damage(self, outcome: Any) -> list[str]:
        """As in Store: in one state of the file, since others may write meanwhile, and by a session of its own, since
        another one may have in memory what is damaged on the disk."""
        try:
            with self.read_session() as session, session.one_state():
                return integrity.find_damage(session, outcome)
        except KairosError as damage:
            return [f"{integrity.STORE_DAMAGE}: {damage.message}"]

    async def shrink(self) -> bool:
        """As in Store; somebody who opens the file meanwhile keeps it from being done."""
        return await asyncio.to_thread(self._shrink)

    def _shrink(self) -> bool:
        connection = connect(self.path, "full")
        try:
            with translate_errors():
                connection.execute("vacuum")
                connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        except StoreBusy:
            return False  # the free space stays in the file and is used again
        else:
            return True
        finally:
            connection.close()

    def check_writable(self) -> None:
        """Raise the store's error that a write would raise now; write nothing."""
        with translate_errors():
            connection = connect(self.path, self._durability)
            try:
                connection.execute("begin immediate")
                connection.execute("rollback")
            finally:
                connection.close()

    @contextmanager
    def read_session(self) -> Iterator[Session]:
        """Open a connection for a worker thread that reads, and close it at the end."""
        session = connect(self.path, self._durability, read_only=True)
        try:
            yield session
        finally:
            session.close()

    @contextmanager
    def write_session(self) -> Iterator[Session]:
        """Open a connection for one short transaction of a worker thread or a command: committed at the end, durable
        whatever the settings say, undone where an error leaves the block."""
        session = connect(self.path, "full")
        try:
            with translate_errors():
                session.rows("begin immediate")
                try:
                    yield session
                except BaseException:
                    session.rows("rollback")
                    raise
                session.rows("commit")
        finally:
            session.close()

    async def close(self) -> None:
        """Commit what is queued, then close everything that was opened."""
        opened = self.__dict__
        if "writer" in opened:
            await self.writer.close()
        if "ownership" in opened:
            self.ownership.close()
        if "reader" in opened:
            self.reader.close()


def _check_integrity(session: Session, path: Path) -> None:
    if path.stat().st_size > CHECKED_BYTES:
        return
    found = session.row("pragma quick_check(1)")
    if found is None or found[0] != "ok":
        raise StoreCorrupt(
            "The state file is damaged.", "Run `kairos-mcp doctor`; move the file away to begin a new one."
        )
