"""Notice what subscribers want to be told of, by one look at the store for all of them; none while there is nobody.

What a run has to say is its `seq`, which rises with each commit of any process. A look follows a commit after a moment,
so that many commits are one change, and comes every few seconds in any case.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import field
from typing import NamedTuple

from kairos_mcp.app.context import AppContext
from kairos_mcp.app.run_log import MAX_OPEN, RunLog
from kairos_mcp.app.run_pool import EVERY_RUN
from kairos_mcp.app.runs import LISTED_RUNS
from kairos_mcp.core.errors import KairosError
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.execution.accounting import day_to_charge
from kairos_mcp.store import accounts, find_runs, mandates, run_changes
from kairos_mcp.store.rows import Session

LOOK_S = 0.25  # from a commit to the look that follows it
REST_S = 5.0  # between two looks at most; and between two reported changes of the list
MAX_WATCHERS = 1_024


class Topic(NamedTuple):
    """What may change: a `run` or a `mandate` by its id, the `inbox`, the `budget`, the newest `runs`, only which ones
    these are (`list`), or every run that a log follows (`log`)."""

    kind: str
    id: str = ""


LIST, LOG = Topic("list"), Topic("log")
Versions = Mapping[Topic, object]


@dataclass(slots=True, eq=False)
class Watcher:
    """A subscriber of a principal. What changed waits here until it is taken, each topic once."""

    principal: str
    topics: set[Topic] = field(default_factory=set)
    _changed: dict[Topic, None] = field(default_factory=dict)
    _event: asyncio.Event = field(default_factory=asyncio.Event)

    def notice(self, topics: Iterable[Topic]) -> None:
        """Keep those of these topics that it watches until they are taken."""
        self._changed |= dict.fromkeys(topic for topic in topics if topic in self.topics)
        if self._changed:
            self._event.set()

    async def take(self) -> list[Topic]:
        """Return what has changed since the last call, as soon as there is something."""
        await self._event.wait()
        self._event.clear()
        changed, self._changed = list(self._changed), {}
        return changed


class Watch(RunLog):
    """The subscribers of this server, the one task that looks for them, and what a log tells of runs."""

    def __init__(self, context: AppContext) -> None:
        super().__init__(context)
        self._watchers: set[Watcher] = set()
        self._seen: dict[tuple[str, Topic], object] = {}  # by principal
        self._listed_at: dict[str, float] = {}  # when a change of the list was reported
        self._task: asyncio.Task[None] | None = None

    @property
    def is_looking(self) -> bool:
        """Whether there is anybody to look for."""
        return self._task is not None

    @property
    def is_full(self) -> bool:
        """Whether there are as many subscribers as one server takes."""
        return len(self._watchers) >= MAX_WATCHERS

    @contextmanager
    def watching(self, principal: str) -> Iterator[Watcher]:
        """A subscriber while the block lasts; it watches nothing yet."""
        watcher = Watcher(principal)
        self._watchers.add(watcher)
        if self._task is None:
            self._context.watcher.watch()
            self._task = asyncio.create_task(self._look_again_and_again())
        try:
            yield watcher
        finally:
            self._watchers.discard(watcher)
            if not self._watchers:
                self.close()

    async def add(self, watcher: Watcher, topics: Collection[Topic]) -> None:
        """Have the subscriber told of these topics too, from what they are now."""
        versions = await self._read({watcher.principal: set(topics)})
        for topic, version in versions[watcher.principal].items():
            self._seen.setdefault((watcher.principal, topic), version)
        watcher.topics.update(topics)

    def close(self) -> None:
        """Stop looking."""
        if self._task is not None:
            self._task.cancel()
        self._task = None
        self._seen.clear()

    async def _look_again_and_again(self) -> None:
        change = self._next_change()
        try:
            while True:
                await change
                await asyncio.sleep(LOOK_S)
                change = self._next_change()  # before the look: what is committed during it brings the next one
                with suppress(KairosError, OSError):  # the store is busy or gone: a request that needs it reports that
                    await self._look()
        finally:
            change.cancel()

    def _next_change(self) -> asyncio.Task[None]:
        return asyncio.create_task(self._pool.change_signal.wait((EVERY_RUN,), REST_S, urgent=False))

    async def _look(self) -> None:
        wanted: dict[str, set[Topic]] = {}
        for watcher in self._watchers:
            wanted.setdefault(watcher.principal, set()).update(watcher.topics)
        found = await self._read(wanted)
        now = time.monotonic()
        changed: dict[str, list[Topic]] = {}
        for principal, versions in found.items():
            for topic, version in versions.items():
                if self._seen.get((principal, topic), version) == version:
                    self._seen[principal, topic] = version
                elif topic != LIST or now - self._listed_at.get(principal, -math.inf) >= REST_S:
                    self._seen[principal, topic] = version
                    changed.setdefault(principal, []).append(topic)
            if LIST in changed.get(principal, ()):
                self._listed_at[principal] = now
        for watcher in self._watchers:
            watcher.notice(changed.get(watcher.principal, ()))
        for gone in [key for key in self._seen if key[1] not in wanted.get(key[0], ())]:
            del self._seen[gone]

    async def _read(self, wanted: Mapping[str, set[Topic]]) -> dict[str, Versions]:
        if not self._store.exists:
            return {principal: dict.fromkeys(topics) for principal, topics in wanted.items()}
        return await self._store.read(
            lambda session: {
                principal: self._versions(session, principal, topics) for principal, topics in wanted.items()
            }
        )

    def _versions(self, session: Session, principal: str, topics: set[Topic]) -> Versions:
        """Return a value per topic that changes whenever the topic does."""
        versions: dict[Topic, object] = dict.fromkeys(topics)
        run_ids = [topic.id for topic in topics if topic.kind == "run"]
        for run in run_changes.runs_by_id(session, principal, run_ids) if run_ids else ():
            versions[Topic("run", run.run_id)] = run.seq
        if {Topic("runs"), LIST} & topics:
            workspaces = self._context.listed_workspaces
            newest = run_changes.newest_runs(session, principal, workspaces, LISTED_RUNS)
            versions |= {Topic("runs"): [(run.run_id, run.seq) for run in newest], LIST: [run.run_id for run in newest]}
        if LOG in topics:
            workspaces = self._context.listed_workspaces
            followed = run_changes.open_and_newest_runs(session, principal, workspaces, MAX_OPEN, LISTED_RUNS)
            versions[LOG] = [(run.run_id, run.seq) for run in followed]
        if Topic("inbox") in topics:
            waiting = find_runs.list_waiting_for_person(session, principal, self._context.listed_workspaces)
            versions[Topic("inbox")] = [
                (run.run_id, run.news_seq) for run in run_changes.runs_by_id(session, principal, waiting)
            ]
        if Topic("budget") in topics:
            day = day_to_charge(session, principal, self._clock(), self._settings.time_zone).day.name
            versions[Topic("budget")] = (day, accounts.find_day_account(session, principal, day))
        for topic in topics:
            if topic.kind == "mandate":
                rows = mandates.find_by_id(session, principal, topic.id)
                runs = [mandates.newest_run(session, row.principal, row.workspace or "", row.id) for row in rows]
                versions[topic] = [(row.digest, run and (run.id, run.seq)) for row, run in zip(rows, runs, strict=True)]
        return {topic: version for topic, version in versions.items() if topic in topics}
