"""Report on the store: its path, size and versions, its damage, the servers that use it, its runs, and what waits."""

from __future__ import annotations

from dataclasses import asdict

from kairos_mcp.core.calendar import DAY_MS
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.outcomes import Outcome
from kairos_mcp.store import gauges, integrity, ownership, retention
from kairos_mcp.store.database import Store
from kairos_mcp.store.rows import Session, json_or_null, read_together

OLD_DAYS = 30  # runs that ended longer ago are shown as what could be pruned


async def read_health(store: Store, at: int, *, thorough: bool) -> JsonObject:
    """Return the state of the store. Raises the store's errors where the file can't be opened; creates nothing.

    `thorough` reads everything: `damage` then lists what does not fit, and `prunable` what could be removed now (`at`,
    in milliseconds since 1970). Nothing more is read from a broken file.
    """
    found = store.describe()
    if not store.exists:
        return found
    found |= {"bytes": await store.measure()} | await store.read_figures()
    if not thorough:
        found |= await store.read(lambda session: _servers_and_runs(session, store, at))
        return found | {"integrity": await store.check_quickly()}
    damage = store.find_damage(Outcome)
    found |= {"integrity": "; ".join(damage) or "ok", "damage": damage}
    if any(text.startswith(integrity.STORE_DAMAGE) for text in damage):
        return found  # what else could be read can't be believed

    def read_rest(session: Session) -> JsonObject:
        runs, size = retention.measure_prunable(session, at - OLD_DAYS * DAY_MS)
        prunable = {"runs": runs, "bytes": size, "ended_days_ago": OLD_DAYS}
        return _servers_and_runs(session, store, at) | {"prunable": prunable}

    return found | await store.read(read_rest)


def _servers_and_runs(session: Session, store: Store, at: int) -> JsonObject:
    servers, stands = read_together(
        session,
        lambda session: ownership.list_living(session, store.owners),
        lambda session: gauges.read_gauges(session, store.owners, store.owner_number, at),
    )
    return {
        "servers": [asdict(each) for each in servers],
        "runs": _runs(session),
        "open_runs": stands.open_runs._asdict(),
        "paused": {reason: count for reason, count in stands.paused.items() if count},
        "oldest_wait_s": {kind: waited // 1000 for kind, waited in stands.waits_ms.items() if waited},
        "driving": stands.living._asdict(),
    }


def _runs(session: Session) -> JsonObject:
    counts = session.rows(
        f"select coalesce(json_extract({json_or_null('outcome')}, '$.status'), case when outcome is not null then"
        " 'unreadable' when paused is null then 'open' else 'paused' end), count(*)"
        " from run group by 1 order by 1",
    )
    total = session.row("select count(*) from run")
    return {"total": total[0] if total else 0, **dict(list(counts))}
