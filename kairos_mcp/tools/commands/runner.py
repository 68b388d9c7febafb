"""One program, run to its end: started in a session of its own, read while it runs, ended with all that it started.

It is bounded in time, output, memory and number of tasks, whatever it does; what came out is kept head and tail.
"""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Literal

from kairos_mcp.tools.commands.cgroups import bounded
from kairos_mcp.tools.commands.task_limits import SandboxTasks, parent_of

Why = Literal["exit", "timeout", "stopped", "memory", "tasks", "flood", "not_started", "no_sandbox"]

HEAD_BYTES = 128 * 1024  # kept of each stream: how it began,
TAIL_BYTES = 384 * 1024  # and how it ended, where failures are told
FLOOD_BYTES = 64 << 20  # of both: more is nothing that anybody reads, and `yes` writes it in a second
FILE_BYTES = 1 << 30  # the largest file
TASKS = 512  # threads and children: with more it is ended
MOST_TASKS = 2 * TASKS  # what the kernel lets it have until that was seen
OPEN_FILES = 4096
TICK_S = 0.02  # between two looks at the clock, the tasks and the wish to stop: what doubles grows fast
SOON_S = 0.002  # until the sandbox has told what it started
MEMORY_S = 0.1  # between two sums of memory, which cost more
LAST_WORDS_S = 1.0  # for what has ended to be gone
LEASH_FD, STATUS_FD = 3, 4  # in the process that is started
LAUNCHER = Path(__file__).with_name("launcher.py")
_PIECE = 64 * 1024
_CHILD = re.compile(rb'"child-pid": (\d+)[,\s}]')
_EXIT = re.compile(rb'"exit-code": (\d+)[,\s}]')
_ERRNO = re.compile(rb"errno (\d+)")


@dataclass(slots=True)
class CapturedStream:
    """What a stream brought: its first bytes, its last, and how many there were."""

    head: bytearray = field(default_factory=bytearray)
    tail: bytearray = field(default_factory=bytearray)
    total: int = 0

    def add(self, piece: bytes) -> None:
        self.total += len(piece)
        room = HEAD_BYTES - len(self.head)
        if room > 0:
            self.head += piece[:room]
            piece = piece[room:]
        self.tail += piece
        if len(self.tail) > 2 * TAIL_BYTES:
            del self.tail[:-TAIL_BYTES]

    def text(self) -> str:
        """Bytes that are no UTF-8 become U+FFFD; what is left out is said in its place."""
        if self.total <= HEAD_BYTES + TAIL_BYTES:
            return bytes(self.head + self.tail).decode("utf-8", "replace")
        head, tail = bytes(self.head), bytes(self.tail[-TAIL_BYTES:])
        left_out = self.total - len(head) - len(tail)
        note = f"\n[{left_out:,} of {self.total:,} bytes were not kept]\n"
        return head.decode("utf-8", "replace") + note + tail.decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class ProcessResult:
    """How it ended. `exit_code` is 128 and the signal for one that a signal ended, None where that was done from here.

    `not_started`: the program could not be begun. `no_sandbox`: the sandbox around it could not be made, so it was not
    begun either. `errno` says why, None where only bubblewrap's words on standard error do.
    """

    why: Why
    exit_code: int | None
    out: CapturedStream
    err: CapturedStream
    errno: int | None = None


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """What to run: the whole argument list, a sandbox included, which has its status at STATUS_FD and its leash at
    LEASH_FD; `lent` are further descriptors that it is started with. `cwd` is where the process starts. `until` is a
    deadline on `time.monotonic()`, `stop_wanted` whether it is to be stopped now, `memory` bytes for all together;
    `still` is called right before it is started, which it isn't where that raises.
    """

    argv: Sequence[str]
    sandboxed: bool
    cwd: str
    environ: Mapping[str, str]
    until: float
    stop_wanted: Callable[[], bool]
    memory: int
    lent: Sequence[int] = ()
    still: Callable[[], None] = lambda: None


