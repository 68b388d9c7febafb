"""The runs of a store held against the laws from outside: each asks again what it asked, and the books add up."""

from __future__ import annotations

from pathlib import Path

import apsw

from kairos_mcp.core.errors import KairosError
from kairos_mcp.history.replay_check import RecordedEntry, Recording, replay
from kairos_mcp.specs.build import VERSIONS, load_spec
from kairos_mcp.store import integrity, queries, schema, texts
from kairos_mcp.store.codec import decode_answer
from kairos_mcp.store.connection import connect, fetch_all


def differences(db: Path) -> list[str]:
    """What is wrong with the runs of this store; empty where nothing is. Runs of another version are passed over."""
    connection = connect(db, "process", read_only=True)
    try:
        if fetch_all(connection, "pragma user_version")[0][0] != len(schema.MIGRATIONS):
            return []
        fetch_all(connection, "begin")
        numbers = [n for (n,) in fetch_all(connection, "select n from run order by n")]
        return [
            *integrity.find_damage(connection),
            *(said for n in numbers if (said := _difference(connection, n)) is not None),
        ]
    finally:
        connection.close()


def _difference(connection: apsw.Connection, n: int) -> str | None:
    """Where a run asks something else than it did."""
    run = queries.run_by_number(connection, n)
    if VERSIONS.get(run.flow) != run.version:
        return None
    entries = [
        RecordedEntry(row.path, row.kind, row.digest, decode_answer(row.body) if row.body is not None else None)
        for row in queries.read_record(connection, n)
    ]
    try:
        loaded = load_spec(run.spec, lambda content_hash: texts.read_text(connection, content_hash) or "")
        found = replay(Recording(run.id, loaded, entries, run.outcome))
    except KairosError as unreadable:
        return f"{run.id}: {unreadable}"
    return None if found.identical else f"{run.id}: {found.first_difference}"
