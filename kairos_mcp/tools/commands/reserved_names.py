"""Keeps programs from creating certain names at the top of a workspace, by placeholders: empty folders at these names.

A sandbox makes the placeholders read-only. Every process that runs programs in the workspace shares a lock on its
folder; the last one to give it up removes the placeholders.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence

from kairos_mcp.core.errors import Busy, CommandDenied

RESERVED_NAMES = (".git", ".kairos")  # whoever writes there decides what git, or this server, does here next
# The sticky bit marks our empty folders, so that the process after a killed one can still tell them from others.
_PLACEHOLDER_BIT = stat.S_ISVTX
_LOCK_TIMEOUT_S = 10.0  # other servers hold the lock alone only while they remove a few folders
_POLL_S = 0.01
# We can't create the name, so a program of the same user can't either.
_FORBIDDEN_ERRNOS = (errno.EACCES, errno.EPERM, errno.EROFS)


@contextlib.contextmanager
def hold_names(root: int, names: Sequence[str] = RESERVED_NAMES) -> Iterator[None]:
    """Keep placeholders at free names at the top of the workspace that is open as `root`, while the block runs.

    Raises CommandDenied if another process keeps the folder locked, or a placeholder can't be made.
    """
    # Opened anew, since a lock belongs to one opening.
    folder_fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=root)
    try:
        has_lock = _take_shared_lock(folder_fd)
        made = [name for name in names if _make_placeholder(folder_fd, name)]
        try:
            yield
        finally:
            if has_lock and _take_lock_alone(folder_fd):
                for name in names:
                    _remove_placeholder(folder_fd, name, made)
    finally:
        os.close(folder_fd)


@contextlib.contextmanager
def lock_out_programs(
    root: int, deadline: float, is_stopped: Callable[[], bool], names: Sequence[str]
) -> Iterator[None]:
    """Let no program run in the workspace that is open as `root` while the block writes instructions there.

    A running program's sandbox protects only what was there when it started. Placeholders at `names` are removed.
    Raises Busy if a program still runs at `deadline` (`time.monotonic()`), or once `is_stopped`.
    """
    folder_fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=root)
    try:
        while not _take_lock_alone(folder_fd, without_locks=True):
            if time.monotonic() >= deadline or is_stopped():
                raise Busy(
                    "A program is running in this workspace; files that instruct agents can't be changed meanwhile.",
                    "Call again when it has ended.",
                )
            time.sleep(_POLL_S)  # a lock tried without blocking, since a deadline and a cancellation have to be heeded
        for name in names:
            _remove_placeholder(folder_fd, name, ())
        yield
    finally:
        os.close(folder_fd)


def is_placeholder(status: os.stat_result) -> bool:
    """Return whether this looks like a placeholder; if it isn't empty, it is somebody's own folder all the same."""
    return stat.S_ISDIR(status.st_mode) and bool(status.st_mode & _PLACEHOLDER_BIT)


def _take_shared_lock(folder_fd: int) -> bool:
    """Take the lock that all share. Return False on a file system without locks; nothing is removed there."""
    deadline = time.monotonic() + _LOCK_TIMEOUT_S
    while True:
        try:
            fcntl.flock(folder_fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise CommandDenied(
                    "Another program holds a lock on the workspace's folder, so no program can be run in it.",
                    "Call again later; a person can find it by `lslocks`.",
                ) from None
            time.sleep(_POLL_S)  # flock has no deadline of its own
        except OSError:
            return False
        else:
            return True


def _take_lock_alone(folder_fd: int, *, without_locks: bool = False) -> bool:
    """Try to take the lock alone; return whether that worked, so nobody else shares it.

    The kernel drops our own share first. So of two processes that end at the same time, at least the later one gets it.
    `without_locks` is the answer on a file system that has no locks.
    """
    try:
        fcntl.flock(folder_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return without_locks
    return True


def _make_placeholder(folder_fd: int, name: str) -> bool:
    """Make an empty folder at a free name; return whether that was done.

    A folder also for names of files: git doesn't list it, and removing an empty folder can never lose a text.
    """
    try:
        os.mkdir(name, 0o755 | _PLACEHOLDER_BIT, dir_fd=folder_fd)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno in _FORBIDDEN_ERRNOS:
            return False
        raise CommandDenied(
            f"{name} of the workspace could not be protected ({os.strerror(error.errno or 0)}).",
            "A person has to make room on that disk.",
        ) from None
    return True


def _remove_placeholder(folder_fd: int, name: str, made: Sequence[str]) -> None:
    with contextlib.suppress(OSError):  # it is gone, or it is not empty and so not ours
        if name in made or is_placeholder(os.stat(name, dir_fd=folder_fd, follow_symlinks=False)):
            os.rmdir(name, dir_fd=folder_fd)
