"""Remove ended runs that are old enough, and the texts that nothing refers to any more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from kairos_mcp.core.calendar import DAY_MS
from kairos_mcp.core.errors import KairosError
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.settings.settings import Settings
from kairos_mcp.store import events, ownership, retention
from kairos_mcp.store.database import Job, Store
from kairos_mcp.store.retention import PrunableRun
from kairos_mcp.store.rows import Session

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


class Retention:
    """Removes old runs: when a person asks, and once a day in a server that starts runs, if `keep_days` is set."""

    def __init__(self, settings: Settings, store: Store, clock: Callable[[], int]) -> None:
        self._keep_days = settings.keep_days
        self._store = store
        self._clock = clock
        self._last: int | None = None
        self._sweeping: asyncio.Task[None] | None = None

    def sweep_if_due(self) -> None:
        """Start a sweep if the last one was a day ago. Called when a run is started."""
        now = self._clock()
        if self._keep_days is None or (self._last is not None and 0 <= now - self._last < DAY_MS):
            return
        self._last = now
        self._sweeping = asyncio.get_running_loop().create_task(self._sweep(self._keep_days))

    async def _sweep(self, days: int) -> None:
        try:
            await self.prune(days, shrink=False)
        except KairosError:
            return  # other users of the store get the same error and report it; tomorrow it is tried again

    async def close(self) -> None:
        """Stop; what is not removed yet is removed by the next sweep."""
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.gather(self._sweeping, return_exceptions=True)

    async def list_prunable(self, days: float, workspaces: Sequence[str] | None) -> list[PrunableRun]:
        """Return what `prune` would remove, of these workspaces alone; None: of all."""
        if not self._store.exists:
            return []
        before = self._clock() - int(days * DAY_MS)
        return await self._store.read(lambda session: retention.list_prunable(session, before, workspaces))

    async def prune(self, days: float, *, shrink: bool, among: Sequence[int] | None = None) -> PruneResult:
        """Remove the runs that ended at least `days` days ago, unless a kept run continues one of them.

        `among`: the numbers of the runs that are meant; None: all. `shrink`: give the space back to the disk, which is
        done only while no server lives on the store; else it is used again by what comes. Raises the store's errors.
        """
        store, before = self._store, self._clock() - int(days * DAY_MS)
        if not store.exists:
            return PruneResult(0, 0, 0, 0)
        size, gone, shrunk = await store.measure(), 0, False
        numbers = among
        if numbers is None:
            numbers = await store.read(lambda session: retention.find_prunable(session, before))
        for at in range(0, len(numbers), retention.RUNS_PER_TRANSACTION):
            some = numbers[at : at + retention.RUNS_PER_TRANSACTION]
            gone += await store.submit(partial(retention.remove_runs, numbers=some, before=before))
        if among is None:
            await store.submit(partial(events.remove_old, before=before))
            await store.submit(partial(events.remove_expired, at=self._clock()))
        texts = await _remove_unreferenced_texts(store) if gone else 0
        if shrink and gone and not await store.read(lambda session: ownership.list_living(session, store.owners)):
            shrunk = await store.shrink()
        unreadable = await store.read(lambda session: tuple(retention.find_unreadable_runs(session, before)))
        return PruneResult(gone, texts, size, await store.measure(), shrunk, unreadable)


async def _remove_unreferenced_texts(store: Store) -> int | None:
    """Remove the texts that nothing refers to, and return how many; None where others write all the time.

    They are searched outside of the writer, so that nobody waits, and removed only if nothing was written meanwhile.
    """
    for _ in range(MAX_TRIES):
        with store.read_session() as watch:
            seen = watch.read_version()
            found = await asyncio.to_thread(_unreferenced_texts, store)
            if not found or await store.submit(_text_removal_job(found, watch, seen)):
                return len(found)
    return None


def _unreferenced_texts(store: Store) -> list[str]:
    with store.read_session() as session, session.one_state():
        return retention.find_unreferenced_texts(session)


def _text_removal_job(hashes: Sequence[str], watch: Session, seen: int) -> Job[bool]:
    """Make the job that removes texts, unless somebody wrote since `watch` read the version `seen`.

    Within the job's transaction nobody else writes.
    """

    def remove(session: Session) -> bool:
        if watch.read_version() != seen:
            return False
        retention.remove_texts(session, hashes)
        return True

    return remove
