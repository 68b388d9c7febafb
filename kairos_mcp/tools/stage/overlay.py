"""A layer of the kernel over a workspace, in which a run's writes are kept: its mounts, and what it decides about.

The kernel writes it: a removed name is a device of number 0, a folder that hides the one below is marked by an
attribute. All is read below descriptors, and no link is followed.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from kairos_mcp.core.errors import StaleFile
from kairos_mcp.tools.commands.sandbox import Sandbox
from kairos_mcp.tools.files.safe_open import FOLDER, open_without_links
from kairos_mcp.tools.files.walk import join_path
from kairos_mcp.tools.files.workspace import Workspace
from kairos_mcp.tools.stage.blobs import Blobs
from kairos_mcp.tools.stage.layers import (
    IsIgnored,
    TouchedPath,
    closing,
    folders_above,
    is_deep,
    is_folder,
    is_removal,
    read_state,
)
from kairos_mcp.tools.stage.mounts import Mounts

UPPER = "upper"
_OPAQUE = "user.overlay.opaque"


class Overlay:
    """The layer in a stage's folder. No mount outlives a call: what others change in the workspace is seen at once."""

    is_shared = True

    def __init__(self, folder: Path, workspace: Workspace, mounts: Mounts) -> None:
        self.root, self._work = folder / UPPER, folder / "work"
        self._workspace, self._mounts, self._blobs = workspace, mounts, Blobs(folder / "blobs")

    def make(self) -> None:
        for each in (self.root, self._work):
            each.mkdir(parents=True, exist_ok=True, mode=0o700)

    @contextmanager
    def open(self, *, writable: bool) -> Iterator[Workspace]:
        real = self._workspace.path
        if writable:
            descriptor = self._mounts.mount([real], self.root, self._work)
        else:
            descriptor = self._mounts.mount([self.root, real])
        try:
            with Workspace(Path(f"/proc/self/fd/{descriptor}")) as view:
                view.path = real
                yield view
        finally:
            os.close(descriptor)

    def catch_up(self, *, must: bool) -> None:
        """Do nothing: the next mount shows it."""

    def list_touched(self, is_ignored: IsIgnored, forced: Collection[str]) -> Iterable[TouchedPath]:
        with Workspace(self.root) as upper:
            found = list(_list_touched(upper, self._workspace, is_ignored))
        there = {touched.path for touched in found if not touched.is_ignored}
        own = [path for path in dict.fromkeys(forced) if path not in there and _has_entry(self.root, path)]
        return [*found, *(TouchedPath(path, 0) for path in own)]

    def take_out(self, paths: Collection[str], kept: Collection[str]) -> None:
        stay = {above for path in kept for above in (path, *folders_above(path))}
        with suppress(OSError), closing(os.open(self.root, FOLDER)) as layer:
            for path in sorted(paths, key=len, reverse=True):
                is_hidden = any(each in stay and is_opaque(layer, each) for each in folders_above(path))
                for each in (path, *folders_above(path)):
                    if each not in stay:
                        _remove_entry(layer, each)
                if is_hidden:
                    self._take_in(layer, path)

    def enter(self, sandbox: Sandbox) -> Sandbox:
        return replace(sandbox, layer=(self.root, self._work))

    def list_mounted(self) -> list[str]:
        return []  # where one is inside, the kernel mounts no layer

    def room(self) -> int:
        return 0

    def _take_in(self, layer: int, path: str) -> None:
        """Let the layer hold what the workspace holds at a path, since a folder above it that stays hides that."""
        *folders, name = path.split("/")
        with suppress(OSError, StaleFile):
            state = self._blobs.keep_file(self._workspace, path)
            if state.kind not in ("file", "link"):
                return
            with closing(_make_folders(layer, folders)) as above:
                if state.kind == "link":
                    os.symlink(state.target or "", name, dir_fd=above)
                    return
                flags, mode = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o755 if state.exe else 0o644
                with os.fdopen(os.open(name, flags, mode, dir_fd=above), "wb") as file:
                    file.write(self._blobs.get(state.sha))


