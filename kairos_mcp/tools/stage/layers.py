"""What a run's layer says about its workspace: which paths it decides about, and what stands at each.

The kernel writes the layer: a removed name is a device of number 0, a folder that hides the one below is marked by an
attribute. All is read below descriptors, and no link is followed.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import asdict
from hashlib import sha256
from typing import Literal, NamedTuple

from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.tools.files.safe_open import FILE, FOLDER, open_without_links
from kairos_mcp.tools.files.walk import join_path
from kairos_mcp.tools.files.workspace import Workspace

_OPAQUE = "user.overlay.opaque"
_CHUNK_BYTES = 1 << 20
MAX_DEPTH = 200  # of folders within each other; what lies deeper stays in the stage
_NOT_THERE = (errno.ELOOP, errno.EMLINK, errno.ENXIO)
_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)


IsIgnored = Callable[[str, bool], bool]
"""Says of a path, and whether it is a folder, that git ignores it."""


@dataclass(frozen=True, slots=True)
class State:
    """What stands at a path: nothing (also where a folder is), a file, a link with its target, or something else.

    `sha`: the SHA-256 of a file's content in hex. `exe`: whether its owner may execute it.
    """

    kind: Literal["absent", "file", "link", "other"] = "absent"
    sha: str | None = None
    exe: bool = False
    target: str | None = None
    size: int = 0

    def as_json(self) -> JsonObject:
        return asdict(self)


ABSENT = State()


class TouchedPath(NamedTuple):
    """A path that the layer decides about. `changed_ns`: when the layer's entry changed; `is_ignored`: a path that
    stays in the stage, for a whole folder the folder's."""

    path: str
    changed_ns: int
    is_ignored: bool = False


def read_state(root: Workspace, path: str) -> State:
    """Return what stands at a plain path. Raises OSError where it can't be read."""
    try:
        folder = root.open_fd(path.rpartition("/")[0] or ".", FOLDER)
    except (FileNotFoundError, NotADirectoryError):
        return ABSENT
    except OSError as error:
        if error.errno in _NOT_THERE:
            return ABSENT  # a link, or a removed folder, in the place of a folder above it
        raise
    name = path.rpartition("/")[2]
    try:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if stat.S_ISLNK(found.st_mode):
            return State("link", target=os.readlink(name, dir_fd=folder))
        if stat.S_ISDIR(found.st_mode) or is_removal(found):
            return ABSENT
        if not stat.S_ISREG(found.st_mode):
            return State("other")
        return _read_file(os.open(name, FILE | _NO_FOLLOW, dir_fd=folder))
    except FileNotFoundError:
        return ABSENT
    finally:
        os.close(folder)


def is_removal(status: os.stat_result) -> bool:
    """Whether this entry of a layer says that there is nothing of its name."""
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == 0


def is_deep(path: str) -> bool:
    """Whether a path is nested so deep that its folder is not read."""
    return path.count("/") >= MAX_DEPTH


def is_folder(root: Workspace, path: str) -> bool:
    """Whether a folder stands at this path, and no link."""
    try:
        os.close(root.open_fd(path, FOLDER))
    except OSError:
        return False
    return True


def list_touched(upper: Workspace, real: Workspace, is_ignored: IsIgnored) -> Iterator[TouchedPath]:
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


def _read_file(descriptor: int) -> State:
    with os.fdopen(descriptor, "rb") as file:
        digest, size = sha256(), 0
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
            size += len(chunk)
        mode = os.fstat(file.fileno()).st_mode
    return State("file", digest.hexdigest(), bool(mode & stat.S_IXUSR), size=size)
