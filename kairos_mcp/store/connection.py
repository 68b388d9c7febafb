"""Connections to the state file: they run statements and translate SQLite's errors; one writes, with checkpoints.

Where a commit runs was measured: with one active run, in the event loop is quickest; many runs at full durability share
one sync in a thread.
"""

from __future__ import annotations

import stat
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import apsw

from kairos_mcp.core.errors import KairosError, StoreBusy, StoreCorrupt, StoreUnavailable
from kairos_mcp.settings.settings import Durability
from kairos_mcp.store.database import GroupWriter, Job, QueuedJob, disk_is_full, has_no_room
from kairos_mcp.store.rows import Bindings, CorruptRows, LastWrites, Row, Session

T = TypeVar("T")

BUSY_STEP_S = 0.0003  # SQLite's own back-off halves the throughput of four processes
BUSY_LIMIT_S = 5.0
# Of a new file. A commit of a round writes six or seven pages, of each of them a few hundred new bytes: with SQLite's
# usual 4,096 it takes half as long again. Smaller ones make long texts slower.
PAGE_BYTES = 2_048
PREPARED_STATEMENTS = 500  # more than there are: apsw lets go of the oldest first, however often it is used


class SqliteSession(apsw.Connection):
    """A connection to the state file. SQLite's errors pass as they are: the writer has to tell a failing store from a
    job that refuses."""

    last_writes: LastWrites | None = None  # nobody else writes during a transaction

    def rows(self, statement: str, bindings: Bindings = ()) -> list[Row]:
        # All at once, since a half-done scan that a kept exception refers to would hold this connection at an old state
        # of the file.
        return self.execute(statement, bindings).fetchall()

    def row(self, statement: str, bindings: Bindings = ()) -> Row | None:
        found = self.rows(statement, bindings)
        return found[0] if found else None

    def stream(self, statement: str, bindings: Bindings = ()) -> Iterator[Row]:
        return iter(self.execute(statement, bindings))

    def finds(self, statement: str, bindings: Bindings = ()) -> bool:
        return bool(self.rows(statement, bindings))

    def insert(self, statement: str, bindings: Bindings = ()) -> int:
        self.execute(statement, bindings)
        return self.last_insert_rowid()

    def change(self, statement: str, bindings: Bindings = ()) -> int:
        self.execute(statement, bindings)
        return self.changes()

    def changed_rows(self) -> int:
        return self.total_changes()

    def read_version(self) -> int:
        found = self.row("pragma data_version")
        assert found is not None
        return int(found[0])

    def require_alone(self) -> None:
        return

    @contextmanager
    def one_state(self) -> Iterator[None]:
        self.rows("savepoint one_state")
        try:
            yield
        finally:
            self.rows("release one_state")

    def together(self, reads: Sequence[Callable[[Session], T]]) -> list[T]:
        return [read(self) for read in reads]


class ReadingSession(SqliteSession):
    """A connection that only reads: SQLite's errors are translated where they happen."""

    def rows(self, statement: str, bindings: Bindings = ()) -> list[Row]:
        try:  # without the context manager, which takes longer than many a statement
            return self.execute(statement, bindings).fetchall()
        except apsw.Error as error:
            raise as_store_error(error) from error

    def stream(self, statement: str, bindings: Bindings = ()) -> Iterator[Row]:
        with translate_errors():
            yield from self.execute(statement, bindings)


def connect(path: Path, durability: Durability, *, reads: bool = False, read_only: bool = False) -> SqliteSession:
    """Open the state file in WAL mode; nothing is checked or migrated. Raises the store's errors.

    `reads`: return a ReadingSession. `read_only`: the same, and never create the file.
    """
    _refuse_odd_file(path)
    with translate_errors(path.parent):
        flags = apsw.SQLITE_OPEN_READWRITE | (0 if read_only else apsw.SQLITE_OPEN_CREATE)
        opened = ReadingSession if reads or read_only else SqliteSession
        # SQLite refuses a link in any part of the path, and only the file itself must be none.
        real = str(path.parent.resolve() / path.name)
        connection = opened(real, flags=flags | apsw.SQLITE_OPEN_NOFOLLOW, statementcachesize=PREPARED_STATEMENTS)
        try:
            # Else SQLite plans each join, and each `exists`, anew whenever it is given other values.
            connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
            connection.set_busy_handler(make_busy_handler())
            connection.execute(f"pragma page_size = {PAGE_BYTES}")  # of a new file; another one keeps its own
            _use_wal(connection)
            connection.execute(f"pragma synchronous = {'full' if durability == 'full' else 'normal'}")
            connection.execute("pragma wal_autocheckpoint = 0")  # checkpoints run in a thread of their own
            connection.execute("pragma foreign_keys = off")  # every key is written in the transaction of its row
            if read_only:
                connection.execute("pragma query_only = on")
            else:
                connection.execute("pragma secure_delete = on")  # deleted rows are overwritten, not only unlinked
        except BaseException:
            connection.close()
            raise
    return connection


def _use_wal(connection: apsw.Connection) -> None:
    """Turn the file to WAL mode, if it is not. SQLite asks no busy handler where a reader becomes a writer, which is
    what this does to a new file: two servers that open one at the same time would meet here."""
    deadline = time.monotonic() + BUSY_LIMIT_S
    while True:
        try:
            connection.execute("pragma journal_mode = wal")
        except apsw.BusyError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(BUSY_STEP_S)  # nothing signals that the other server has written
        else:
            return


