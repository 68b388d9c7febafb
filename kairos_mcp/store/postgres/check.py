"""What a database server is, whether it keeps what Kairos needs of it, and what the tables lack: for `doctor`."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from contextlib import closing
from typing import NamedTuple

from kairos_mcp.store.postgres.connection import Connection, translate_errors
from kairos_mcp.store.postgres.schema import COLUMNS, LEAST_VERSION, OWN_TABLES, list_renewals, list_statements
from kairos_mcp.store.postgres.session import PostgresSession
from kairos_mcp.store.rows import Session
from kairos_mcp.store.schema import list_tables

_LOOK = """
    select current_setting('server_version_num')::integer, current_setting('server_version'),
        (extract(epoch from clock_timestamp()) * 1000)::bigint,
        current_setting('synchronous_commit') <> 'off' and current_setting('fsync') = 'on'
"""
_PROCESS = "select pg_backend_pid()"
CHANNEL = "kairos_check"
_MADE = re.compile(r'create (table|index|unique index|trigger|function) "?(\w+)', re.IGNORECASE)
_RENEWED = re.compile(r"(function|table) (\w+)")
_FOUND = """
    select 'table', relname from pg_class
        where relkind in ('r', 'p') and relnamespace = current_schema()::regnamespace
    union select case when indisunique then 'unique index' else 'index' end, relname
        from pg_index join pg_class on oid = indexrelid
        where indisvalid and relnamespace = current_schema()::regnamespace
    union select 'trigger', tgname from pg_trigger join pg_class on pg_class.oid = tgrelid
        where tgenabled <> 'D' and relnamespace = current_schema()::regnamespace
    union select 'function', proname from pg_proc where pronamespace = current_schema()::regnamespace
"""


class ServerCheck(NamedTuple):
    """`version`: as the server writes it. `ahead_s`: of this machine's clock is the database's. `is_durable`: what was
    committed outlives a loss of power. `keeps_session`: a session hears of commits and stays with its connection; not
    so behind a pooler that hands out connections for single transactions."""

    version: str
    is_new_enough: bool
    ahead_s: float
    is_durable: bool
    keeps_session: bool


def check_server(connect: Callable[[], Connection]) -> ServerCheck:
    """Look at the server of a database, over two connections. Raises the store's errors."""
    with (
        closing(PostgresSession(connect())) as session,
        closing(PostgresSession(connect())) as beside,
        translate_errors(),
    ):
        found = session.row(_LOOK)
        assert found is not None
        number, version, at_ms, is_durable = found
        ahead_s = at_ms / 1000 - time.time()
        session.rows(f"listen {CHANNEL}")
        session.rows(f"notify {CHANNEL}")
        heard = [notice.pid for notice in session.connection.notifies(timeout=1, stop_after=1)]
        pids, other = {session.row(_PROCESS) for _ in range(3)}, beside.row(_PROCESS)
    # Of a pooler that nobody else uses, a session may have the same connection again and again: so has any other then.
    keeps_session = bool(heard) and len(pids) == 1 and other not in pids
    return ServerCheck(version, number >= LEAST_VERSION, ahead_s, bool(is_durable), keeps_session)


def find_missing(session: Session) -> list[str]:
    """List what this version makes and the database lacks, a sentence each; what others made there does no harm."""
    statements = [statement.strip() for statement in (*list_statements(), *OWN_TABLES)]
    made = {(part[1].lower(), part[2]): None for each in statements if (part := _MADE.match(each))}
    found, columns = set(session.rows(_FOUND)), set(session.rows(COLUMNS))
    missing = [f"{kind} {name} is missing" for kind, name in made if (kind, name) not in found]
    for renewal in list_renewals(session):
        kind, name = _RENEWED.findall(renewal)[0]
        if not any(name in text for text in missing):
            missing.append(f"{kind} {name} is not as this version makes it: `kairos-mcp store migrate` renews it")
    return missing + [
        f"column {column} of table {table.name} is missing"
        for table in list_tables()
        if ("table", table.name) in found
        for column in table.columns
        if (table.name, column) not in columns
    ]
