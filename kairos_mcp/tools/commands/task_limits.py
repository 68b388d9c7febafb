"""How many tasks live in a PID namespace and how much memory they hold, as its own /proc tells from outside."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Self

_THREADS = re.compile(rb"^Threads:\s+(\d+)", re.M)
_MEMORY = re.compile(rb"^Rss(?:Anon|Shmem):\s+(\d+) kB", re.M)


class SandboxTasks:
    """The open /proc of a sandbox. Nothing in there can enter or leave it unseen."""

    __slots__ = ("_proc",)

    def __init__(self, proc: int) -> None:
        self._proc = proc

    @classmethod
    def of(cls, pid: int) -> Self | None:
        """By a process inside; None while it still has the /proc of this one, and where it may not be seen."""
        try:
            proc = os.open(f"/proc/{pid}/root/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            return None
        if os.fstat(proc).st_dev == os.stat("/proc").st_dev:
            os.close(proc)
            return None
        return cls(proc)

    def processes(self) -> int:
        """How many there are, threads not counted: one look."""
        return sum(name.isdigit() for name in os.listdir(self._proc))

    def count(self, most: int) -> tuple[int, int]:
        """Tasks, threads counted, and bytes of memory that no file backs. Past `most` tasks it counts no further."""
        tasks = memory = 0
        for name in os.listdir(self._proc):
            if not name.isdigit():
                continue
            threads, held = self._one(name)
            tasks += threads
            memory += held
            if tasks > most:
                break
        return tasks, memory

    def close(self) -> None:
        os.close(self._proc)

    def _one(self, name: str) -> tuple[int, int]:
        try:
            status = os.open(f"{name}/status", os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._proc)
        except OSError:  # it has ended
            return 0, 0
        try:
            told = os.read(status, 4096)
        except OSError:
            return 0, 0
        finally:
            os.close(status)
        threads = _THREADS.search(told)
        return int(threads[1]) if threads else 1, sum(int(each) for each in _MEMORY.findall(told)) << 10


def parent_of(pid: int) -> int | None:
    """The parent of a process; None for one that has ended."""
    try:
        told = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return int(told.rpartition(")")[2].split()[1])