def make_busy_handler(
    may_wait: Callable[[], bool] = lambda: True, limit_s: float = BUSY_LIMIT_S
) -> Callable[[int], bool]:
    """Make a busy handler for one connection: it sleeps in small, even steps and gives up after `limit_s` seconds, or
    at once where it may not wait."""
    since = 0.0

    def wait(tries: int) -> bool:
        nonlocal since
        if not may_wait():
            return False
        now = time.monotonic()
        if tries == 0:
            since = now
        time.sleep(BUSY_STEP_S)  # nothing signals that another process has released its lock
        return now - since < limit_s

    return wait


def _refuse_odd_file(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise StoreUnavailable(f"The state file can't be reached: {error.strerror}.", "Check --home.") from error
    if not stat.S_ISREG(mode):
        raise StoreUnavailable(
            "The state file is not a regular file.",
            "Name another folder with --home, or move what stands there.",
        )


@contextmanager
def translate_errors(folder: Path | None = None) -> Iterator[None]:
    """Raise the store's error, with a hint, in place of SQLite's. `folder`: where files are made meanwhile: SQLite does
    not say why it could not make one."""
    try:
        yield
    except (apsw.Error, StoreUnavailable) as error:  # a ReadingSession has translated it already
        cause = error if isinstance(error, apsw.Error) else error.__cause__
        if isinstance(cause, apsw.CantOpenError) and folder is not None and has_no_room(folder):
            raise disk_is_full() from cause
        raise as_store_error(error) from cause


def as_store_error(error: BaseException) -> BaseException:
    """Return the store's error for one of SQLite's; any other error is returned unchanged."""
    match error:
        case apsw.BusyError() | apsw.LockedError():
            return StoreBusy("Another process holds the state file.", "Call again in a moment.")
        case CorruptRows() | apsw.CorruptError() | apsw.NotADBError():
            return StoreCorrupt(
                "The state file is damaged.", "Run `kairos-mcp doctor`; move the file away to begin a new one."
            )
        case apsw.FullError():
            return disk_is_full()
        case apsw.IOError() if getattr(error, "extendedresult", 0) == apsw.SQLITE_IOERR_SHMSIZE:
            return disk_is_full()  # the shared memory could not be made as long as it has to be
        case apsw.ReadOnlyError():
            return StoreUnavailable("The state file can't be written.", "Check its permissions.")
        case apsw.CantOpenError() | apsw.PermissionsError() | apsw.AuthError():
            return StoreUnavailable("The state file can't be opened.", "Check --home and its permissions.")
        case apsw.IOError():
            return StoreUnavailable(
                "The disk failed under the state file.", "Check the disk, then call again; nothing was recorded."
            )
        case apsw.SQLError():
            return StoreCorrupt(
                "The state file lacks a table or a column that its version has.",
                "Run `kairos-mcp doctor`; move the file away to begin a new one.",
            )
        case apsw.Error():
            kind = type(error).__name__
            return StoreUnavailable(f"The state file failed: {kind}.", "Run `kairos-mcp doctor`.")
        case _:
            return error


CHECKPOINT_BYTES = 4 * 1024 * 1024  # of pages by which the log grows from one checkpoint to the next
RESTART_WAIT_S = 0.003  # so long a checkpoint waits for readers, while it keeps others from writing
MUST_RESTART_BYTES = 40 * 1024 * 1024  # from here on it waits as long as any writer does


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
        page_bytes = int(connection.pragma("page_size"))
        self._checkpoint_pages = CHECKPOINT_BYTES // page_bytes
        self._must_restart_pages = MUST_RESTART_BYTES // page_bytes
        self._is_checkpointing = False
        connection.set_wal_hook(self._on_wal_written)

    def commit_at_once(self, job: Job[T]) -> tuple[T] | None:
        """As in GroupWriter: None while several runs are active or somebody else writes."""
        if self._active_runs > 1 or self._is_committing or self._queue:
            return None
        self._may_wait = False
        try:
            self._connection.execute("begin immediate")
            value = job(self._connection)
            self._connection.execute("commit")
        except apsw.BusyError:
            self._roll_back()
            return None
        except BaseException as error:
            self._roll_back()  # also what a job wrote before it refused
            if (translated := as_store_error(error)) is error:
                raise
            raise translated from error
        finally:
            self._may_wait = True
        self._count_commit()
        return (value,)

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
            self._roll_back()
            raise

    def _roll_back(self) -> None:
        if self._connection.in_transaction:
            self._connection.execute("rollback")

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
        if self._is_checkpointing or self._log_pages - self._checkpointed_pages < self._checkpoint_pages:
            return
        self._is_checkpointing, self._checkpointed_pages = True, self._log_pages
        wait_s = BUSY_LIMIT_S if self._log_pages > self._must_restart_pages else RESTART_WAIT_S
        self._checkpoint_thread.submit(self._checkpoint, wait_s)

    @cached_property
    def _checkpoint_thread(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(1, "kairos-checkpoint")

    @cached_property
    def _checkpointer(self) -> SqliteSession:
        """The checkpoint thread's connection, kept open because opening one costs as much as many checkpoints."""
        return connect(self._path, self._durability)

    def _checkpoint(self, wait_s: float) -> None:
        """Write the pages of the log to the file, and have the next commit begin the log anew: to write over it takes
        less than to make it longer."""
        try:
            self._checkpointer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)  # while others write
            self._checkpointer.set_busy_handler(make_busy_handler(limit_s=wait_s))
            self._checkpointer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_RESTART)  # what they wrote meanwhile
        except (apsw.Error, KairosError):
            pass  # a failed checkpoint costs only space; the next one tries again
        finally:
            self._is_checkpointing = False
