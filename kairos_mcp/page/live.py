"""Send every open page what has changed as it is committed: one look at the store serves all pages.

Rows are the events: a look reads what was committed since the last one, and makes one frame of it for all viewers. A
frame contains whole items, so receiving it twice does no harm. The id of a frame of steps is the run's `seq`: a viewer
that reconnects gets what came after it.
"""

from __future__ import annotations

import asyncio
import json
import time
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import suppress
from dataclasses import field
from typing import TYPE_CHECKING, Any

from kairos_mcp import __version__
from kairos_mcp.core.errors import KairosError
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.quick_dataclass import dataclass

if TYPE_CHECKING:
    from kairos_mcp.app.app import App
    from kairos_mcp.views.steps import ShownSteps

LOOK_S = 0.05  # between two looks for one viewer
DOUBLED_BY = 50  # viewers, for whom looks come half as often: what is sent to each is most of what a look costs
RUN_S = 0.2  # between two frames of a run beside its steps, at most
LIST_S = 0.5  # between two frames of the list, at most
REST_S = 5.0  # between two looks at what changes without a commit: whether a server still lives
ALIVE_S = 20.0  # between two signs of life on an idle line
LISTED_RUNS = 60
UNREAD_FRAMES = 64  # a viewer that leaves more unread is dropped, and comes back by the id of the last
MAX_VIEWERS = 128  # a quarter of what one process has places for
GZIP_BEGINNING = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"


class Frame:
    """An event as it is sent, plain and compressed; the compressed ones of a line make one gzip stream."""

    def __init__(self, text: str) -> None:
        self.plain = text.encode()
        self._compressed: bytes | None = None

    @property
    def compressed_bytes(self) -> bytes:
        """Compressed once for all viewers: it refers to no other frame, and ends at a whole byte."""
        if self._compressed is None:
            deflating = zlib.compressobj(6, zlib.DEFLATED, -zlib.MAX_WBITS)
            self._compressed = deflating.compress(self.plain) + deflating.flush(zlib.Z_SYNC_FLUSH)
        return self._compressed


ALIVE = Frame(": still here\n\n")


def make_frame(event: str, data: Any, seq: int | None = None) -> Frame:
    """Make an event; with `seq` as its id."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    number = "" if seq is None else f"id: {seq}\n"
    return Frame(f"{number}event: {event}\ndata: {text}\n\n")


@dataclass(slots=True, eq=False)
class Viewer:
    """An open page, by its line. Frames wait here until they are sent; `is_dropped`: it left too many unread."""

    frames: list[Frame] = field(default_factory=list)
    news: asyncio.Event = field(default_factory=asyncio.Event)
    is_dropped: bool = False

    async def take_frames(self) -> list[Frame]:
        """Return what one look has found, once it has found something; a sign of life where that takes long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(ALIVE_S):
                await self.news.wait()
        self.news.clear()
        found, self.frames = self.frames, []
        return found or [ALIVE]


@dataclass(slots=True, eq=False)
class WatchedRun:
    """A run that somebody looks at: its steps, what was sent of it last, and who looks."""

    run_id: str
    steps: ShownSteps
    head: JsonObject
    viewers: set[Viewer] = field(default_factory=set)
    sent_at: float = 0.0
    is_due: bool = False


