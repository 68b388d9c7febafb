"""Writes staging files: new content, written beside a file before it takes that file's place, with its mode and owner.

Their names begin with a dot and end in nothing that a glob for sources matches. A `.part` is still being written and is
always ours; a `.swap` has been exchanged, and may be the only copy of what another program wrote.
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
    """Return whether this is the name of a staging file, which a crash may have left."""
    return name.startswith(PREFIX) and name.endswith((HALF, SWAP))


def leftovers(folder: int, key: str) -> list[str]:
    """Return the names of staging files with this key in an opened folder."""
    return [name for name in os.listdir(folder) if name.startswith(f"{PREFIX}{key}-") and is_leftover(name)]


def fresh_name(key: str, ending: str) -> str:
    """Return a new name; never one of another write, be it left by a crash or still under way elsewhere."""
    return f"{PREFIX}{key}-{secrets.token_hex(6)}{ending}"


def write_staged(folder: int, key: str, content: bytes, template_fd: int | None) -> str:
    """Write and sync a new staging file, with owner and mode of the file open as `template_fd`; return its name. Raises
    OSError."""
    name = fresh_name(key, HALF)
    fd = os.open(name, _CREATE, 0o666 if template_fd is None else 0o600, dir_fd=folder)
    try:
        rest = memoryview(content)
        while rest:
            rest = rest[os.write(fd, rest) :]
        if template_fd is not None:
            _copy_metadata(fd, template_fd)
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


def _copy_metadata(fd: int, template_fd: int) -> None:
    """Copy the owner if allowed, the mode, and the access list and user attributes if there are any.

    If the group can't be kept, the file's new group gets no more rights than everybody: it is not the one that was
    meant. Set-user and set-group bits are not kept; the kernel too drops them from a file that is written.
    """
    source, own = os.fstat(template_fd), os.fstat(fd)
    mode = stat.S_IMODE(source.st_mode) & 0o777
    if source.st_gid != own.st_gid:
        try:
            os.fchown(fd, -1, source.st_gid)
        except OSError:
            mode &= 0o707 | (mode & 0o007) << 3
    if source.st_uid != own.st_uid:
        with suppress(OSError):
            os.fchown(fd, source.st_uid, -1)
    os.fchmod(fd, mode)
    for name in _attributes(template_fd):
        with suppress(OSError):
            os.setxattr(fd, name, os.getxattr(template_fd, name))


def _attributes(fd: int) -> list[str]:
    if not hasattr(os, "listxattr"):
        return []
    try:
        return [name for name in os.listxattr(fd) if name.startswith("user.") or name == _ACCESS_LIST]
    except OSError:
        return []


class FileLease:
    """A lease on an open file while the block runs: whoever opens the file for writing meanwhile has to wait.

    `was_refused`: another program had it open for writing already. `is_contested`: one has tried to open it since. Both
    stay False where the kernel can't tell: not on Linux, on file systems without leases, for files of other users.
    """

    __slots__ = ("_fd", "_is_held", "was_refused")

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._is_held = False
        self.was_refused = False

    @property
    def is_contested(self) -> bool:
        if sys.platform != "linux" or not self._is_held:
            return False
        import fcntl

        return fcntl.fcntl(self._fd, fcntl.F_GETLEASE) != fcntl.F_RDLCK

    def __enter__(self) -> Self:
        if sys.platform == "linux":
            import fcntl

            try:
                # By default the kernel reports a contested lease by SIGIO, which would kill this program; SIGURG is
                # ignored by default.
                fcntl.fcntl(self._fd, fcntl.F_SETSIG, signal.SIGURG)
                fcntl.fcntl(self._fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
                self._is_held = True
            except OSError as error:
                self.was_refused = error.errno == errno.EAGAIN
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if sys.platform == "linux" and self._is_held:
            import fcntl

            fcntl.fcntl(self._fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
