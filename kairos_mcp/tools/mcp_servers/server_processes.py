"""Pauses the processes of a sandboxed server, and lets them go on: a paused one does nothing, in none of its threads.

They have a PID namespace of their own, which nothing leaves: all descend from its first process, and die with it. That
one dies with bubblewrap's process outside, which dies with this one. So paused processes are killed like others.
"""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from collections.abc import Sequence
from contextlib import suppress

PAUSE_S = 2.0  # then it counts as one that can't be paused
ATTEMPT_S = 0.1
KILL_S = 5.0  # for killed processes to be gone
_POLL_S = 0.001
_STILL = frozenset("TtZXx")  # states in /proc: stopped by a signal or a tracer, or dead


class ServerProcesses:
    """The processes of one server at a time. Its methods may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._first: int | None = None  # of the namespace
        self._first_fd: int | None = None  # its pidfd
        self._paused: set[int] = set()
        self.has_lost_one = False  # somebody killed a paused process, such as the kernel for want of memory

    def find_first(self, outside: int) -> bool:
        """Find the first process inside, by that of bubblewrap outside; return whether it is there by now."""
        for child in filter(_is_first, _list_children(outside)):
            with suppress(OSError):  # it has ended already
                first_fd = os.pidfd_open(child)
                with self._lock:
                    self._forget()
                    self._first, self._first_fd = child, first_fd
                    return True
        return False

    def wait_until_gone(self) -> None:
        """Wait until all processes of a server that ends are gone, and forget them."""
        with self._lock:
            self._wait_for_first()
            self._forget()

    def pause(self) -> bool:
        """Pause all processes; return whether nothing of the server runs now. If something does, all go on."""
        with self._lock:
            deadline = time.monotonic() + PAUSE_S
            while not self._stop_all():
                # A process that is being made by vfork was stopped, and its parent waits for it in the kernel.
                self._continue_all()
                if time.monotonic() >= deadline:
                    return False
                time.sleep(_POLL_S)
            return True

    def resume(self) -> None:
        """Let all go on that was paused. What the server itself had stopped stays so."""
        with self._lock:
            self.has_lost_one = self.has_lost_one or any(not _is_stopped(process) for process in self._paused)
            self._continue_all()

    def kill(self) -> None:
        """Kill all processes, paused or not, and wait until they are gone."""
        with self._lock:
            if self._first_fd is not None:
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self._first_fd, signal.SIGKILL)
            self._wait_for_first()

    def _wait_for_first(self, within_s: float = KILL_S) -> bool:
        """Wait for the end of the first process, which the kernel lets end after all others; return whether it came."""
        if self._first_fd is None:
            return True
        poll = select.poll()
        poll.register(self._first_fd, select.POLLIN)
        return bool(poll.poll(within_s * 1_000))

    def _forget(self) -> None:
        if self._first_fd is not None:
            os.close(self._first_fd)
        self._first, self._first_fd, self._paused, self.has_lost_one = None, None, set(), False

    def _stop_all(self) -> bool:
        """Stop all processes; return whether that took effect in ATTEMPT_S.

        A process that ends leaves its children to one above it. So what runs can pass by a list that is made from the
        top down. It can't pass by a look from below upwards, as long as nothing in that list runs meanwhile.
        """
        deadline = time.monotonic() + ATTEMPT_S
        while time.monotonic() < deadline:
            listed = self._list_processes()
            runs = {process: _count_runs(process) for process in listed}
            if running := [process for process, count in runs.items() if count is None]:
                for process in running:
                    self._paused.add(process)
                    _send(process, signal.SIGSTOP)
                time.sleep(_POLL_S)
            elif _are_all(listed) and all(_count_runs(process) == count for process, count in runs.items()):
                self._paused = set(filter(_is_stopped, self._paused))  # another has ended before its signal came
                return True
        return False

    def _continue_all(self) -> None:
        for process in self._paused:
            _send(process, signal.SIGCONT)
        self._paused = set()

    def _list_processes(self) -> list[int]:
        if self._first is None or self._wait_for_first(0):
            return []
        return [self._first, *_list_descendants(self._first)]


def _list_descendants(process: int) -> list[int]:
    found: list[int] = []
    pending = [process]
    while pending:
        children = _list_children(pending.pop())
        found += children
        pending += children
    return found


def _list_children(process: int) -> list[int]:
    if not os.path.exists("/proc/thread-self/children"):  # this kernel lists them in no file
        others = filter(str.isdigit, os.listdir("/proc"))
        return [int(other) for other in others if _read_stat(other)[1:2] == [str(process)]]
    children: list[int] = []
    for thread in _list_threads(process):
        with suppress(OSError), open(f"/proc/{process}/task/{thread}/children", encoding="ascii") as file:
            children += map(int, file.read().split())
    return children


def _is_first(process: int) -> bool:
    """Whether the process is the first of a PID namespace."""
    try:
        with open(f"/proc/{process}/status", encoding="utf-8", errors="replace") as file:
            return any(line.startswith("NSpid:") and line.endswith("\t1\n") for line in file)
    except OSError:  # it ended meanwhile
        return False


def _are_all(listed: Sequence[int]) -> bool:
    """Whether none of these processes has a child that is not among them. They stand in order, parents first."""
    known = set(listed)
    return all(known.issuperset(_list_children(process)) for process in reversed(listed))


def _count_runs(process: int) -> tuple[tuple[str, ...], ...] | None:
    """Return what differs once any thread of the process has run; None if one runs now, or may run by itself."""
    counts = []
    for thread in _list_threads(process):
        with (
            suppress(OSError),
            open(f"/proc/{process}/task/{thread}/status", encoding="utf-8", errors="replace") as file,
        ):
            lines = dict(
                line.split(":", 1) for line in file if line.startswith(("State:", "voluntary", "nonvoluntary"))
            )
            if lines["State"].strip()[0] not in _STILL:
                return None
            counts.append((thread, *lines.values()))
    return tuple(counts)


def _is_stopped(process: int) -> bool:
    """Whether a thread of the process is stopped; the first may have ended before the others."""
    return any(_read_stat(f"{process}/task/{thread}")[:1] == ["T"] for thread in _list_threads(process))


def _list_threads(process: int) -> list[str]:
    try:
        return os.listdir(f"/proc/{process}/task")
    except OSError:  # it ended meanwhile
        return []


def _read_stat(of: str) -> list[str]:
    """Return what follows the name in a `stat`: the state, the parent, and more; nothing if it ended meanwhile."""
    try:
        with open(f"/proc/{of}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].decode("ascii").split()
    except OSError:
        return []


def _send(process: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(process, number)
