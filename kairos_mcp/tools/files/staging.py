"""What is written beside a file before it takes its place: its name, its content, and the mode and owner of the other.

The name starts with a dot and ends in nothing that a glob over sources takes. `.part` is still being written and
always ours; a `.swap` has been exchanged, and may be the only copy of what somebody else wrote.
"""

from __future__ import annotations

import errno
import os
import secrets
import signal
import stat
import sys
from contextlib import suppress
from types import TracebackType
from typing import Self

PREFIX = ".kairos-"
HALF, SWAP = ".part", ".swap"
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_ACCESS_LIST = "system.posix_acl_access"


def is_leftover(name: str) -> bool:
    """Whether a name is one that a write makes beside its file, and that a crash may have left there."""
    return name.startswith(PREFIX) and name.endswith((HALF, SWAP))


def leftovers(folder: int, key: str) -> list[str]:
    """The names in an opened folder that the writes marked with this key made."""
    return [name for name in os.listdir(folder) if name.startswith(f"{PREFIX}{key}-") and is_leftover(name)]


def fresh_name(key: str, ending: str) -> str:
    """Never one that is there: a write that was left behind, or that is under way elsewhere, keeps its own."""
    return f"{PREFIX}{key}-{secrets.token_hex(6)}{ending}"


def write_staged(folder: int, key: str, content: bytes, like: int | None) -> str:
    """A new file in the folder, on the disk when this returns; dressed as the file open as `like`. Raises OSError."""
    name = fresh_name(key, HALF)
    fd = os.open(name, _CREATE, 0o666 if like is None else 0o600, dir_fd=folder)
    try:
        rest = memoryview(content)
        while rest:
            rest = rest[os.write(fd, rest) :]
        if like is not None:
            _copy_metadata(fd, like)
        os.fsync(fd)
    except BaseException:
        unlink_quietly(folder, name)
        raise
    finally:
        os.close(fd)
    return name


def unlink_quietly(folder: int, name: str) -> None:
    """Remove a name that may be gone already."""
    with suppress(OSError):
        os.unlink(name, dir_fd=folder)


def _copy_metadata(fd: int, like: int) -> None:
    """Owner where that is allowed, access list and user attributes where there are such, then the mode.

    Where the group can't be kept, it gets no more than everybody: it is another group than the one that was meant.
    Set-user and set-group bits are not kept, as the kernel drops them from a file that is written.
    """
    source, mine = os.fstat(like), os.fstat(fd)
    mode = stat.S_IMODE(source.st_mode) & 0o777
    if source.st_gid != mine.st_gid:
        try:
            os.fchown(fd, -1, source.st_gid)
        except OSError:
            mode &= 0o707 | (mode & 0o007) << 3
    if source.st_uid != mine.st_uid:
        with suppress(OSError):
            os.fchown(fd, source.st_uid, -1)
    os.fchmod(fd, mode)
    for name in _attributes(like):
        with suppress(OSError):
            os.setxattr(fd, name, os.getxattr(like, name))


def _attributes(fd: int) -> list[str]:
    if not hasattr(os, "listxattr"):
        return []
    try:
        return [name for name in os.listxattr(fd) if name.startswith("user.") or name == _ACCESS_LIST]
    except OSError:
        return []


class FileLease:
    """Held over an open descriptor while its block runs. Who opens the file for writing meanwhile waits for its end.

    `refused`: someone had it open for writing when it began; `wanted`: someone has come since. Both stay False where
    nobody can tell: beyond Linux, on file systems without leases, and for files of other users.
    """

    __slots__ = ("_fd", "_held", "was_refused")

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._held = False
        self.was_refused = False

    @property
    def is_contested(self) -> bool:
        if sys.platform != "linux" or not self._held:
            return False
        import fcntl

        return fcntl.fcntl(self._fd, fcntl.F_GETLEASE) != fcntl.F_RDLCK

    def __enter__(self) -> Self:
        if sys.platform == "linux":
            import fcntl

            try:
                # The kernel tells a holder that its lease is wanted by SIGIO, which would end this program; SIGURG
                # is one that nobody minds.
                fcntl.fcntl(self._fd, fcntl.F_SETSIG, signal.SIGURG)
                fcntl.fcntl(self._fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
                self._held = True
            except OSError as error:
                self.was_refused = error.errno == errno.EAGAIN
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if sys.platform == "linux" and self._held:
            import fcntl

            fcntl.fcntl(self._fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
