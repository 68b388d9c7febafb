"""Report on the store: its path, size and versions, its damage, the servers that use it, and its runs by status."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import apsw

from kairos_mcp.core.calendar import DAY_MS
from kairos_mcp.core.errors import KairosError
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.outcome import Outcome
from kairos_mcp.store import integrity, ownership, retention
from kairos_mcp.store.database import Store
from kairos_mcp.store.session import Session, json_or_null

OLD_DAYS = 30  # runs that ended longer ago are shown as what could be pruned


async def read_health(store: Store, at: int, *, thorough: bool) -> JsonObject:
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
    found |= {"bytes": sum(file.stat().st_size for file in store.home.glob(f"{store.path.name}*"))}
    if not thorough:
        return found | await store.read(
            lambda session: (
                _file_figures(session) | _servers_and_runs(session, store.home) | {"integrity": _quick_check(session)}
            )
        )
    found |= await store.read(_file_figures)
    damage = _find_damage(store)
    found |= {"integrity": "; ".join(damage) or "ok", "damage": damage}
    if any(text.startswith(integrity.SQLITE_DAMAGE) for text in damage):
        return found  # what else could be read can't be believed
    return found | await store.read(
        lambda session: _servers_and_runs(session, store.home) | {"prunable": _prunable(session, at)}
    )


def _file_figures(session: Session) -> JsonObject:
    (free_pages,), (page_bytes,), (version,) = (
        *session.rows("pragma freelist_count"),
        *session.rows("pragma page_size"),
        *session.rows("pragma user_version"),
    )
    return {"free_bytes": free_pages * page_bytes, "schema_version": version}


def _quick_check(session: Session) -> str:
    try:
        return "; ".join(str(line) for (line,) in session.rows("pragma quick_check(5)"))
    except KairosError as damage:
        return damage.message


def _find_damage(store: Store) -> list[str]:
    """Find damage, in one state of the file, since others may write meanwhile, and by a session of its own, since
    another one may have in memory what is damaged on the disk."""
    try:
        with store.read_session() as session:
            session.rows("begin")
            return integrity.find_damage(session, Outcome)
    except KairosError as damage:
        return [f"{integrity.SQLITE_DAMAGE}: {damage.message}"]


def _prunable(session: Session, at: int) -> JsonObject:
    old = retention.measure_prunable(session, at - OLD_DAYS * DAY_MS)
    return {"runs": old.runs, "bytes": old.bytes, "ended_days_ago": OLD_DAYS}


def _servers_and_runs(session: Session, home: Path) -> JsonObject:
    return {
        "servers": [asdict(each) for each in ownership.list_living(session, home)],
        "runs": _runs(session),
    }


def _runs(session: Session) -> JsonObject:
    counts = session.rows(
        f"select coalesce(json_extract({json_or_null('outcome')}, '$.status'), case when outcome is not null then"
        " 'unreadable' when paused is null then 'open' else 'paused' end), count(*)"
        " from run group by 1 order by 1",
    )
    total = session.row("select count(*) from run")
    return {"total": total[0] if total else 0, **dict(list(counts))}
