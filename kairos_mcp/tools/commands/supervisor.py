"""Runs a program, and kills it with everything that it started as soon as it ends or our server dies.

Run as a script: `supervisor.py LEASH PROGRAM ARGUMENT ...`. LEASH is the reading end of a pipe that nobody writes to.
The server holds the other end, which closes when the server dies, by whatever signal. On Linux also processes that
left the group or the session are killed, since orphans become children of this process; elsewhere only the group.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from typing import NoReturn

PR_SET_CHILD_SUBREAPER = 36
KILL_ALL_S = 5.0  # then it gives up: processes of another user can't be killed
POLL_S = 0.001  # between two listings of what is left
NOT_STARTED = 127  # the exit code that shells use
_IGNORED_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)  # the program decides what they do


def supervise(leash_fd: int, start_program: Callable[[], None]) -> NoReturn:
    """Start the program in a child, wait for its end, and exit as it did. Never returns.

    `start_program` replaces the child by the program; it returns only if that fails.
    """
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    os.set_blocking(wake_read, False)
    signal.set_wakeup_fd(wake_write)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    for number in _IGNORED_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    program = os.fork()
    if program == 0:
        signal.set_wakeup_fd(-1)
        for number in (*_IGNORED_SIGNALS, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        os.close(leash_fd)
        with contextlib.suppress(OSError):
            start_program()
        os._exit(NOT_STARTED)
    devnull = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):  # else a stream stays open here after the program closed it
        os.dup2(devnull, stream)
    status = _wait_for_program(program, leash_fd, wake_read)
    _kill_all(including_self=status is None)
    _exit_as(status)


def _wait_for_program(program: int, leash_fd: int, wake_read: int) -> int | None:
    """Wait for the program; return its wait status, or None if the leash was closed first."""
    poll = select.poll()
    poll.register(leash_fd)
    poll.register(wake_read, select.POLLIN)
    while True:
        for descriptor, _ in poll.poll():
            if descriptor == leash_fd:
                return None
            os.read(wake_read, 4096)
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG)) != (0, 0):
                if found[0] == program:
                    return found[1]


def _kill_all(*, including_self: bool) -> None:
    """Kill everything that the program started.

    Only Linux lets us find what left the group. Elsewhere the group is killed with this process in it, if
    `including_self`: nobody asks for the exit status then. Otherwise the server kills the group once it has the status.
    """
    if not sys.platform.startswith("linux"):
        if including_self:
            os.killpg(0, signal.SIGKILL)
        return
    deadline = time.monotonic() + KILL_ALL_S
    while time.monotonic() < deadline:
        # The children of those just killed become ours: repeat until there are none.
        if not [child for child in _list_children() if _try_kill(child)]:
            return
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG) != (0, 0):
                pass
        time.sleep(POLL_S)  # a killed process is a child of ours, or gone, only a moment later


def _try_kill(pid: int) -> bool:
    """Kill a process; return whether it was there and could be killed."""
    try:
        os.kill(pid, signal.SIGKILL)
    except OSError:
        return False
    return True


def _list_children() -> list[int]:
    own_pid = os.getpid()
    try:
        with open(f"/proc/self/task/{own_pid}/children", encoding="ascii") as children:
            return [int(pid) for pid in children.read().split()]
    except OSError:  # some kernels are built without that file
        return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _read_parent_pid(pid) == own_pid]


def _read_parent_pid(pid: int) -> int | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return int(stat.read().rpartition(b")")[2].split()[1])
    except OSError:
        return None


def _exit_as(status: int | None) -> NoReturn:
    if status is None or not os.WIFSIGNALED(status):
        os._exit(128 + signal.SIGKILL if status is None else os.waitstatus_to_exitcode(status))
    number = os.WTERMSIG(status)
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    os._exit(128 + number)  # if the signal is blocked


if __name__ == "__main__":
    supervise(int(sys.argv[1]), lambda: os.execvp(sys.argv[2], sys.argv[2:]))