def _list_touched(upper: Workspace, real: Workspace, is_ignored: IsIgnored) -> Iterator[TouchedPath]:
    """Yield every path that a layer decides about, by name. Of an ignored folder, and one at MAX_DEPTH, nothing but
    itself is yielded."""
    yield from _list_folder(upper, real, is_ignored, ".")


def _list_folder(upper: Workspace, real: Workspace, is_ignored: IsIgnored, folder: str) -> Iterator[TouchedPath]:
    descriptor = upper.open_fd(folder, FOLDER)
    try:
        with os.scandir(descriptor) as scan:
            entries = sorted(
                ((entry.name, entry.stat(follow_symlinks=False)) for entry in scan), key=lambda each: each[0]
            )
        for name, status in entries:
            path, changed = join_path(folder, name), status.st_ctime_ns
            is_dir = stat.S_ISDIR(status.st_mode)
            if is_ignored(path, is_dir) or (is_dir and is_deep(path)):
                yield TouchedPath(path, changed, is_ignored=True)
                continue
            if not is_dir:
                yield from _list_below(real, path, changed, is_ignored)
                if is_folder(real, path) or read_state(real, path).kind == "absent":
                    yield TouchedPath(path, changed)
                continue
            if is_opaque(descriptor, name):
                yield from _list_below(real, path, changed, is_ignored)
            elif not is_folder(real, path) and read_state(real, path).kind != "absent":
                yield TouchedPath(path, changed)  # a folder in the place of a file
            yield from _list_folder(upper, real, is_ignored, path)
    finally:
        os.close(descriptor)


def _list_below(real: Workspace, path: str, changed: int, is_ignored: IsIgnored) -> Iterator[TouchedPath]:
    """Yield what the workspace itself has at and below a path, but for folders."""
    if not is_folder(real, path):
        if read_state(real, path).kind != "absent":
            yield TouchedPath(path, changed)
        return
    descriptor = real.open_fd(path, FOLDER)
    try:
        with os.scandir(descriptor) as scan:
            entries = sorted((entry.name, entry.is_dir(follow_symlinks=False)) for entry in scan)
    finally:
        os.close(descriptor)
    for name, is_dir in entries:
        inner = join_path(path, name)
        if is_ignored(inner, is_dir) or (is_dir and is_deep(inner)):
            yield TouchedPath(inner, changed, is_ignored=True)
        elif is_dir:
            yield from _list_below(real, inner, changed, is_ignored)
        else:
            yield TouchedPath(inner, changed)


def is_opaque(folder: int, path: str) -> bool:
    """Whether a folder of a layer hides what the workspace has in it. No link is followed."""
    try:
        descriptor = open_without_links(folder, path.split("/"))
    except OSError:
        return False
    try:
        return os.getxattr(descriptor, _OPAQUE) == b"y"
    except OSError:
        return False
    finally:
        os.close(descriptor)


def _has_entry(layer: Path, path: str) -> bool:
    """Whether a layer itself has something at a path, be it a file or the mark of a removal; no link is followed."""
    return os.path.lexists(layer / path) and not any((layer / folder).is_symlink() for folder in folders_above(path))


def _remove_entry(layer: int, path: str) -> None:
    """Remove one entry of a layer; a folder only where it is empty, or hides what the workspace has: then with what was
    taken in below it. A link that a program left in the place of a folder is not followed: it may lead to anything of
    the user's."""
    *folders, name = path.split("/")
    with suppress(OSError), closing(open_without_links(layer, folders)) as above:
        status = os.stat(name, dir_fd=above, follow_symlinks=False)
        if not stat.S_ISDIR(status.st_mode) or is_removal(status):
            os.unlink(name, dir_fd=above)
            return
        if is_opaque(above, name):
            shutil.rmtree(name, dir_fd=above)
        else:
            os.rmdir(name, dir_fd=above)


def _make_folders(layer: int, folders: Sequence[str]) -> int:
    """Open a folder of a layer by its names, and make those that are missing. Raises OSError at a link."""
    descriptor = open_without_links(layer, [])
    for name in folders:
        with closing(descriptor) as above:
            with suppress(FileExistsError):
                os.mkdir(name, 0o755, dir_fd=above)
            descriptor = open_without_links(above, [name])
    return descriptor
