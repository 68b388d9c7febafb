"""A store without rows, for functions that are given a session: in memory, or in a schema of a database."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from kairos_mcp.store import schema
from kairos_mcp.store.connection import SqliteSession
from kairos_mcp.store.rows import Session
from support import postgres

WHOLE_SWEEP = 2_000 if postgres.is_chosen() else 100_000
"""Random histories of a whole sweep. On a database fewer: to empty its tables takes as long as many a history."""


@contextmanager
def open_empty_store() -> Iterator[Session]:
    if not postgres.is_chosen():
        session = SqliteSession(":memory:")
        schema.migrate(session)
        yield session
        session.close()
        return
    with postgres.open_session(postgres.make_schema(os.environ[postgres.CHOICE])) as session:
        yield session


def empty_tables(session: Session, *tables: str) -> None:
    """Delete their rows; the next ones are numbered from 1."""
    if isinstance(session, SqliteSession):
        for table in tables:
            session.rows(f"delete from {table}")
    else:
        session.rows(f"truncate {', '.join(tables)} restart identity")
