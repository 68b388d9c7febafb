"""The tables: each version is a file of SQL in `migrations`, and a store's `user_version` says how many it has.

A migration is frozen once it has been released, and adds only: a server of the version before goes on beside it. What
each table and column is for stands in those files. The tables of PostgreSQL are made from the same files.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import apsw

from kairos_mcp.core.errors import StoreCorrupt, StoreTooNew, StoreTooOld
from kairos_mcp.store.connection import SqliteSession
from kairos_mcp.store.rows import Session

APPLICATION_ID = 0x4B41524F  # "KARO", in the head of each file that this program makes

_FOLDER = Path(__file__).parent / "migrations"
_COMMENT = re.compile(r" *--.*")


def _read_migrations() -> Iterator[str]:
    """Yield the statements of each version, in order, without comments: SQLite would keep those in its own tables."""
    for number, file in enumerate(sorted(_FOLDER.glob("*.sql"), key=lambda file: int(file.stem)), 1):
        assert int(file.stem) == number, file
        yield _COMMENT.sub("", file.read_text(encoding="utf-8"))


MIGRATIONS: tuple[str, ...] = tuple(_read_migrations())


def migrate(session: SqliteSession) -> None:
    """Migrate the file to the newest version, in one transaction.

    Raises StoreTooNew for a newer file, StoreTooOld for one of a version before the first release, StoreCorrupt for one
    whose tables are not those of its version.
    """
    if _read_version(session) == len(MIGRATIONS):
        return
    session.execute("begin immediate")
    version = _read_version(session)
    try:
        for statements in MIGRATIONS[version:]:
            session.execute(statements)
        session.execute(f"pragma application_id = {APPLICATION_ID}")
        session.execute(f"pragma user_version = {len(MIGRATIONS)}")
    except apsw.SQLError as error:
        session.execute("rollback")
        raise _wrong_version_error(version) from error
    except BaseException:
        session.execute("rollback")
        raise
    session.execute("commit")


def _read_version(session: SqliteSession) -> int:
    version = session.pragma("user_version")
    assert isinstance(version, int)
    if version > 0 and session.pragma("application_id") != APPLICATION_ID:
        raise too_old_error("state file")
    if version < 0:
        raise _wrong_version_error(version)
    if version > len(MIGRATIONS):
        raise StoreTooNew(
            f"The state file has version {version}; this program knows {len(MIGRATIONS)}.",
            "Install the newer kairos-mcp that wrote it, or name another folder with --home.",
        )
    return version


def too_old_error(what: str) -> StoreTooOld:
    """Return the error for a store that a development version made. `what`: what holds it."""
    return StoreTooOld(
        f"The {what} was made by a version before the first release, whose tables this one doesn't read.",
        "Export its runs with the program that made it (`export RUN`), then name another one, or move it away.",
    )


def _wrong_version_error(version: int) -> StoreCorrupt:
    return StoreCorrupt(
        f"The state file says that it has version {version}, but its tables are not those.",
        "Stop the servers, copy the state folder, then move the file away: the next start makes a new one.",
    )


@lru_cache(maxsize=1)
def list_text_columns() -> Mapping[str, list[str]]:
    """Return by table every column that may hold a hash of a text, except the texts' own primary key."""
    with _fresh_tables() as fresh:
        return {
            table: [
                name
                for (name, kind) in fresh.rows("select name, lower(type) from pragma_table_info(?)", (table,))
                if kind != "integer" and (table, name) != ("text", "hash")
            ]
            for (table,) in fresh.rows("select name from sqlite_master where type = 'table'")
        }


@lru_cache(maxsize=1)
def list_references() -> Mapping[str, list[tuple[str, str]]]:
    """Return for each table the columns of other tables that refer to its rows."""
    found: dict[str, list[tuple[str, str]]] = {}
    with _fresh_tables() as fresh:
        for (table,) in fresh.rows("select name from sqlite_master where type = 'table'"):
            for referred, column in fresh.rows('select "table", "from" from pragma_foreign_key_list(?)', (table,)):
                found.setdefault(referred, []).append((table, column))
    return found


class Table(NamedTuple):
    """A table: its columns, and the one whose integers are given by the store. `is_ordered`: its rows keep the order in
    which they were inserted."""

    name: str
    columns: list[str]
    key: str | None
    is_ordered: bool


def list_tables() -> list[Table]:
    """Return the tables of this version."""
    with _fresh_tables() as fresh:
        made = fresh.rows("select name, sql from sqlite_master where type = 'table' order by rowid")
        columns = {name: fresh.rows("select name from pragma_table_info(?)", (name,)) for name, _ in made}
    return [
        Table(
            name,
            [column for (column,) in columns[name]],
            integer_key(name) if f"{integer_key(name)} integer primary key" in sql else None,
            not sql.endswith("without rowid"),
        )
        for name, sql in made
    ]


def integer_key(table: str) -> str:
    """Return the column with the integer key of a table that others refer to."""
    return "n" if table == "run" else "id"


def list_statements() -> list[tuple[str, str]]:
    """Return the kind (table, index, trigger) and the statement of all that this version makes, in its order."""
    with _fresh_tables() as fresh:
        made = fresh.rows("select type, sql from sqlite_master where sql is not null order by rowid")
    return [(kind, " ".join(statement.split())) for kind, statement in made]


@contextmanager
def _fresh_tables() -> Iterator[SqliteSession]:
    """Open a store in memory with the tables of this version."""
    fresh = SqliteSession(":memory:")
    try:
        migrate(fresh)
        yield fresh
    finally:
        fresh.close()


def schema_differences(session: Session) -> list[str]:
    """List the tables and indexes of this version that the file lacks or has otherwise; further ones do no harm."""
    found = _schema_statements(session)
    return [
        f"{kind} {name} is {'missing' if (kind, name) not in found else 'not as this version makes it'}"
        for (kind, name), statement in _statements_of(MIGRATIONS).items()
        if found.get((kind, name)) != statement
    ]


@lru_cache(maxsize=1)
def _statements_of(_migrations: tuple[str, ...]) -> Mapping[tuple[str, str], str]:
    """Return by kind and name the statement of each table, index and trigger that these, this version's, make."""
    with _fresh_tables() as fresh:
        return _schema_statements(fresh)


def _schema_statements(session: Session) -> dict[tuple[str, str], str]:
    statements = session.rows("select type, name, sql from sqlite_master where sql is not null order by type, name")
    return {(kind, name): " ".join(sql.split()) for kind, name, sql in statements}
