"""Applies approved changes to a workspace: all or none, even if the server crashes in between.

As in `tools/files/transaction.py`: an intent is stored first, with every state on both sides; their contents are blobs
on the disk by then. Recovery after a crash finds each path in its old or its new state, or half-way between both, and
completes the change. If a path is in another state, since another program wrote it, it is left alone and the others go
back. What goes is removed first, so that a folder can take a file's place and a file a folder's.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Sequence
from contextlib import suppress
from hashlib import sha256

from kairos_mcp.core.errors import KairosError, StaleFile
from kairos_mcp.core.messages import JsonObject, canonical_json
from kairos_mcp.core.paths import shorten_path
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.tool import ToolContext
from kairos_mcp.tools.files.atomic_write import FileSlot, open_slot, write_error
from kairos_mcp.tools.files.safe_open import FILE, FOLDER
from kairos_mcp.tools.files.staging import HALF, fresh_name
from kairos_mcp.tools.files.transaction import UnclearState
from kairos_mcp.tools.files.workspace import Workspace
from kairos_mcp.tools.stage.blobs import Blobs
from kairos_mcp.tools.stage.changes import Change
from kairos_mcp.tools.stage.layers import ABSENT, State, read_state


@dataclass(frozen=True, slots=True)
class Intent:
    """What is to be applied: the changes, the folders that then go where they are empty, and those that are made."""

    changes: tuple[Change, ...]
    gone: tuple[str, ...]
    made: tuple[str, ...]

    def encode(self) -> str:
        changes: list[JsonObject] = [change.as_json() for change in self.changes]
        return json.dumps({"changes": changes, "gone": self.gone, "made": self.made})

    @staticmethod
    def decode(text: str) -> Intent:
        value = json.loads(text)
        changes = tuple(Change.from_json(change) for change in value["changes"])
        return Intent(changes, tuple(value["gone"]), tuple(value["made"]))


@dataclass(frozen=True, slots=True)
class Application:
    """The application of one intent. `check` is called right before each write, and raises what ends it there."""

    workspace: Workspace
    blobs: Blobs
    ctx: ToolContext
    intent: Intent
    check: Callable[[], None]

    def complete(self) -> None:
        """Make all changes that are not made yet. Raises StaleFile, or another KairosError, where all went back;
        UnclearState where some could not."""
        removals = [change for change in self.intent.changes if change.after == ABSENT]
        others = [change for change in self.intent.changes if change.after != ABSENT]
        strange = [change.path for change in self.intent.changes if not self._is_known(change)]
        try:
            if strange:
                raise _stale_error(strange)
            for change in removals:
                self._make(change)
            if removals:
                self._remove_folders(self.intent.gone)
            for change in others:
                self._make(change)
        except KairosError as error:
            if stuck := self._revert(removals, others):
                names = ", ".join(map(shorten_path, stuck))
                raise UnclearState(f"{error.message} {names} had been changed already and could not go back.") from None
            raise

    def _is_known(self, change: Change) -> bool:
        """Whether a path is in its old state or its new one, or between both: a content that has not its mode yet, or
        nothing where a file's place is taken by a link."""
        now = self._state(change.path)
        if _is_same(now, change.before) or _is_same(now, change.after):
            return True
        if now.kind == "file" and change.after.kind == "file" and now.sha == change.after.sha:
            return True
        return now == ABSENT and change.before.kind != change.after.kind

    def _make(self, change: Change) -> None:
        now = self._state(change.path)
        if not _is_same(now, change.after):
            self.check()
            self._replace_entry(change.path, now, change.after)

    def _revert(self, removals: Sequence[Change], others: Sequence[Change]) -> list[str]:
        """Put back what was changed; return the paths where that failed. What others wrote stays."""
        stuck = []
        for change in [*reversed(others), *reversed(removals)]:
            if change.after == ABSENT:
                self._remove_folders(self.intent.made)
            now = self._state(change.path)
            is_ours = _is_same(now, change.after) or (
                now.kind == "file" and change.after.kind == "file" and now.sha == change.after.sha
            )
            if is_ours and not _is_same(now, change.before):
                self.ctx.memory.check_owner()
                try:
                    self._replace_entry(change.path, now, change.before)
                except KairosError:
                    stuck.append(change.path)
        self._remove_folders(self.intent.made)
        return stuck

    def _replace_entry(self, path: str, old: State, new: State) -> None:
        """Put `new` in the place of `old`. Raises KairosError."""
        try:
            with open_slot(self.workspace, path, self._key(path), make_missing=new != ABSENT) as slot:
                if old.kind == "link" and new.kind != "link":
                    os.unlink(slot.name, dir_fd=slot.folder)
                    old = ABSENT
                elif old.kind == "file" and new.kind != "file":
                    slot.remove(self.blobs.get(old.sha))
                    old = ABSENT
                if new.kind == "link":
                    half = fresh_name(slot.key, HALF)
                    os.symlink(new.target or "", half, dir_fd=slot.folder)
                    os.rename(half, slot.name, src_dir_fd=slot.folder, dst_dir_fd=slot.folder)
                elif new.kind == "file":
                    self._put_file(slot, old, new)
                os.fsync(slot.folder)
        except OSError as error:
            raise write_error(error, path) from None

    def _put_file(self, slot: FileSlot, old: State, new: State) -> None:
        if old == ABSENT:
            slot.create(self.blobs.get(new.sha))
        elif old.sha != new.sha:
            slot.replace(self.blobs.get(old.sha), self.blobs.get(new.sha))
        descriptor = self.workspace.open_fd(slot.name, FILE, slot.folder)
        try:
            mode = stat.S_IMODE(os.fstat(descriptor).st_mode)
            wanted = mode | (mode & 0o444) >> 2 if new.exe else mode & ~0o111
            if wanted != mode:
                os.fchmod(descriptor, wanted)
                os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _remove_folders(self, folders: Sequence[str]) -> None:
        """Remove these folders, the innermost first, where they are empty."""
        for path in folders:
            parent, _, name = path.rpartition("/")
            with suppress(OSError):
                descriptor = self.workspace.open_fd(parent or ".", FOLDER)
                try:
                    os.rmdir(name, dir_fd=descriptor)
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)

    def clear_leftovers(self) -> None:
        """Remove what a crash left beside the files. Raises UnclearState."""
        for change in self.intent.changes:
            before, after = (
                self.blobs.get(state.sha) if state.kind == "file" else None for state in (change.before, change.after)
            )
            try:
                with open_slot(self.workspace, change.path, self._key(change.path)) as slot:
                    settled = slot.clear_leftovers(before, after or b"")
            except KairosError:
                continue  # no folder, so nothing beside the file
            if not settled:
                beside = "is what another program wrote meanwhile, in a file whose name begins with .kairos-"
                raise UnclearState(f"Beside {shorten_path(change.path)} {beside}.")

    def _state(self, path: str) -> State:
        try:
            return read_state(self.workspace, path)
        except OSError:
            return State("other")

    def _key(self, path: str) -> str:
        return sha256(canonical_json([self.ctx.run_id, self.ctx.path, path]).encode()).hexdigest()[:16]


def _is_same(one: State, other: State) -> bool:
    return (one.kind, one.sha, one.exe, one.target) == (other.kind, other.sha, other.exe, other.target)


def _stale_error(paths: Sequence[str]) -> StaleFile:
    names = ", ".join(map(shorten_path, paths[:10]))
    return StaleFile(f"{names} changed in the workspace meanwhile: nothing was applied.", "Submit again.")
