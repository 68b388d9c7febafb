"""Counts the tasks of a PID namespace and the memory that they hold, by reading its /proc from outside."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Self

_THREADS = re.compile(rb"^Threads:\s+(\d+)", re.M)
_MEMORY = re.compile(rb"^Rss(?:Anon|Shmem):\s+(\d+) kB", re.M)


class SandboxTasks:
    """The /proc of a sandbox, held open. It lists every process inside; none can hide from it."""

    __slots__ = ("_proc_fd",)

    def __init__(self, proc_fd: int) -> None:
        self._proc_fd = proc_fd

    @classmethod
    def open_of(cls, pid: int) -> Self | None:
        """Open the /proc that a process inside sees. None if that is still our own, or we may not look."""
        try:
            proc_fd = os.open(f"/proc/{pid}/root/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            return None
        if os.fstat(proc_fd).st_dev == os.stat("/proc").st_dev:
            os.close(proc_fd)
            return None
        return cls(proc_fd)

    def count_processes(self) -> int:
        """Return the number of processes, not of threads; this takes one listing."""
        return sum(name.isdigit() for name in os.listdir(self._proc_fd))

    def measure(self, task_limit: int) -> tuple[int, int]:
        """Return the number of tasks (processes and threads) and the bytes of memory that no file backs.

        Stops counting once there are more than `task_limit` tasks.
        """
        tasks = memory = 0
        for name in os.listdir(self._proc_fd):
            if not name.isdigit():
                continue
            threads, memory_bytes = self._measure_process(name)
            tasks += threads
            memory += memory_bytes
            if tasks > task_limit:
                break
        return tasks, memory

    def close(self) -> None:
        os.close(self._proc_fd)

    def _measure_process(self, pid: str) -> tuple[int, int]:
        try:
            status_fd = os.open(f"{pid}/status", os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._proc_fd)
        except OSError:  # it has ended
            return 0, 0
        try:
            status = os.read(status_fd, 4096)
        except OSError:
            return 0, 0
        finally:
            os.close(status_fd)
        threads = _THREADS.search(status)
        return int(threads[1]) if threads else 1, sum(int(kilobytes) for kilobytes in _MEMORY.findall(status)) << 10


def read_parent_pid(pid: int) -> int | None:
    """Return the pid of a process's parent, None if the process has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return int(stat.rpartition(")")[2].split()[1])
