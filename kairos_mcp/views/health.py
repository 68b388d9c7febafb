"""Report on the store: its path, size and versions, its damage, the servers that use it, and its runs by status."""

from __future__ import annotations

from dataclasses import asdict

import apsw

from kairos_mcp.core.calendar import DAY_MS
from kairos_mcp.core.errors import KairosError
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.outcome import Outcome
from kairos_mcp.store import integrity, ownership, retention
from kairos_mcp.store.connection import translate_errors
from kairos_mcp.store.database import Store
from kairos_mcp.store.session import Session, json_or_null

OLD_DAYS = 30  # runs that ended longer ago are shown as what could be pruned


def read_health(store: Store, at: int, *, thorough: bool) -> JsonObject:
    """Return the state of the store. Raises the store's errors where the file can't be opened; creates nothing.

    `thorough` reads everything: `damage` then lists what does not fit, and `prunable` what could be removed now (`at`,
    in milliseconds since 1970). Nothing more is read from a broken file.
    """
    found: JsonObject = {
        "store": str(store.path),
        "sqlite": apsw.sqlite_lib_version(),
        "exists": store.exists,
    }
    if not store.exists:
        return found
    reader = store.reader
    with translate_errors():
        found |= {
            "bytes": sum(file.stat().st_size for file in store.home.glob(f"{store.path.name}*")),
            "free_bytes": reader.pragma("freelist_count") * reader.pragma("page_size"),
            "schema_version": reader.pragma("user_version"),
        }
        if not thorough:
            return found | _servers_and_runs(store) | {"integrity": _quick_check(reader)}
        damage = _find_damage(store)
        found |= {"integrity": "; ".join(damage) or "ok", "damage": damage}
        if any(text.startswith(integrity.SQLITE_DAMAGE) for text in damage):
            return found  # what else could be read can't be believed
        old = retention.measure_prunable(reader, at - OLD_DAYS * DAY_MS)
        prunable = {"runs": old.runs, "bytes": old.bytes, "ended_days_ago": OLD_DAYS}
        return found | _servers_and_runs(store) | {"prunable": prunable}


def _quick_check(reader: Session) -> str:
    try:
        return "; ".join(str(line) for (line,) in reader.rows("pragma quick_check(5)"))
    except KairosError as damage:
        return damage.message


def _find_damage(store: Store) -> list[str]:
    """Find damage, in one state of the file, since others may write meanwhile."""
    try:
        with store.read_session() as session:
            session.rows("begin")
            return integrity.find_damage(session, Outcome)
    except KairosError as damage:
        return [f"{integrity.SQLITE_DAMAGE}: {damage.message}"]


def _servers_and_runs(store: Store) -> JsonObject:
    return {
        "servers": [asdict(each) for each in ownership.list_living(store.reader, store.home)],
        "runs": _runs(store.reader),
    }


def _runs(reader: Session) -> JsonObject:
    counts = reader.rows(
        f"select coalesce(json_extract({json_or_null('outcome')}, '$.status'), iif(outcome is not null, 'unreadable',"
        " iif(paused is null, 'open', 'paused'))), count(*)"
        " from run group by 1 order by 1",
    )
    total = reader.row("select count(*) from run")
    return {"total": total[0] if total else 0, **dict(list(counts))}
