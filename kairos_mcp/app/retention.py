"""Remove ended runs that are old enough, and the texts that nothing refers to any more."""

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
    """What was removed, and the store's size before and after, in bytes.

    `texts` None: others wrote all the time, so the texts are left to the next time. `shrunk`: the free space was given
    back to the disk. `unreadable`: runs that were kept, since it can't be read what they need.
    """

    runs: int
    texts: int | None
    before: int
    after: int
    shrunk: bool = False
    unreadable: tuple[str, ...] = ()


class RetentionSweep:
    """Removes old runs once a day in a server that starts runs, if `keep_days` is set."""

    def __init__(self, context: AppContext) -> None:
        self._context = context
        self._last: int | None = None
        self._sweeping: asyncio.Task[None] | None = None

    def sweep_if_due(self) -> None:
        """Start a sweep if the last one was a day ago. Called when a run is started."""
        now = self._context.clock()
        if self._context.settings.keep_days is None or (self._last is not None and 0 <= now - self._last < DAY_MS):
            return
        self._last = now
        self._sweeping = asyncio.get_running_loop().create_task(self._sweep(self._context.settings.keep_days))

    async def _sweep(self, days: int) -> None:
        try:
            await prune_runs(self._context, self._context.clock() - days * DAY_MS, shrink=False)
        except KairosError:
            return  # other users of the store get the same error and report it; tomorrow it is tried again

    async def close(self) -> None:
        """Stop; what is not removed yet is removed by the next sweep."""
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
    """Return the bytes of the state file and of its write-ahead log, where the newest rows are."""
    return sum(file.stat().st_size for file in (store.path, Path(f"{store.path}-wal")) if file.exists())


def _removal_job(numbers: Sequence[int], before: int) -> Job[int]:
    return lambda connection: retention.remove_runs(connection, numbers, before)


async def _remove_unreferenced_texts(context: AppContext) -> int | None:
    """Remove the texts that nothing refers to, and return how many; None where others write all the time.

    They are searched outside of the writer, so that nobody waits, and removed only if nothing was written meanwhile.
    """
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
    """Make the job that removes texts, unless somebody wrote since `watch` read the version `seen`.

    Within the job's transaction nobody else writes.
    """

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
        return False  # somebody opened the store meanwhile: the free space stays in the file and is used again
    else:
        return True
    finally:
        connection.close()


async def trust_clock(context: AppContext, principal: str) -> list[str]:
    """Mark the days after today as mistakes of the clock, let runs that were paused for it go on, and return their
    names."""
    at = context.clock()
    today = day_at(at, context.settings.time_zone).name

    def correct(connection: apsw.Connection) -> list[str]:
        gone = accounts.mark_days_mistaken(connection, principal, today, at)
        wake = "update run set resume_at = ? where principal = ? and paused = ? and outcome is null"
        fetch_all(connection, wake, (at, principal, clock_behind_reason(principal)))
        return gone

    return await context.store.submit(correct)
