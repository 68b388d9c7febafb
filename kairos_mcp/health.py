"""How the store is: where it lies, its size and versions, who lives on it, its runs by status."""

from __future__ import annotations

import apsw

from kairos_mcp.errors import KairosError
from kairos_mcp.messages import JsonObject
from kairos_mcp.store import owners
from kairos_mcp.store.connection import mapped_errors, row, rows
from kairos_mcp.store.store import Store


def health(store: Store) -> JsonObject:
    """Raises the store's errors where the file can't be opened. Nothing is made only to be looked at."""
    found: JsonObject = {
        "store": str(store.path),
        "sqlite": apsw.sqlite_lib_version(),
        "exists": store.exists,
    }
    if not store.exists:
        return found
    reader = store.reader
    with mapped_errors():
        return found | {
            "bytes": store.path.stat().st_size,
            "schema_version": reader.pragma("user_version"),
            "integrity": _integrity(reader),
            "servers": [{"pid": pid, "via": via} for pid, via in owners.living(reader, store.home)],
            "runs": _runs(reader),
        }


def _integrity(reader: apsw.Connection) -> str:
    try:
        with mapped_errors():
            return "; ".join(str(line) for (line,) in rows(reader, "pragma integrity_check(5)"))
    except KairosError as damage:
        return damage.message


def _runs(reader: apsw.Connection) -> JsonObject:
    counts = rows(
        reader,
        "select coalesce(json_extract(outcome, '$.status'), iif(paused is null, 'open', 'paused')), count(*)"
        " from run group by 1 order by 1",
    )
    total = row(reader, "select count(*) from run")
    return {"total": total[0] if total else 0, **dict(list(counts))}
