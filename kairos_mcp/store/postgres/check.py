"""What a database server is, and whether it keeps what Kairos needs of it: for `doctor`."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from kairos_mcp.store.postgres.connection import Connection, translate_errors
from kairos_mcp.store.postgres.session import PostgresSession

LEAST_VERSION = 160_000  # of PostgreSQL: aliases of subqueries
_LOOK = """
    select current_setting('server_version_num')::integer, current_setting('server_version'),
        (extract(epoch from clock_timestamp()) * 1000)::bigint,
        current_setting('synchronous_commit') <> 'off' and current_setting('fsync') = 'on'
"""
CHANNEL = "kairos_check"


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
    """Look at the server of a database. Raises the store's errors."""
    session = PostgresSession(connect())
    try:
        with translate_errors():
            found = session.row(_LOOK)
            assert found is not None
            number, version, at_ms, is_durable = found
            ahead_s = at_ms / 1000 - time.time()
            session.rows(f"listen {CHANNEL}")
            session.rows(f"notify {CHANNEL}")
            heard = [notice.pid for notice in session.connection.notifies(timeout=1, stop_after=1)]
            pids = {session.row("select pg_backend_pid()") for _ in range(3)}
    finally:
        session.close()
    return ServerCheck(version, number >= LEAST_VERSION, ahead_s, bool(is_durable), bool(heard) and len(pids) == 1)
