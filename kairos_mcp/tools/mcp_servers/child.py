"""Runs a downstream server as a child process: reads it within bounds, and ends it with all that it started."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import IO

import anyio
import mcp_types as wire
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage

from kairos_mcp.core.json_bounds import MESSAGE_VALUES, has_more_values
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.tools.commands import supervisor
from kairos_mcp.tools.mcp_servers.flood_guard import (
    MAX_MESSAGE_BYTES,
    MESSAGE_TOO_LARGE,
    TOO_MANY_VALUES,
    ConnectionWatch,
    FloodError,
)
from kairos_mcp.tools.mcp_servers.message_repair import MessageRepair, UnreadableMessage
from kairos_mcp.tools.mcp_servers.server_processes import ServerProcesses
from kairos_mcp.tools.mcp_servers.server_sandbox import ServerSandbox

CHUNK_BYTES = 65_536
STDERR_BYTES = 18 * 1024  # the last of its stderr, kept for a person who looks for a cause and shown in part
STDERR_FREE_BYTES = 8 * 1024 * 1024  # of stderr, read at full speed
STDERR_PAUSE_S = 0.05  # after each further chunk: a server that writes without end is slowed down, not stopped
GRACE_S = 1.0  # after each step of: close its stdin, SIGTERM, SIGKILL
SANDBOX_LAUNCHER = Path(__file__).with_name("launcher.py")
SUPERVISOR = Path(supervisor.__file__)
POLL_S = 0.1  # between two checks whether it has ended
FIND_S = 0.002  # between two looks whether its sandbox is there
DRAIN_S = 0.5  # to read what a server wrote before it ended

ReadStream = MemoryObjectReceiveStream[SessionMessage | Exception]
WriteStream = MemoryObjectSendStream[SessionMessage]


@dataclass(frozen=True, slots=True)
class ChildStart:
    """How to start a child: argument list, complete environment, working folder. With a `sandbox`, which watches the
    leash itself, the argument list is built anew at each start. `processes` are given of one that is paused between
    its calls."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str | None
    sandbox: ServerSandbox | None = None
    processes: ServerProcesses | None = None


@dataclass(slots=True)
class ChildServer:
    """A running server process; `ended` is set once nothing more will come from it."""

    process: asyncio.subprocess.Process
    watch: ConnectionWatch
    repair: MessageRepair
    ended: asyncio.Event
    stderr_ended: asyncio.Event


@asynccontextmanager
async def spawn_child(
    start: ChildStart, watch: ConnectionWatch, repair: MessageRepair, ended: asyncio.Event
) -> AsyncIterator[tuple[ReadStream, WriteStream]]:
    """Start a child and yield its streams of messages; set `ended` when it has ended. Raises OSError."""
    leash_read, leash_write = os.pipe()
    leash = os.fdopen(leash_write, "wb", buffering=0)  # open until the child has ended or this process dies
    try:
        process = await _start_process(start, leash_read)
    except BaseException:
        leash.close()
        raise
    finally:
        os.close(leash_read)
    child = ChildServer(process, watch, repair, ended, asyncio.Event())
    incoming_send, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    outgoing, outgoing_receive = anyio.create_memory_object_stream[SessionMessage](0)
    tasks = [
        asyncio.create_task(_read_messages(child, incoming_send)),
        asyncio.create_task(_write_messages(child, outgoing_receive)),
        asyncio.create_task(_read_stderr(child)),
        asyncio.create_task(_end_with_server(child)),
    ]
    if start.processes is not None:
        tasks.append(asyncio.create_task(_find_processes(process, start.processes)))
    try:
        yield incoming, outgoing
    finally:
        try:
            await asyncio.shield(asyncio.create_task(_stop(child, tasks, leash)))
            if start.processes is not None:
                await asyncio.shield(asyncio.to_thread(start.processes.wait_until_gone))
        finally:
            for stream in (incoming_send, incoming, outgoing, outgoing_receive):
                stream.close()


async def _start_process(start: ChildStart, leash_fd: int) -> asyncio.subprocess.Process:
    if start.sandbox is None:
        return await _exec_launcher(start, start.argv, leash_fd)
    with ExitStack() as stack:
        # In a thread, since it searches the workspace.
        argv, pass_fds = await asyncio.to_thread(stack.enter_context, start.sandbox.open_arguments())
        return await _exec_launcher(start, argv, leash_fd, pass_fds)


async def _exec_launcher(
    start: ChildStart, argv: tuple[str, ...], leash_fd: int, pass_fds: tuple[int, ...] = ()
) -> asyncio.subprocess.Process:
    """Start the child by a launcher script. Raises OSError if the program is missing, as `exec` would: the launcher
    itself always starts, so its failure would show only in an exit status."""
    program = shutil.which(argv[0], os.F_OK, path=start.env.get("PATH", os.defpath))
    if program is None:
        raise FileNotFoundError(argv[0])
    if not os.access(program, os.X_OK):
        raise PermissionError(argv[0])
    launcher = SUPERVISOR if start.sandbox is None else SANDBOX_LAUNCHER
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-S", str(launcher), str(leash_fd), *argv),
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        env=start.env,
        cwd=start.cwd,
        start_new_session=True,
        pass_fds=(leash_fd, *pass_fds),
    )


async def _read_messages(child: ChildServer, incoming: MemoryObjectSendStream[SessionMessage | Exception]) -> None:
    """Pass on messages until the child ends or sends too much; record why it ended."""
    try:
        async for line in _read_lines(child):
            for message in _read_line(line, child):
                if child.watch.passes_on(message):
                    await incoming.send(SessionMessage(message))
        status = await _describe_exit(child.process)
        with suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_S):
                await child.stderr_ended.wait()  # its last words may be the cause
        child.watch.record_exit(status)
    except FloodError as flood:
        child.watch.record_end(str(flood))
    except (anyio.ClosedResourceError, anyio.BrokenResourceError):
        child.watch.record_end("the connection to it was closed")
    finally:
        child.ended.set()
        incoming.close()


