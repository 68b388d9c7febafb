"""Open the state file, run statements on it, and translate SQLite's errors into the store's own."""

from __future__ import annotations

import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw

from kairos_mcp.core.errors import NoSpace, StoreBusy, StoreCorrupt, StoreUnavailable
from kairos_mcp.settings.settings import Durability

Row = tuple[Any, ...]
Bindings = Sequence[Any] | Mapping[str, Any]  # by position (?) or by name (:name)

BUSY_STEP_S = 0.0003  # SQLite's own back-off halves the throughput of four processes
BUSY_LIMIT_S = 5.0


class ReadConnection(apsw.Connection):
    """A connection that only reads: its SQLite errors are translated where they happen.

    The writer's connection raises them as they are, since the writer has to tell a failing store from a job that
    refuses.
    """


def connect(path: Path, durability: Durability, *, reads: bool = False, read_only: bool = False) -> apsw.Connection:
    """Open the state file in WAL mode; nothing is checked or migrated. Raises the store's errors.

    `reads`: return a ReadConnection. `read_only`: the same, and never create the file.
    """
    _refuse_odd_file(path)
    with translate_errors():
        flags = apsw.SQLITE_OPEN_READWRITE | (0 if read_only else apsw.SQLITE_OPEN_CREATE)
        opened = ReadConnection if reads or read_only else apsw.Connection
        connection = opened(str(path), flags=flags | apsw.SQLITE_OPEN_NOFOLLOW)
        try:
            connection.set_busy_handler(make_busy_handler())
            connection.execute("pragma journal_mode = wal")
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


def fetch_all(connection: apsw.Connection, statement: str, bindings: Bindings = ()) -> list[Row]:
    """Execute a statement and return all of its rows; none for a statement that only writes.

    All at once, since a half-done scan that a kept exception refers to would hold this connection at an old state of
    the file.
    """
    if isinstance(connection, ReadConnection):
        with translate_errors():
            return connection.execute(statement, bindings).fetchall()
    return connection.execute(statement, bindings).fetchall()


def json_or_null(column: str) -> str:
    """Return SQL for a JSON column that is null where the column holds no JSON.

    So one damaged row does not make a statement fail for all others.
    """
    return f"iif(json_valid({column}), {column}, null)"


def fetch_one(connection: apsw.Connection, statement: str, bindings: Bindings = ()) -> Row | None:
    """Execute a statement and return its first row; None where there is none."""
    found = fetch_all(connection, statement, bindings)
    return found[0] if found else None


@contextmanager
def snapshot(connection: apsw.Connection) -> Iterator[apsw.Connection]:
    """Read everything within from one state of the file, whatever others write meanwhile. Await nothing within."""
    fetch_all(connection, "savepoint snapshot")
    try:
        yield connection
    finally:
        fetch_all(connection, "release snapshot")


def make_busy_handler() -> Callable[[int], bool]:
    """Make a busy handler for one connection: it sleeps in small, even steps and gives up after BUSY_LIMIT_S."""
    since = 0.0

    def wait(tries: int) -> bool:
        nonlocal since
        now = time.monotonic()
        if tries == 0:
            since = now
        time.sleep(BUSY_STEP_S)  # nothing signals that another process has released its lock
        return now - since < BUSY_LIMIT_S

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
def translate_errors() -> Iterator[None]:
    """Raise the store's error, with a hint, in place of SQLite's."""
    try:
        yield
    except apsw.Error as error:
        raise as_store_error(error) from error


def as_store_error(error: BaseException) -> BaseException:
    """Return the store's error for one of SQLite's; any other error is returned unchanged."""
    match error:
        case apsw.BusyError() | apsw.LockedError():
            return StoreBusy("Another process holds the state file.", "Call again in a moment.")
        case apsw.CorruptError() | apsw.NotADBError():
            return StoreCorrupt(
                "The state file is damaged.", "Run `kairos-mcp doctor`; move the file away to start anew."
            )
        case apsw.FullError():
            return NoSpace("The disk of the state folder is full.", "Free some space and call again.")
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
                "Run `kairos-mcp doctor`; move the file away to start anew.",
            )
        case apsw.Error():
            kind = type(error).__name__
            return StoreUnavailable(f"The state file failed: {kind}.", "Run `kairos-mcp doctor`.")
        case _:
            return error