def run_to_end(order: LaunchRequest) -> ProcessResult:
    """Blocks until it has ended, and with it, in a sandbox, all that it started. The calling thread must live as long:
    the kernel ends the program with it."""
    # A file, since bubblewrap gives up, half begun, where it writes to a pipe that nobody reads any more.
    with tempfile.TemporaryFile(buffering=0) as status, bounded(MOST_TASKS) as group:
        leash_r, leash_w = os.pipe()  # held until all is over, or this process is
        with os.fdopen(leash_w, "wb", buffering=0) as leash:
            try:
                child = _start(order, status.fileno(), leash_r, group)
            finally:
                os.close(leash_r)
            with child:
                return _WatchedChild(order, child, status.fileno(), leash).to_end()


def _start(order: LaunchRequest, status: int, leash: int, group: Path | None) -> subprocess.Popen[bytes]:
    with open("/proc/loadavg" if sys.platform.startswith("linux") else os.devnull, encoding="ascii") as load:
        running = int((load.read() or "0/0").split("/")[1].split()[0])
    limits = {
        "core": 0,
        "fsize": FILE_BYTES,
        "nofile": OPEN_FILES,
        "data": order.memory,
        "nproc": running + MOST_TASKS,  # the kernel counts all of a user's tasks, here and outside
    }
    bounds = [f"{name}={most}" for name, most in limits.items()]
    joined = [] if group is None else [str(group)]
    given = [f"{leash}:{LEASH_FD}", f"{status}:{STATUS_FD}", "1" if order.sandboxed else "0"]
    order.still()
    return subprocess.Popen(
        [sys.executable, "-I", "-S", str(LAUNCHER), *given, *bounds, *joined, "--", *order.argv],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=order.cwd,
        env=dict(order.environ),
        pass_fds=(status, leash, *order.lent),
        start_new_session=True,
    )


