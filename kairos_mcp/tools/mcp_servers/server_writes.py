"""Lets a sandboxed server run only while somebody watches what it writes at protected paths of its workspace.

It is paused between its calls: what appears meanwhile is a person's, and what appears while it runs is undone.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from kairos_mcp.core.errors import Unreachable
from kairos_mcp.tools.commands.held_paths import HeldPaths
from kairos_mcp.tools.commands.protected_paths import SeenFolder, survey_protected_paths
from kairos_mcp.tools.commands.undo_writes import SaveTexts, UndoneWrites, WriteWatch
from kairos_mcp.tools.mcp_servers.server_processes import ServerProcesses
from kairos_mcp.tools.mcp_servers.server_sandbox import SandboxLimits


class ServerWrites:
    """What one server writes, by one watch from when the first begins that needs it running to when the last ends.

    Each who needs it has it undone at the end what is new by then; before the last one does so, the server is paused.
    So nothing that it writes comes after the last look. `covered_inodes` gives those that its sandbox covers.
    """

    def __init__(
        self,
        workspace: Path,
        read_limits: Callable[[], SandboxLimits],
        covered_inodes: Callable[[], Mapping[str, int]],
    ) -> None:
        self.processes = ServerProcesses()
        self.notes: tuple[str, ...] = ()  # on what was undone outside of calls
        self._workspace = workspace
        self._read_limits = read_limits
        self._covered_inodes = covered_inodes
        self._lock = threading.Lock()
        self._users = 0
        self._watch: WriteWatch | None = None
        self._limits: SandboxLimits | None = None  # by which was searched last
        self._seen: Mapping[str, SeenFolder] = {}
        self._ending: set[asyncio.Task[None]] = set()

    @contextmanager
    def watch_call(self, save: SaveTexts, key_prefix: str) -> Iterator[UndoneWrites]:
        """Let the server run inside the block. What is yielded says after the block what was undone, and kept by `save`
        under keys that begin with `key_prefix`. Raises Unreachable if the workspace can't be watched."""
        undone = UndoneWrites()
        self._begin()
        try:
            yield undone
        finally:
            found = self._end(save, key_prefix)
            undone.changes.extend(found.changes)
            undone.remarks.extend(found.remarks)

    @asynccontextmanager
    async def watch_outside_calls(self) -> AsyncIterator[None]:
        """Let the server run inside the block, as to start or to end. No record keeps what is undone then: it is put
        aside where it stands, and `notes` tell. Raises Unreachable if the workspace can't be watched."""
        beginning = asyncio.create_task(asyncio.to_thread(self._begin))
        try:
            await asyncio.shield(beginning)
            yield
        finally:
            ending = asyncio.create_task(self._end_outside_calls(beginning))
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)
            await asyncio.shield(ending)  # whoever is cancelled meanwhile leaves it to end

    async def _end_outside_calls(self, beginning: asyncio.Task[None]) -> None:
        await asyncio.wait([beginning])
        if beginning.exception() is None:
            undone = await asyncio.to_thread(self._end)
            self.notes += (*undone.changes, *undone.remarks)

    def _begin(self) -> None:
        with self._lock:
            if self._users == 0:
                self._watch = self._start_watch()
                self.processes.resume()
            self._users += 1

    def _start_watch(self) -> WriteWatch:
        try:
            root = os.open(self._workspace, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise Unreachable(f"The workspace can't be opened ({error.strerror}).", "Look where it is.") from None
        try:
            limits = self._read_limits()
            known = self._seen if limits == self._limits else {}
            survey = survey_protected_paths(root, limits.rules, (), limits.is_unreadable, known)
            self._limits, self._seen = limits, survey.seen
            return WriteWatch.start(root, limits.rules, HeldPaths(survey), (), limits.is_unreadable)
        except BaseException:
            os.close(root)
            raise

    def _end(self, save: SaveTexts | None = None, key_prefix: str = "") -> UndoneWrites:
        with self._lock:
            watch, is_last = self._watch, self._users == 1
            assert watch is not None
            try:
                is_paused = not is_last or self._pause()
                if save is None and not is_last:
                    return UndoneWrites()  # a call is under way, whose record keeps what it undoes
                undone = watch.undo(save, key_prefix, self._covered_inodes())
                if not is_paused:
                    undone.remarks.append("Its server could not be paused after the call, and was ended.")
                return undone
            finally:
                self._users -= 1
                if is_last:
                    self._watch = None
                    os.close(watch.root)

    def _pause(self) -> bool:
        """Pause the server; end one that can't be paused, and return False then."""
        if self.processes.pause():
            return True
        self.processes.kill()
        return False
