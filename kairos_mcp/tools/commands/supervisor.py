"""Runs a program and ends it with all that it started, also where the process that wanted it dies.

`supervisor.py LEASH PROGRAM ARGUMENT ...`, a script of its own. The leash is the reading end of a pipe that nobody
writes to: its other end closes when the process that holds it dies, by whatever signal. On Linux what left the group
or the session is ended as well, since orphans become children of this process; elsewhere the group alone.
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
END_S = 5.0  # for all to be gone: what belongs to another user can't be ended
LOOK_S = 0.001  # between two looks at what is left
NOT_BEGUN = 127  # as shells say it
_LEFT_ALONE = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)  # they are the program's to answer


def supervise(leash: int, begin: Callable[[], None]) -> NoReturn:
    """Have a child `begin` the program, and exit as it does. `begin` returns only where the program can't be begun."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    for which in _LEFT_ALONE:
        signal.signal(which, signal.SIG_IGN)
    program = os.fork()
    if program == 0:
        signal.set_wakeup_fd(-1)
        for which in (*_LEFT_ALONE, signal.SIGCHLD):
            signal.signal(which, signal.SIG_DFL)
        os.close(leash)
        with contextlib.suppress(OSError):
            begin()
        os._exit(NOT_BEGUN)
    silent = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):  # or nobody would see that the program closed them
        os.dup2(silent, stream)
    status = _ended(program, leash, woken)
    _end_all(mine_too=status is None)
    _exit_as(status)


def _ended(program: int, leash: int, woken: int) -> int | None:
    """The program's status once it has ended; None where the leash went first."""
    looked = select.poll()
    looked.register(leash)
    looked.register(woken, select.POLLIN)
    while True:
        for descriptor, _ in looked.poll():
            if descriptor == leash:
                return None
            os.read(woken, 4096)
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG)) != (0, 0):
                if found[0] == program:
                    return found[1]


def _end_all(*, mine_too: bool) -> None:
    """`mine_too`: nobody asks how the program ended. Elsewhere than on Linux the group is ended with this process in
    it, or else, by its number, by the process that is told the status."""
    if not sys.platform.startswith("linux"):
        if mine_too:
            os.killpg(0, signal.SIGKILL)
        return
    until = time.monotonic() + END_S
    while time.monotonic() < until:
        # Those that were just ended leave their own children here: it is looked again until there are none.
        if not [child for child in _children() if _killed(child)]:
            return
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG) != (0, 0):
                pass
        time.sleep(LOOK_S)


def _killed(pid: int) -> bool:
    """Whether it was there and could be."""
    try:
        os.kill(pid, signal.SIGKILL)
    except OSError:
        return False
    return True


def _children() -> list[int]:
    me = os.getpid()
    try:
        with open(f"/proc/self/task/{me}/children", encoding="ascii") as children:
            return [int(each) for each in children.read().split()]
    except OSError:  # a kernel that is built without that file
        return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _parent(pid) == me]


def _parent(pid: int) -> int | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return int(stat.read().rpartition(b")")[2].split()[1])
    except OSError:
        return None


def _exit_as(status: int | None) -> NoReturn:
    if status is None or not os.WIFSIGNALED(status):
        os._exit(128 + signal.SIGKILL if status is None else os.waitstatus_to_exitcode(status))
    which = os.WTERMSIG(status)
    if which != signal.SIGKILL:
        signal.signal(which, signal.SIG_DFL)
    os.kill(os.getpid(), which)
    os._exit(128 + which)  # for a signal that is blocked


def _begin(argv: list[str]) -> None:
    os.execvp(argv[0], argv)


if __name__ == "__main__":
    supervise(int(sys.argv[1]), lambda: _begin(sys.argv[2:]))
