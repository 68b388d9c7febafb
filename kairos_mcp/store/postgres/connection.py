"""Open a connection to PostgreSQL, and translate its errors into the store's own."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import psycopg
from psycopg import errors
from psycopg.abc import Buffer
from psycopg.adapt import Dumper, Loader
from psycopg.types.numeric import Int8Dumper

from kairos_mcp.core.errors import BadArguments, ConfigError, NoSpace, StoreBusy, StoreCorrupt, StoreUnavailable
from kairos_mcp.settings.secret_refs import read_secret
from kairos_mcp.store.postgres.nul_characters import restore_nul, spell_nul
from kairos_mcp.store.postgres.refusals import explain_refusal
from kairos_mcp.store.rows import CorruptRows, Row

Connection: TypeAlias = psycopg.Connection[Row]

# It warns of errors that follow from the one that it raises.
logging.getLogger("psycopg").setLevel(logging.ERROR)

BOUNDS = (  # how long others wait for a process that stands still within a transaction, and it for them
    "-c idle_in_transaction_session_timeout=5s -c lock_timeout=5s -c statement_timeout=30s"
)
TRANSACTION_S = 10  # how long one that writes may last
KEEPALIVE: dict[str, Any] = {
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
    "connect_timeout": 5,
    "application_name": "kairos-mcp",
    "client_encoding": "utf-8",
}


class _CountDumper(Dumper):
    """A truth value as the number that its column holds."""

    oid = Int8Dumper.oid

    def dump(self, obj: bool) -> Buffer:
        return b"1" if obj else b"0"


class _TruthLoader(Loader):
    """A truth value as the number that SQLite returns for it."""

    def load(self, data: Buffer) -> int:
        return int(bytes(data) == b"t")


class _TextDumper(Dumper):
    """A text, in which NUL is spelled."""

    def dump(self, obj: str) -> Buffer:
        return spell_nul(obj).encode()


class _TextLoader(Loader):
    """The text that was stored."""

    def load(self, data: Buffer) -> str:
        return restore_nul(str(data, "utf-8"))


class _TextBytesLoader(Loader):
    """The encoding of the text that was stored."""

    def load(self, data: Buffer) -> bytes:
        return restore_nul(str(data, "utf-8")).encode()


class _SumLoader(Loader):
    """The sum of integers, which PostgreSQL returns as a decimal."""

    def load(self, data: Buffer) -> int:
        return int(bytes(data))


_ADDRESS_HINT = "Write it as postgresql://USER@HOST:PORT/NAME, options after a ?, as ?sslmode=require."


def connect(where: str, password: str | None = None) -> Connection:
    """Open a connection that commits each statement by itself outside of a transaction.

    `password`: where it is kept; it is read again for each connection. Raises the store's errors, ConfigError.
    """
    secret = {} if password is None else {"password": read_secret(password)}
    with translate_errors():
        settings: dict[str, Any] = KEEPALIVE | read_address(where) | secret
        options = f"{settings.pop('options', '')} {BOUNDS}".strip()
        made: Connection = _connect(psycopg.conninfo.make_conninfo(**settings, options=options))
    made.adapters.register_dumper(int, Int8Dumper)  # one type, so that a statement is prepared once
    made.adapters.register_dumper(bool, _CountDumper)
    made.adapters.register_dumper(str, _TextDumper)
    made.adapters.register_loader("text", _TextLoader)
    made.adapters.register_loader("varchar", _TextBytesLoader)
    made.adapters.register_loader("bool", _TruthLoader)
    made.adapters.register_loader("numeric", _SumLoader)
    with translate_errors():
        found = made.execute("select pg_backend_pid()", prepare=False).fetchone()
    if found != (made.info.backend_pid,):  # a pooler stands before the database
        made.prepare_threshold = None  # the name of what is prepared may be another client's in the next transaction
    return made


def read_address(where: str) -> dict[str, Any]:
    """Return what an address names: host, port, dbname, user and more. Raises ConfigError."""
    try:
        return psycopg.conninfo.conninfo_to_dict(where)
    except psycopg.ProgrammingError as error:
        # Of the library's sentence nothing else is shown: it quotes what it can't read, which may be a password.
        unknown = re.search(r'invalid URI query parameter: "(\w+)"', str(error))
        reason = f": it has no option {unknown[1]}" if unknown else ""
        raise ConfigError(f"`store` is not the address of a database{reason}.", _ADDRESS_HINT) from None


def _connect(where: str) -> Connection:
    try:
        return psycopg.Connection.connect(where, autocommit=True, prepare_threshold=1, cursor_factory=psycopg.RawCursor)
    except UnicodeError:  # a host that can't be looked up
        raise ConfigError("The host in `store` is not a host name.", _ADDRESS_HINT) from None
    except psycopg.OperationalError as error:
        raise explain_refusal(str(error)) from error


def bound_transactions(connection: Connection) -> None:
    """Have the database end a transaction that lasts too long, from version 17 on.

    The bound for idle ones holds for no process that stops within a pipeline, nor after the last message of one.
    """
    if connection.info.server_version >= 170_000 and connection.prepare_threshold is not None:
        with translate_errors():
            connection.execute(f"set transaction_timeout = '{TRANSACTION_S}s'", prepare=False)


@contextmanager
def translate_errors() -> Iterator[None]:
    """Raise the store's error, with a hint, in place of PostgreSQL's."""
    try:
        yield
    except psycopg.Error as error:
        raise as_store_error(error) from error


def as_store_error(error: BaseException) -> BaseException:
    """Return the store's error for one of PostgreSQL's; any other error is returned unchanged."""
    match error:
        case (
            errors.DeadlockDetected()
            | errors.SerializationFailure()
            | errors.LockNotAvailable()
            | errors.QueryCanceled()
            | errors.AdminShutdown()
            | errors.CannotConnectNow()
            | errors.TooManyConnections()
        ):
            return StoreBusy("The database is busy.", "Call again in a moment.")
        case CorruptRows() | errors.DataCorrupted() | errors.IndexCorrupted():
            return StoreCorrupt("The database is damaged.", "Run `kairos-mcp doctor`.")
        case errors.ProgramLimitExceeded():
            return BadArguments("A name or a path is longer than an index of the database allows.", "Shorten it.")
        case errors.DiskFull():
            return NoSpace("The disk of the database is full.", "Free some space and call again.")
        case errors.UndefinedTable() | errors.UndefinedColumn() | errors.UndefinedFunction() | errors.SyntaxError():
            return StoreCorrupt(
                "The database lacks a table, a column or a function that its version has.", "Run `kairos-mcp doctor`."
            )
        case errors.InsufficientPrivilege():
            return StoreUnavailable(
                "The user in `store` lacks a right in the database.",
                "Grant it usage and create on the schema that `store` uses, and its tables if another user made them.",
            )
        case psycopg.OperationalError():
            return StoreUnavailable("The database can't be reached.", "Check `store` in the settings, then call again.")
        case psycopg.Error():
            kind = type(error).__name__
            return StoreUnavailable(f"The database failed: {kind}.", "Run `kairos-mcp doctor`.")
        case _:
            return error
