"""What stands at a path of a workspace, or of what a run keeps apart from it; and what such a layer can do.

All is read below descriptors, and no link is followed.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.tools.files.safe_open import FILE, FOLDER
from kairos_mcp.tools.files.workspace import Workspace

if TYPE_CHECKING:
    from kairos_mcp.tools.commands.sandbox import Sandbox

_CHUNK_BYTES = 1 << 20
_CHANGE_CLOCK = getattr(time, "CLOCK_REALTIME_COARSE", time.CLOCK_REALTIME)
ENTRY_BYTES = 4096  # that an entry of a stage counts at least, so that the number of its files is bounded too
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


class Layer(Protocol):
    """Where a stage keeps what its run writes. Every method but `open` is called while no other call uses the stage."""

    @property
    def root(self) -> Path:
        """The folder in which `read_state` finds what the run has at a path that it touched."""
        ...

    @property
    def is_shared(self) -> bool:
        """Whether several calls may have it open for reading at once."""
        ...

    def make(self) -> None:
        """Make its folders where they are missing."""
        ...

    def open(self, *, writable: bool) -> AbstractContextManager[Workspace]:
        """Open the workspace with the run's own changes, as of `catch_up`. Raises CommandDenied, TooLarge."""
        ...

    def catch_up(self, *, must: bool) -> None:
        """Take over what others have changed in the workspace; without `must`, unless that was done just now. Raises
        TooLarge."""
        ...

    def list_touched(self, is_ignored: IsIgnored, forced: Collection[str]) -> Iterable[TouchedPath]:
        """Yield every path that it decides about. Of an ignored folder, and one at MAX_DEPTH, nothing but itself;
        `forced` ones that it has are yielded even so."""
        ...

    def take_out(self, paths: Collection[str], kept: Collection[str]) -> None:
        """Let it show what the workspace holds at `paths`. `kept`: the other paths that it decides about."""
        ...

    def enter(self, sandbox: Sandbox) -> Sandbox:
        """Return the sandbox in which a program finds it in the place of the workspace."""
        ...

    def list_mounted(self) -> list[str]:
        """Return the folders in which a program finds what another file system has there, and `open` does not."""
        ...

    def room(self) -> int:
        """Return the bytes, as `sum_bytes` counts, that it takes before the run has written anything."""
        ...


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


def folders_above(path: str) -> tuple[str, ...]:
    """Return the folders above a path, the innermost first."""
    parts = path.split("/")
    return tuple("/".join(parts[:count]) for count in range(len(parts) - 1, 0, -1))


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


def change_clock_ns() -> int:
    """Return the time that the kernel gives to a change of a file now: it moves on some hundred times a second."""
    return time.clock_gettime_ns(_CHANGE_CLOCK)


def wait_for_next_change_time() -> None:
    """Wait for some milliseconds, until what is changed from now on has another time than what was changed before."""
    now = change_clock_ns()
    while change_clock_ns() <= now:
        time.sleep(0.001)


@contextmanager
def closing(descriptor: int) -> Iterator[int]:
    """Close a descriptor when the block ends."""
    try:
        yield descriptor
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
