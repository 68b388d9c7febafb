"""Runs one program to its end: in a session of its own, its output read as it comes, killed with all that it started.

Time, output, memory and the number of tasks are bounded. Of each output stream the beginning and the end are kept.
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
from dataclasses import field
from pathlib import Path
from typing import IO, Literal

from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.text import FindParted, find_nothing_parted
from kairos_mcp.tools.commands.cgroups import task_limit_group
from kairos_mcp.tools.commands.task_limits import SandboxTasks, read_parent_pid

EndReason = Literal["exit", "timeout", "stopped", "memory", "tasks", "flood", "not_started", "no_sandbox"]

HEAD_BYTES = 128 * 1024  # kept of the beginning of each stream
TAIL_BYTES = 384 * 1024  # and of its end, where failures are reported
FLOOD_BYTES = 64 << 20  # of both streams together: nobody reads more, and `yes` writes it in a second
FILE_BYTES = 1 << 30  # the largest file that the program may write
TASKS = 512  # processes and threads: a program with more is killed
KERNEL_TASKS = 2 * TASKS  # the kernel's limit, which holds until we notice
OPEN_FILES = 4096
POLL_S = 0.02  # between two checks of time, tasks and the stop signal: short, since a fork bomb doubles fast
START_POLL_S = 0.002  # between two checks while the sandbox has not yet reported the pid of what it started
MEMORY_POLL_S = 0.1  # between two sums of the memory in use, which cost more
DRAIN_S = 1.0  # to read what is left in the pipes, and for killed processes to be gone
LEASH_FD, STATUS_FD = 3, 4  # descriptor numbers in the process that is started
LAUNCHER = Path(__file__).with_name("launcher.py")
BESIDE_CUT_BYTES = 16 * 1024
_CHUNK_BYTES = 64 * 1024
_CHILD_PID = re.compile(rb'"child-pid": (\d+)[,\s}]')
_EXIT_CODE = re.compile(rb'"exit-code": (\d+)[,\s}]')
_ERRNO = re.compile(rb"errno (\d+)")


@dataclass(slots=True)
class CapturedStream:
    """The output of one stream: its first bytes, its last bytes, and how many there were. Of what is left out the bytes
    beside each cut are held too, so that a secret can be seen that the cut would part."""

    head: bytearray = field(default_factory=bytearray)
    tail: bytearray = field(default_factory=bytearray)
    total: int = 0

    def add(self, chunk: bytes) -> None:
        self.total += len(chunk)
        head_space = HEAD_BYTES + BESIDE_CUT_BYTES - len(self.head)
        if head_space > 0:
            self.head += chunk[:head_space]
            chunk = chunk[head_space:]
        self.tail += chunk
        if len(self.tail) > 2 * TAIL_BYTES:
            del self.tail[: -TAIL_BYTES - BESIDE_CUT_BYTES]

    def text(self, find_parted: FindParted = find_nothing_parted) -> str:
        """Decode what was kept. Invalid UTF-8 becomes U+FFFD; a note stands where bytes were left out. A secret
        that this would part is left out too."""
        held = bytes(self.head + self.tail)
        if self.total <= HEAD_BYTES + TAIL_BYTES:
            return held.decode("utf-8", "replace")
        head, _ = _cut_at(held[: HEAD_BYTES + BESIDE_CUT_BYTES], HEAD_BYTES, find_parted)
        _, tail = _cut_at(held[-TAIL_BYTES - BESIDE_CUT_BYTES :], BESIDE_CUT_BYTES, find_parted)
        omitted = self.total - HEAD_BYTES - TAIL_BYTES
        note = f"\n[{omitted:,} of {self.total:,} bytes were not kept]\n"
        return head + note + tail


def _cut_at(held: bytes, at: int, find_parted: FindParted) -> tuple[str, str]:
    """Return the text before this byte and the one from it on, both without a secret that it would part."""
    before = held[:at].decode("utf-8", "replace")
    text = before + held[at:].decode("utf-8", "replace")
    begins, ends = find_parted(text, len(before))
    return text[:begins], text[ends:]


@dataclass(frozen=True, slots=True)
class ProcessResult:
    """How a program ended.

    `exit_code` is 128 plus the signal's number if a signal killed the program, and None if we killed it or it never
    started. Reason `not_started`: the program could not be executed. `no_sandbox`: the sandbox could not be built, so
    nothing ran. `errno` gives the cause of these two; it is None if only bubblewrap's message on stderr tells.
    """

    reason: EndReason
    exit_code: int | None
    stdout: CapturedStream
    stderr: CapturedStream
    errno: int | None = None


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """What to run, and within which bounds.

    `argv` is the whole argument list, including the sandbox, which finds its status file at STATUS_FD and its leash at
    LEASH_FD. `pass_fds` are further descriptors to inherit. `deadline` is on `time.monotonic()`; `memory_bytes` is for
    all processes together. `recheck` is called right before the start; if it raises, nothing is started.
    """

    argv: Sequence[str]
    sandboxed: bool
    cwd: str
    environ: Mapping[str, str]
    deadline: float
    is_stopped: Callable[[], bool]
    memory_bytes: int
    pass_fds: Sequence[int] = ()
    recheck: Callable[[], None] = lambda: None


def run_process(request: LaunchRequest) -> ProcessResult:
    """Run a program to its end. Blocks until it has ended and, in a sandbox, everything that it started.

    The calling thread must live that long: the kernel kills the program together with it.
    """
    # A file, not a pipe: bubblewrap gives up halfway if it writes to a pipe whose reader is gone.
    with tempfile.TemporaryFile(buffering=0) as status, task_limit_group(KERNEL_TASKS) as cgroup:
        leash_read, leash_write = os.pipe()  # kept open until the program has ended or this process dies
        with os.fdopen(leash_write, "wb", buffering=0) as leash:
            try:
                child = _start_process(request, status.fileno(), leash_read, cgroup)
            finally:
                os.close(leash_read)
            with child:
                return _WatchedChild(request, child, status.fileno(), leash).run_to_end()


def _start_process(
    request: LaunchRequest, status_fd: int, leash_fd: int, cgroup: Path | None
) -> subprocess.Popen[bytes]:
    with open("/proc/loadavg" if sys.platform.startswith("linux") else os.devnull, encoding="ascii") as load:
        running = int((load.read() or "0/0").split("/")[1].split()[0])
    limits = {
        "core": 0,
        "fsize": FILE_BYTES,
        "nofile": OPEN_FILES,
        "data": request.memory_bytes,
        "nproc": running + KERNEL_TASKS,  # the kernel counts all tasks of the user, not only these
    }
    limit_arguments = [f"{name}={limit}" for name, limit in limits.items()]
    group_arguments = [] if cgroup is None else [str(cgroup)]
    channels = [f"{leash_fd}:{LEASH_FD}", f"{status_fd}:{STATUS_FD}", "1" if request.sandboxed else "0"]
    request.recheck()
    return subprocess.Popen(
        [sys.executable, "-I", "-S", str(LAUNCHER), *channels, *limit_arguments, *group_arguments, "--", *request.argv],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=request.cwd,
        env=dict(request.environ),
        pass_fds=(status_fd, leash_fd, *request.pass_fds),
        start_new_session=True,
    )


class _WatchedChild:
    """A running child. Everything happens in one thread, so nothing can signal a pid that was reused meanwhile."""

    def __init__(
        self, request: LaunchRequest, child: subprocess.Popen[bytes], status_fd: int, leash: IO[bytes]
    ) -> None:
        self._request = request
        self._child = child
        self._leash = leash
        self._reaped = False
        self._status_fd = status_fd
        self._inner_pidfd: int | None = None  # pidfd of the sandbox's first process, which dies last
        self._inner_pid = 0
        self._tasks: SandboxTasks | None = None
        self.stdout, self.stderr = CapturedStream(), CapturedStream()
        self._selector = selectors.DefaultSelector()
        assert child.stdout is not None
        assert child.stderr is not None
        for number, stream in ((child.stdout.fileno(), self.stdout), (child.stderr.fileno(), self.stderr)):
            os.set_blocking(number, False)
            self._selector.register(number, selectors.EVENT_READ, stream)
        self._child_pidfd = os.pidfd_open(child.pid) if hasattr(os, "pidfd_open") else None

    def run_to_end(self) -> ProcessResult:
        try:
            reason = self._watch_until_end()
            self._kill()
            self._drain()
            code = self._child.wait()
            self._reaped = True
            return self._result(reason, code)
        finally:
            self._kill()
            self._selector.close()
            for pidfd in (self._inner_pidfd, self._child_pidfd):
                if pidfd is not None:
                    os.close(pidfd)
            if self._tasks is not None:
                self._tasks.close()

    def _watch_until_end(self) -> EndReason:
        """Read its output until the program has ended or must be killed; return which.

        The end of its streams tells neither: it may close them early, and others may hold them open afterwards.
        """
        if self._child_pidfd is not None:
            self._selector.register(self._child_pidfd, selectors.EVENT_READ, self._child_pidfd)
        counted_at = measured_at = time.monotonic()
        while True:
            is_inner_unknown = self._request.sandboxed and self._inner_pidfd is None
            if is_inner_unknown:
                self._find_inner_process()
            if self._read_output(START_POLL_S if is_inner_unknown else POLL_S):
                return "exit"
            now = time.monotonic()
            if self._request.is_stopped():
                return "stopped"
            if now >= self._request.deadline:
                return "timeout"
            if self.stdout.total + self.stderr.total > FLOOD_BYTES:
                return "flood"
            if now - counted_at >= POLL_S:
                counted_at = now
                exceeded = self._exceeded_limit(measure_memory=now - measured_at >= MEMORY_POLL_S)
                measured_at = now if now - measured_at >= MEMORY_POLL_S else measured_at
                if exceeded is not None:
                    return exceeded

    def _exceeded_limit(self, *, measure_memory: bool) -> EndReason | None:
        """Return the limit that all tasks together exceed, if any.

        The kernel bounds each process; this bounds the sum, and also the number where the kernel doesn't, as for root.
        """
        if self._tasks is None and self._inner_pidfd is not None:
            self._tasks = SandboxTasks.open_of(self._inner_pid)
        if self._tasks is None:
            return None
        if self._tasks.count_processes() > TASKS:
            return "tasks"
        if not measure_memory:
            return None
        count, memory = self._tasks.measure(TASKS)
        if count > TASKS:
            return "tasks"
        return "memory" if memory > self._request.memory_bytes else None

    def _read_output(self, timeout_s: float) -> bool:
        """Read the output that is there, waiting `timeout_s` for some. Return whether the program has ended."""
        has_ended = self._child_pidfd is None and self._child.poll() is not None
        for key, _ in self._selector.select(0 if has_ended else timeout_s):
            if key.fd == self._child_pidfd:
                has_ended = True
                continue
            chunk = os.read(key.fd, _CHUNK_BYTES)
            if not chunk:
                self._selector.unregister(key.fd)
            else:
                key.data.add(chunk)
        return has_ended

    def _find_inner_process(self) -> None:
        """Open a pidfd of the first process inside, once the sandbox has reported its pid."""
        match = _CHILD_PID.search(self._read_status())
        if match is None or not hasattr(os, "pidfd_open"):
            return
        pid = int(match[1])
        with contextlib.suppress(OSError):  # it has ended already
            # If it is no child of our child, the pid was reused meanwhile.
            pidfd = os.pidfd_open(pid)
            if read_parent_pid(pid) == self._child.pid:
                self._inner_pidfd, self._inner_pid = pidfd, pid
            else:
                os.close(pidfd)

    def _read_status(self) -> bytes:
        """Return what the sandbox, or our launcher, has written to the status file."""
        return os.pread(self._status_fd, 4096, 0)

    def _kill(self) -> None:
        """Kill the program and everything that it started.

        In a sandbox the death of its first process takes along all others, whatever session they are in. Without one
        the child is a supervisor, which kills what left the session and must live until it has done so.
        """
        if not self._request.sandboxed and not self._reaped:
            self._leash.close()
            deadline = time.monotonic() + DRAIN_S
            while self._child.poll() is None and time.monotonic() < deadline:
                time.sleep(START_POLL_S)  # between two looks
        if self._inner_pidfd is not None:
            with contextlib.suppress(OSError):
                # Else a thousand busy tasks delay its death. Only root may, and only root has no limit of tasks.
                os.setpriority(os.PRIO_PROCESS, self._inner_pid, -20)
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(self._inner_pidfd, signal.SIGKILL)
        if not self._reaped:
            with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS raises the latter for dead ones
                os.killpg(self._child.pid, signal.SIGKILL)

    def _drain(self) -> None:
        """Read what is still in the pipes, and wait for the sandbox to end; both for DRAIN_S at most, since a process
        outside the session may hold a pipe open."""
        if self._child_pidfd is not None:
            self._selector.unregister(self._child_pidfd)
        deadline = time.monotonic() + DRAIN_S
        while self._selector.get_map() and self.stdout.total + self.stderr.total <= 2 * FLOOD_BYTES:
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0:
                break
            self._read_output(remaining_s)
        if self._inner_pidfd is not None:
            with selectors.DefaultSelector() as selector:
                selector.register(self._inner_pidfd, selectors.EVENT_READ)
                selector.select(DRAIN_S)

    def _result(self, reason: EndReason, code: int) -> ProcessResult:
        if reason != "exit":
            return ProcessResult(reason, None, self.stdout, self.stderr)
        status = self._read_status()
        not_begun: EndReason = "no_sandbox" if self._request.sandboxed else "not_started"
        if found := _ERRNO.search(status):
            return ProcessResult(not_begun, None, self.stdout, self.stderr, int(found[1]))
        if found := _EXIT_CODE.search(status):
            return ProcessResult("exit", int(found[1]), self.stdout, self.stderr)
        if self._request.sandboxed and code >= 0:  # bubblewrap gives up by itself only before the program begins
            return ProcessResult(not_begun, None, self.stdout, self.stderr)
        return ProcessResult("exit", code if code >= 0 else 128 - code, self.stdout, self.stderr)
