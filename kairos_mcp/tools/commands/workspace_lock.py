"""Decides who may use a workspace: programs share its lock, a change of instructions and a clean-up have it alone.

The lock is the kernel's, on the workspace's folder, so it ends with its process and leaves nothing behind. Earlier
versions kept empty folders at the names that no program may create; what a killed one left is removed here.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator

from kairos_mcp.core.errors import Busy, CommandDenied

_LOCK_TIMEOUT_S = 10.0  # other servers have the lock alone only while they write a few files
_POLL_S = 0.01
# How earlier versions marked the empty folders that they made. Others may not write into one of ours.
_LEFTOVER_BIT, _FOREIGN_BITS = stat.S_ISVTX, stat.S_IWGRP | stat.S_IWOTH


@contextlib.contextmanager
def share_workspace(root: int) -> Iterator[None]:
    """Share the workspace that is open as `root` with other programs while the block runs.

    Raises CommandDenied if another process keeps the folder locked.
    """
    with _open_again(root) as folder_fd:
        _take_shared_lock(folder_fd)
        yield


@contextlib.contextmanager
def lock_out_programs(root: int, deadline: float, is_stopped: Callable[[], bool]) -> Iterator[None]:
    """Let no program run in the workspace that is open as `root` while the block writes instructions there.

    A running program's sandbox protects only what was there when it started, and what appears later is taken for its
    work. Raises Busy if a program still runs at `deadline` (`time.monotonic()`), or once `is_stopped`.
    """
    with _open_again(root) as folder_fd:
        while not _take_lock_alone(folder_fd):
            if time.monotonic() >= deadline or is_stopped():
                raise Busy(
                    "A program is running in this workspace; files that instruct agents can't be changed meanwhile.",
                    "Call again when it has ended.",
                )
            time.sleep(_POLL_S)  # a lock tried without blocking, since a deadline and a cancellation have to be heeded
        yield


def remove_leftovers(root: int, names: Iterable[str]) -> list[str]:
    """Remove the empty folders that an earlier version left at these names at the top of a workspace; return them.

    Removes nothing while a program runs in the workspace: it may be that version's.
    """
    with _open_again(root) as folder_fd:
        left = [name for name in names if _is_leftover(folder_fd, name)]
        if not left or not _take_lock_alone(folder_fd):
            return []
        return [name for name in left if _remove_empty_folder(folder_fd, name)]


@contextlib.contextmanager
def _open_again(root: int) -> Iterator[int]:
    """Open the folder anew, since a lock belongs to one opening; closing it gives the lock up."""
    folder_fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=root)
    try:
        yield folder_fd
    finally:
        os.close(folder_fd)


def _take_shared_lock(folder_fd: int) -> None:
    """Take the lock that all share; a file system without locks has none to give."""
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
            return
        else:
            return


def _take_lock_alone(folder_fd: int) -> bool:
    """Try to take the lock alone; return whether nobody else has it, as on a file system without locks."""
    try:
        fcntl.flock(folder_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def _is_leftover(folder_fd: int, name: str) -> bool:
    """Whether this looks like a folder that we made: marked, our user's, and closed to others."""
    try:
        status = os.stat(name, dir_fd=folder_fd, follow_symlinks=False)
    except OSError:
        return False
    mode = status.st_mode
    is_marked = stat.S_ISDIR(mode) and mode & _LEFTOVER_BIT and not mode & _FOREIGN_BITS
    return bool(is_marked) and status.st_uid == os.geteuid()


def _remove_empty_folder(folder_fd: int, name: str) -> bool:
    try:
        os.rmdir(name, dir_fd=folder_fd)
    except OSError:  # it is gone, or it is not empty and so somebody's own
        return False
    return True
