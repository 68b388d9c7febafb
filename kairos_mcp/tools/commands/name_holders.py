"""Holds the places of names that no program may make: an empty folder stands at each while programs run.

All who run programs in a workspace share a lock on its folder, whichever process they are of; the last one to leave
removes what was put there. A sandbox that is built under the lock finds each name, and makes it read-only.
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

NAMES = (".git", ".kairos")  # who writes there decides what git, or this server, does for the next one who works here
_MARKED = (
    stat.S_ISVTX
)  # tells our empty folders from somebody's own, also for the process that comes after a killed one
_PATIENCE_S = 10.0  # the lock is held alone for as long as a few removals take
_LOOK_S = 0.01
_NOT_TO_BE_MADE = (errno.EACCES, errno.EPERM, errno.EROFS)  # by us, nor by a program, which is the same user


@contextlib.contextmanager
def covered(root: int, names: Sequence[str] = NAMES) -> Iterator[None]:
    """Hold the names at the top of the workspace that is open as `root`, while the block runs.

    Raises CommandDenied where somebody else has locked that folder for long, or a name can't be held.
    """
    held = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=root)  # a lock is of one opening
    try:
        locked = _share(held)
        made = [name for name in names if _placed(held, name)]
        try:
            yield
        finally:
            if locked and _is_last(held):
                for name in names:
                    _remove(held, name, made)
    finally:
        os.close(held)


@contextlib.contextmanager
def alone(root: int, until: float, is_stopped: Callable[[], bool], names: Sequence[str]) -> Iterator[None]:
    """Keep programs out of the workspace that is open as `root` while the block changes what they may not, since their
    sandboxes cover what was there before. Placeholders at `names` are gone.

    Raises Busy where a program still runs at `until` (`time.monotonic()`), or when `is_stopped`.
    """
    held = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=root)
    try:
        while not _is_last(held, without_locks=True):
            if time.monotonic() >= until or is_stopped():
                raise Busy(
                    "A program runs in this workspace, and what instructs agents is not changed meanwhile.",
                    "Call again when it has ended.",
                )
            time.sleep(_LOOK_S)
        for name in names:
            _remove(held, name, ())
        yield
    finally:
        os.close(held)


def is_placeholder(found: os.stat_result) -> bool:
    """Whether this looks like what a cover made; one that isn't empty is somebody's all the same."""
    return stat.S_ISDIR(found.st_mode) and bool(found.st_mode & _MARKED)


def _share(held: int) -> bool:
    """Take the lock that all share; False on a file system without locks, where nobody removes anything then."""
    until = time.monotonic() + _PATIENCE_S
    while True:
        try:
            fcntl.flock(held, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until:
                raise CommandDenied(
                    "Another program holds a lock on the workspace's folder, so no program can be run in it.",
                    "Call again later; a person can find it by `lslocks`.",
                ) from None
            time.sleep(_LOOK_S)
        except OSError:
            return False
        else:
            return True


def _is_last(held: int, *, without_locks: bool = False) -> bool:
    """Whether nobody else shares the lock, which is held alone then. Asking gives up one's own share first, so of two
    who leave at the same time at least the one that asks later is the last. `without_locks`: what is said on a file
    system that has none."""
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return without_locks
    return True


def _placed(held: int, name: str) -> bool:
    """Put an empty folder at a name where nothing is; whether that was done. A folder, whatever the name is usually:
    git doesn't see it, and no removal of it can take somebody's text."""
    try:
        os.mkdir(name, 0o755 | _MARKED, dir_fd=held)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno in _NOT_TO_BE_MADE:
            return False
        raise CommandDenied(
            f"{name} of the workspace could not be protected ({os.strerror(error.errno or 0)}).",
            "A person has to make room on that disk.",
        ) from None
    return True


def _remove(held: int, name: str, made: Sequence[str]) -> None:
    with contextlib.suppress(OSError):  # it is gone; or not empty, and so somebody's
        if name in made or is_placeholder(os.stat(name, dir_fd=held, follow_symlinks=False)):
            os.rmdir(name, dir_fd=held)
