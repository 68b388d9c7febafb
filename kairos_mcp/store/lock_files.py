"""Which servers of a state folder are alive: those that hold the lock on their lock file.

The kernel releases it when the process ends; there is no heartbeat, and no clock is read.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path

from kairos_mcp.store.ownership import Ownership, ServedRuns
from kairos_mcp.store.rows import Session

LOCK_FOLDER = "owners"


class LockFile(Ownership):
    """This server's lock file, locked until the process ends."""

    def __init__(self, home: Path, served_runs: ServedRuns | None = None) -> None:
        super().__init__(served_runs)
        folder = home / LOCK_FOLDER
        folder.mkdir(mode=0o700, exist_ok=True)
        while True:
            self.lock = f"{os.getpid()}-{secrets.token_hex(4)}"
            self._path = folder / self.lock
            self._descriptor = os.open(self._path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
            if os.fstat(self._descriptor).st_nlink:
                return
            os.close(self._descriptor)  # another server removed the file between the two calls

    def close(self) -> None:
        """Remove the lock file and release the lock: a server without a file is not alive."""
        self._path.unlink(missing_ok=True)
        os.close(self._descriptor)


class LockFiles:
    """The lock files of a state folder, as `Owners`."""

    def __init__(self, home: Path) -> None:
        self._home = home

    def find_living(self, _session: Session, locks: Collection[str]) -> Collection[str]:
        """As in Owners."""
        with suppress(FileNotFoundError):
            there = set(os.listdir(self._home / LOCK_FOLDER))
            return {lock for lock in locks if lock in there and is_alive(self._home, lock)}
        return ()

    def is_stopped(self, pid: int) -> bool:
        """As in Owners: by SIGSTOP."""
        return is_stopped(pid)


def is_alive(home: Path, lock: str) -> bool:
    """Whether the server with this lock file still runs."""
    try:
        descriptor = os.open(home / LOCK_FOLDER / lock, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def is_stopped(pid: int) -> bool:
    """Whether a process was stopped by a signal; False where the system doesn't say."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] in ("T", "t")


def remove_dead_locks(home: Path, keep: Iterable[str] = ()) -> None:
    """Remove the lock files of servers that have ended."""
    kept = set(keep)
    for path in (home / LOCK_FOLDER).glob("*"):
        if path.name not in kept and not is_alive(home, path.name):
            path.unlink(missing_ok=True)