class Live:
    """The open pages, and the one task that looks for them."""

    def __init__(self, get_app: Callable[[], Awaitable[App]]) -> None:
        self._get_app = get_app
        self._viewers: set[Viewer] = set()
        self._runs: dict[str, WatchedRun] = {}
        self._rows: dict[str, JsonObject] = {}  # of the list, as they were told last
        self._waits = 0
        self._task: asyncio.Task[None] | None = None
        self._version = -1
        self._looked_at = self._listed_at = 0.0
        self._is_list_due = False

    @property
    def is_looking(self) -> bool:
        """Whether there is anybody to look for."""
        return self._task is not None

    @property
    def is_full(self) -> bool:
        """Whether there are as many open pages as one process takes."""
        return len(self._viewers) >= MAX_VIEWERS

    async def open_line(self, run_id: str | None, after: int | None, *, compress: bool) -> AsyncIterator[bytes]:
        """Begin a line: of the list of runs, and with `run_id` of that run, from its `seq` `after` on.

        Raises UnknownRun, Unreadable.
        """
        app = await self._get_app()
        run = None if run_id is None else self._runs.get(run_id) or await _read_run(app, run_id)
        if not self._viewers:
            self._rows = {}
            await self._read_list(app)
        return self._send(app, run, after, compress=compress)

    async def _send(
        self, app: App, run: WatchedRun | None, after: int | None, *, compress: bool
    ) -> AsyncIterator[bytes]:
        viewer = Viewer()
        try:
            frames = self._subscribe(app, viewer, run, after)
            if compress:
                yield GZIP_BEGINNING
            while not viewer.is_dropped:
                yield b"".join(frame.compressed_bytes if compress else frame.plain for frame in frames)
                frames = await viewer.take_frames()
        finally:
            self._leave(viewer)

    def _subscribe(self, app: App, viewer: Viewer, run: WatchedRun | None, after: int | None) -> list[Frame]:
        """Subscribe a viewer and return its first messages."""
        self._viewers.add(viewer)
        if self._task is None:
            self._task = asyncio.create_task(self._look_again_and_again(app))
        server = make_frame("me", {"home": str(app.settings.home), "version": __version__})
        frames = [server, self._list_frame(self._rows.values(), is_all=True)]
        if run is None:
            return frames
        run = self._runs.setdefault(run.run_id, run)
        run.viewers.add(viewer)
        # What the viewer lacks that had come to `after`; everything for None.
        changed = [step for _, step in run.steps.since(after)]
        return [*frames, make_frame("run", run.head), make_frame("steps", changed, run.steps.seq)]

    def _leave(self, viewer: Viewer) -> None:
        self._viewers.discard(viewer)
        for run in list(self._runs.values()):
            run.viewers.discard(viewer)
            if not run.viewers:
                del self._runs[run.run_id]
        if not self._viewers and self._task is not None:
            self._task.cancel()
            self._task = None

    async def _look_again_and_again(self, app: App) -> None:
        while True:
            await asyncio.sleep(LOOK_S * (1 + len(self._viewers) / DOUBLED_BY))
            with suppress(KairosError, OSError):  # the store is busy or gone; the next request that needs it reports it
                await self._look(app)
            self._wake_viewers()

    async def _look(self, app: App) -> None:
        now, version = time.monotonic(), await app.overview.read_version()
        is_rest_over = now - self._looked_at >= REST_S
        if version != self._version or is_rest_over:
            self._version, self._looked_at, self._is_list_due = version, now, True
            for run in list(self._runs.values()):
                await self._look_at_steps(app, run)
                run.is_due = True
        for run in list(self._runs.values()):
            if run.is_due and now - run.sent_at >= RUN_S:
                await self._look_at_run(app, run, now)
        if self._is_list_due and now - self._listed_at >= LIST_S:
            self._listed_at, self._is_list_due = now, False
            changed = await self._read_list(app, anew=is_rest_over)
            if changed is not None:
                self._tell(self._viewers, changed)

    async def _look_at_steps(self, app: App, run: WatchedRun) -> None:
        before = run.steps.seq
        with suppress(KairosError):  # a damaged row: the report of the run says so
            await app.overview.read_steps(run.steps)
        changed = [step for _, step in run.steps.since(before)] if run.steps.seq != before else []
        if changed:
            self._tell(run.viewers, make_frame("steps", changed, run.steps.seq))

    async def _look_at_run(self, app: App, run: WatchedRun, now: float) -> None:
        run.sent_at, run.is_due = now, False
        head = await app.overview.read_run(run.run_id)
        if head != run.head:
            run.head = head
            self._tell(run.viewers, make_frame("run", head))

    async def _read_list(self, app: App, *, anew: bool = False) -> Frame | None:
        """Read the rows that changed; return a frame of them, None where none did.

        `anew`: also of runs that have no new commit, since a server may have ended.
        """
        rows: dict[str, JsonObject] = {}
        for each in await app.overview.newest(LISTED_RUNS):
            known = self._rows.get(each.run_id)
            is_same = known is not None and known["seq"] == each.seq and (each.has_ended or not anew)
            rows[each.run_id] = known if is_same and known is not None else await app.overview.row(each.run_id)
        waits = await app.overview.count_waiting() + len(await app.tools.list_waiting())
        changed = [row for run_id, row in rows.items() if row != self._rows.get(run_id)]
        gone = [run_id for run_id in self._rows if run_id not in rows]
        is_same = not changed and not gone and waits == self._waits
        self._rows, self._waits = rows, waits
        return None if is_same else self._list_frame(changed, gone)

    def _list_frame(self, rows: Collection[JsonObject], gone: Collection[str] = (), *, is_all: bool = False) -> Frame:
        return make_frame("runs", {"rows": list(rows), "gone": list(gone), "all": is_all, "waits": self._waits})

    def _tell(self, viewers: Collection[Viewer], frame: Frame) -> None:
        for viewer in viewers:
            if len(viewer.frames) < UNREAD_FRAMES:
                viewer.frames.append(frame)
            else:
                viewer.is_dropped = True

    def _wake_viewers(self) -> None:
        """Have what a look has found sent, to each viewer at once."""
        for viewer in self._viewers:
            if viewer.frames:
                viewer.news.set()


async def _read_run(app: App, run_id: str) -> WatchedRun:
    """Return a run as somebody begins to look at it. Raises UnknownRun, Unreadable."""
    steps = await app.overview.watch_steps(run_id)
    await app.overview.read_steps(steps)
    return WatchedRun(run_id, steps, await app.overview.read_run(run_id))