class _WatchedChild:
    """A child while it runs. Everything happens in one thread: no callback can meet a pid that was given away."""

    def __init__(self, order: LaunchRequest, child: subprocess.Popen[bytes], status: int, leash: IO[bytes]) -> None:
        self._order = order
        self._child = child
        self._leash = leash
        self._reaped = False
        self._status = status
        self._inner: int | None = None  # a pidfd of what dies last inside
        self._inner_pid = 0
        self._tasks: SandboxTasks | None = None
        self.out, self.err = CapturedStream(), CapturedStream()
        self._open = selectors.DefaultSelector()
        assert child.stdout is not None
        assert child.stderr is not None
        for number, stream in ((child.stdout.fileno(), self.out), (child.stderr.fileno(), self.err)):
            os.set_blocking(number, False)
            self._open.register(number, selectors.EVENT_READ, stream)
        self._end = os.pidfd_open(child.pid) if hasattr(os, "pidfd_open") else None

    def to_end(self) -> ProcessResult:
        try:
            why = self._read()
            self._kill()
            self._drain()
            code = self._child.wait()
            self._reaped = True
            return self._told(why, code)
        finally:
            self._kill()
            self._open.close()
            for held in (self._inner, self._end):
                if held is not None:
                    os.close(held)
            if self._tasks is not None:
                self._tasks.close()

    def _read(self) -> Why:
        """Until the program has ended, or has to. Its streams may be closed before, or be held by others after."""
        if self._end is not None:
            self._open.register(self._end, selectors.EVENT_READ, self._end)
        counted = weighed = time.monotonic()
        while True:
            unknown = self._order.sandboxed and self._inner is None
            if unknown:
                self._hold()
            if self._take(SOON_S if unknown else TICK_S):
                return "exit"
            now = time.monotonic()
            if self._order.stop_wanted():
                return "stopped"
            if now >= self._order.until:
                return "timeout"
            if self.out.total + self.err.total > FLOOD_BYTES:
                return "flood"
            if now - counted >= TICK_S:
                counted = now
                over = self._over(weigh=now - weighed >= MEMORY_S)
                weighed = now if now - weighed >= MEMORY_S else weighed
                if over is not None:
                    return over

    def _over(self, *, weigh: bool) -> Why | None:
        """Whether all together are too many or too large. The kernel bounds each process; this bounds the sum, and the
        number where the kernel doesn't, as for root."""
        if self._tasks is None and self._inner is not None:
            self._tasks = SandboxTasks.of(self._inner_pid)
        if self._tasks is None:
            return None
        if self._tasks.processes() > TASKS:
            return "tasks"
        if not weigh:
            return None
        count, memory = self._tasks.count(TASKS)
        if count > TASKS:
            return "tasks"
        return "memory" if memory > self._order.memory else None

    def _take(self, patience: float) -> bool:
        """Read what has come; whether the program has ended."""
        ended = self._end is None and self._child.poll() is not None
        for key, _ in self._open.select(0 if ended else patience):
            if key.fd == self._end:
                ended = True
                continue
            piece = os.read(key.fd, _PIECE)
            if not piece:
                self._open.unregister(key.fd)
            else:
                key.data.add(piece)
        return ended

    def _hold(self) -> None:
        """Know the first process inside, once the sandbox has told of it. It is a child of our child, else the number
        was given to somebody else by now."""
        found = _CHILD.search(self._said())
        if found is None or not hasattr(os, "pidfd_open"):
            return
        pid = int(found[1])
        with contextlib.suppress(OSError):  # it has ended
            held = os.pidfd_open(pid)
            if parent_of(pid) == self._child.pid:
                self._inner, self._inner_pid = held, pid
            else:
                os.close(held)

    def _said(self) -> bytes:
        """What the sandbox, or the starter, has written of itself."""
        return os.pread(self._status, 4096, 0)

    def _kill(self) -> None:
        """The whole session; in a sandbox the first of it takes the rest along, whatever session that is in. Without
        one the child is a supervisor: it ends what left the session, and must live until it has.

        What is inside goes first, and before all others: a thousand that want the processor must not keep it from
        dying.
        """
        if not self._order.sandboxed and not self._reaped:
            self._leash.close()
            until = time.monotonic() + LAST_WORDS_S
            while self._child.poll() is None and time.monotonic() < until:
                time.sleep(SOON_S)  # between two looks
        if self._inner is not None:
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, self._inner_pid, -20)  # root alone may, and root alone has no NPROC
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(self._inner, signal.SIGKILL)
        if not self._reaped:
            with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS has the latter for dead ones
                os.killpg(self._child.pid, signal.SIGKILL)

    def _drain(self) -> None:
        """What is still in the pipes, and the end of all that runs inside. Somebody who holds a pipe without being of
        the session is not waited for long."""
        if self._end is not None:
            self._open.unregister(self._end)
        until = time.monotonic() + LAST_WORDS_S
        while self._open.get_map() and self.out.total + self.err.total <= 2 * FLOOD_BYTES:
            left = until - time.monotonic()
            if left <= 0:
                break
            self._take(left)
        if self._inner is not None:
            with selectors.DefaultSelector() as last:
                last.register(self._inner, selectors.EVENT_READ)
                last.select(LAST_WORDS_S)

    def _told(self, why: Why, code: int) -> ProcessResult:
        if why != "exit":
            return ProcessResult(why, None, self.out, self.err)
        said = self._said()
        unmade: Why = "no_sandbox" if self._order.sandboxed else "not_started"
        if found := _ERRNO.search(said):
            return ProcessResult(unmade, None, self.out, self.err, int(found[1]))
        if found := _EXIT.search(said):
            return ProcessResult("exit", int(found[1]), self.out, self.err)
        if self._order.sandboxed and code >= 0:  # it gave up by itself, which it does only before the program begins
            return ProcessResult(unmade, None, self.out, self.err)
        return ProcessResult("exit", code if code >= 0 else 128 - code, self.out, self.err)
