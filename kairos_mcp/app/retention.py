"""Keeps the house: removes ended runs that are old enough, and the texts that nothing refers to any more."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import apsw

from kairos_mcp.app.context import AppContext
from kairos_mcp.core.calendar import DAY_MS, day_at
from kairos_mcp.core.errors import KairosError, StoreBusy
from kairos_mcp.store import accounts, ownership, retention
from kairos_mcp.store.connection import connect, fetch_all, translate_errors
from kairos_mcp.store.database import Store
from kairos_mcp.store.notes import clock_behind_reason
from kairos_mcp.store.queries import read_data_version
from kairos_mcp.store.writer import Job

MAX_TRIES = 3  # of looking for texts while nobody writes; then they are left to the next time


@dataclass(frozen=True, slots=True)
class PruneResult:
    """What was removed, and how large the store was before and is now, in bytes. `texts` null: others wrote all the
    time, so texts were left to the next time. `shrunk`: what was free went back to the disk. `unreadable`: runs that
    were left since nobody can read what they need."""

    runs: int
    texts: int | None
    before: int
    after: int
    shrunk: bool = False
    unreadable: tuple[str, ...] = ()


class RetentionSweep:
    """Where `keep_days` is set, a server that starts runs removes the old ones beside its work, once a day."""

    def __init__(self, context: AppContext) -> None:
        self._context = context
        self._last: int | None = None
        self._sweeping: asyncio.Task[None] | None = None

    def sweep_if_due(self) -> None:
        """A run was started; is it time?"""
        now = self._context.clock()
        if self._context.settings.keep_days is None or (self._last is not None and 0 <= now - self._last < DAY_MS):
            return
        self._last = now
        self._sweeping = asyncio.get_running_loop().create_task(self._sweep(self._context.settings.keep_days))

    async def _sweep(self, days: int) -> None:
        try:
            await prune_runs(self._context, self._context.clock() - days * DAY_MS, shrink=False)
        except KairosError:
            return  # whoever works on the store meets the same, and is told; tomorrow it is tried again

    async def close(self) -> None:
        """Stop; what has not gone yet goes the next time."""
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.gather(self._sweeping, return_exceptions=True)


async def prune_runs(context: AppContext, before: int, *, shrink: bool) -> PruneResult:
    """Remove the runs that ended before this moment (milliseconds since 1970) and that no kept run needs.

    `shrink`: give the space back to the disk, which is done only while no server lives on the store; else it is used
    again by what comes. Raises the store's errors.
    """
    store = context.store
    if not store.exists:
        return PruneResult(0, 0, 0, 0)
    size, gone, shrunk = _store_size(store), 0, False
    numbers = retention.find_prunable(store.reader, before)
    for at in range(0, len(numbers), retention.RUNS_PER_TRANSACTION):
        gone += await store.submit(_removal_job(numbers[at : at + retention.RUNS_PER_TRANSACTION], before))
    texts = await _remove_unreferenced_texts(context) if gone else 0
    if shrink and gone and not ownership.list_living(store.reader, store.home):
        shrunk = await asyncio.to_thread(_shrink, store)
    return PruneResult(
        gone, texts, size, _store_size(store), shrunk, tuple(retention.find_unreadable_runs(store.reader, before))
    )


def _store_size(store: Store) -> int:
    """Of the file and of the log beside it, where the newest rows are, in bytes."""
    return sum(file.stat().st_size for file in (store.path, Path(f"{store.path}-wal")) if file.exists())


def _removal_job(numbers: Sequence[int], before: int) -> Job[int]:
    return lambda connection: retention.remove_runs(connection, numbers, before)


async def _remove_unreferenced_texts(context: AppContext) -> int | None:
    """Texts are looked for aside, so that nobody waits; they go only if nothing was written meanwhile."""
    for _ in range(MAX_TRIES):
        with context.store.read_connection() as watch:
            seen = read_data_version(watch)
            found = await asyncio.to_thread(_unreferenced_texts, context.store)
            if not found or await context.store.submit(_text_removal_job(found, watch, seen)):
                return len(found)
    return None


def _unreferenced_texts(store: Store) -> list[str]:
    with store.read_connection() as connection:
        fetch_all(connection, "begin")
        return retention.find_unreferenced_texts(connection)


def _text_removal_job(hashes: Sequence[str], watch: apsw.Connection, seen: int) -> Job[bool]:
    """Within the transaction nobody else writes; what was written before it, by anybody, the watch has seen."""

    def remove(connection: apsw.Connection) -> bool:
        if read_data_version(watch) != seen:
            return False
        retention.remove_texts(connection, hashes)
        return True

    return remove


def _shrink(store: Store) -> bool:
    connection = connect(store.path, "full")
    try:
        with translate_errors():
            connection.execute("vacuum")
            connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    except StoreBusy:
        return False  # somebody came meanwhile: the space is used again
    else:
        return True
    finally:
        connection.close()


async def trust_clock(context: AppContext, principal: str) -> list[str]:
    """Call the days after today a mistake of the clock, as a person says, and let runs that were paused for it go on;
    gives the names of those days."""
    at = context.clock()
    today = day_at(at, context.settings.time_zone).name

    def correct(connection: apsw.Connection) -> list[str]:
        gone = accounts.mark_days_mistaken(connection, principal, today, at)
        wake = "update run set resume_at = ? where principal = ? and paused = ? and outcome is null"
        fetch_all(connection, wake, (at, principal, clock_behind_reason(principal)))
        return gone

    return await context.store.submit(correct)