async def _read_lines(child: ChildServer) -> AsyncIterator[bytes]:
    """Yield what it writes, line by line, the last one without an end too; JSON over several lines as one."""
    begun = bytearray()
    async for line in _read_plain_lines(child):
        bare = line.rstrip()
        is_inner = begun and bare[:1] != b"{"  # of JSON over several lines each inner one begins with blanks
        if begun and not is_inner:
            yield bytes(begun)
            begun.clear()
        if not (is_inner or bare == b"{"):
            yield line
            continue
        begun += bare + b"\n"
        if len(begun) > MAX_MESSAGE_BYTES:
            raise FloodError(MESSAGE_TOO_LARGE)
        if bare == b"}":
            yield bytes(begun)
            begun.clear()


async def _read_plain_lines(child: ChildServer) -> AsyncIterator[bytes]:
    assert child.process.stdout is not None
    pending = bytearray()
    while chunk := await child.process.stdout.read(CHUNK_BYTES):
        rest_of_line, *lines = chunk.split(b"\n")
        pending += rest_of_line
        if len(pending) > MAX_MESSAGE_BYTES:
            raise FloodError(MESSAGE_TOO_LARGE)
        for other in lines:
            yield bytes(pending)
            pending = bytearray(other)
    yield bytes(pending)


def _read_line(line: bytes, child: ChildServer) -> list[wire.JSONRPCMessage]:
    if not line.strip():
        return []
    if has_more_values(line, MESSAGE_VALUES):
        raise FloodError(TOO_MANY_VALUES)
    try:
        return child.repair.read_messages(line)
    except UnreadableMessage:
        child.watch.count_unreadable(line)
        return []


async def _write_messages(child: ChildServer, outgoing: MemoryObjectReceiveStream[SessionMessage]) -> None:
    assert child.process.stdin is not None
    with suppress(OSError, anyio.ClosedResourceError, anyio.BrokenResourceError):
        async for item in outgoing:
            line = item.message.model_dump_json(by_alias=True, exclude_unset=True)
            child.process.stdin.write(line.encode() + b"\n")
            await child.process.stdin.drain()


async def _read_stderr(child: ChildServer) -> None:
    assert child.process.stderr is not None
    total = 0
    with suppress(OSError):
        while chunk := await child.process.stderr.read(CHUNK_BYTES):
            child.watch.stderr += chunk
            del child.watch.stderr[:-STDERR_BYTES]
            total += len(chunk)
            if total > STDERR_FREE_BYTES:
                await asyncio.sleep(STDERR_PAUSE_S)
    child.stderr_ended.set()


async def _end_with_server(child: ChildServer) -> None:
    """Kill what the server started once it has ended itself: that may hold its streams open, and so hide its end."""
    while child.process.returncode is None:  # noqa: ASYNC110 - `wait` would also wait for its pipes
        await asyncio.sleep(POLL_S)
    await asyncio.sleep(DRAIN_S)
    if not child.ended.is_set():
        _signal_group(child.process, signal.SIGKILL)


async def _find_processes(process: asyncio.subprocess.Process, processes: ServerProcesses) -> None:
    """Find the server inside its sandbox as soon as bubblewrap has made that."""
    while process.returncode is None and not processes.find_first(process.pid):  # noqa: ASYNC110 - no event tells
        await asyncio.sleep(FIND_S)


async def _describe_exit(process: asyncio.subprocess.Process) -> str:
    """Return how it ended, in words that follow "it ended"; it may have closed its output and live on."""
    if not await _wait_for_exit(process, GRACE_S):
        return " its side of the connection"
    code = process.returncode or 0
    return f" with status {code}" if code >= 0 else f", killed by {signal.Signals(-code).name}"


async def _stop(child: ChildServer, tasks: list[asyncio.Task[None]], leash: IO[bytes]) -> None:
    """End the child: by asking first, unless this is cancelled too, as where the event loop ends before that."""
    process = child.process
    assert process.stdin is not None
    has_failed = child.watch.end_reason is not None
    child.watch.record_end("the connection to it was closed")
    try:
        process.stdin.close()
        if not has_failed:
            await _wait_for_exit(process, GRACE_S)
        _signal_group(process, signal.SIGTERM)
        await _wait_for_exit(process, GRACE_S)
    finally:
        leash.close()  # the supervisor or the sandbox now kills what is left of it and of what it started
        await _wait_for_exit(process, GRACE_S)
        _signal_group(process, signal.SIGKILL)
        await _wait_for_exit(process, GRACE_S)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        # A grandchild may hold a pipe: nothing public closes our end, and it can't be closed once the loop is.
        transport = getattr(process, "_transport", None)
        if transport is not None:
            with suppress(PermissionError):
                transport.close()


async def _wait_for_exit(process: asyncio.subprocess.Process, within_s: float) -> bool:
    """Wait for its end; return whether it came in time. `wait` would also wait for pipes that others may hold open."""
    deadline = _now() + within_s
    while process.returncode is None and _now() < deadline:  # noqa: ASYNC110 - see above: there is no event
        await asyncio.sleep(0.01)
    return process.returncode is not None


def _now() -> float:
    return asyncio.get_running_loop().time()


def _signal_group(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    """Send a signal to the child's whole group, which may live on when the child has ended."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
