"""A downstream server as a child process: started with the environment given, read in bounds, ended with its own."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import anyio
import mcp_types as wire
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage

from kairos_mcp.tools.commands import supervisor
from kairos_mcp.tools.mcp_servers.enclosure import ServerSandbox
from kairos_mcp.tools.mcp_servers.flood_guard import LINE_BYTES, ConnectionWatch, FloodError

CHUNK = 65_536
STDERR_BYTES = 2_000  # of its end, for a person who looks for the cause
STDERR_FREE = 8 * 1024 * 1024  # read as it comes
STDERR_PAUSE_S = 0.05  # and from then on after each chunk: a server that never stops is slowed down, and goes on
GRACE_S = 1.0  # between each of: its input is closed, SIGTERM, SIGKILL
INSIDE = Path(__file__).with_name("launcher.py")
OUTSIDE = Path(supervisor.__file__)
ENDED_S = 0.1  # between two looks whether it has ended
LAST_WORDS_S = 0.5  # for what a server that has ended wrote before

Read = MemoryObjectReceiveStream[SessionMessage | Exception]
Write = MemoryObjectSendStream[SessionMessage]


@dataclass(frozen=True, slots=True)
class ChildStart:
    """How a child is started: its argument list, its whole environment, its folder. `enclosure`: the sandbox that it is
    started in, which reads the leash itself."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str | None
    enclosure: ServerSandbox | None = None


@dataclass(slots=True)
class ChildServer:
    """A running server, and what is known of it."""

    process: asyncio.subprocess.Process
    watch: ConnectionWatch
    over: asyncio.Event


@asynccontextmanager
async def spawned(start: ChildStart, watch: ConnectionWatch, over: asyncio.Event) -> AsyncIterator[tuple[Read, Write]]:
    """The streams of a new child; `over` is set when it has ended. Raises OSError where it can't be started."""
    leash_r, leash_w = os.pipe()
    leash = os.fdopen(leash_w, "wb", buffering=0)  # held until the child has ended, or this process is
    try:
        process = await _started(start, leash_r)
    except BaseException:
        leash.close()
        raise
    finally:
        os.close(leash_r)
    child = ChildServer(process, watch, over)
    heard, read = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    write, said = anyio.create_memory_object_stream[SessionMessage](0)
    tasks = [
        asyncio.create_task(_hear(child, heard)),
        asyncio.create_task(_say(child, said)),
        asyncio.create_task(_drain(child)),
        asyncio.create_task(_outlived(child)),
    ]
    try:
        yield read, write
    finally:
        await asyncio.shield(asyncio.create_task(_end(child, tasks, leash)))
        for stream in (heard, read, write, said):
            stream.close()


async def _started(start: ChildStart, leash: int) -> asyncio.subprocess.Process:
    if start.enclosure is None:
        return await _launched(start, start.argv, leash)
    with ExitStack() as opened:
        # In a thread: it looks through the workspace.
        argv, lent = await asyncio.to_thread(opened.enter_context, start.enclosure.built())
        return await _launched(start, argv, leash, lent)


async def _launched(
    start: ChildStart, argv: tuple[str, ...], leash: int, lent: tuple[int, ...] = ()
) -> asyncio.subprocess.Process:
    """Raises OSError for a program that is not there, as `exec` would: what starts it here can't be missed."""
    found = shutil.which(argv[0], os.F_OK, path=start.env.get("PATH", os.defpath))
    if found is None:
        raise FileNotFoundError(argv[0])
    if not os.access(found, os.X_OK):
        raise PermissionError(argv[0])
    launcher = OUTSIDE if start.enclosure is None else INSIDE
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-S", str(launcher), str(leash), *argv),
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        env=start.env,
        cwd=start.cwd,
        start_new_session=True,
        pass_fds=(leash, *lent),
    )


async def _hear(child: ChildServer, heard: MemoryObjectSendStream[SessionMessage | Exception]) -> None:
    """Read messages until the child ends or sends too much."""
    try:
        async for line in _lines(child):
            message = _message(line, child.watch)
            if message is not None and child.watch.admit(message):
                await heard.send(SessionMessage(message))
        status = await _status(child.process)
        child.watch.ended(f"it ended{status}")
    except FloodError as flood:
        child.watch.ended(str(flood))
    except (anyio.ClosedResourceError, anyio.BrokenResourceError):
        child.watch.ended("the line to it was closed")
    finally:
        child.over.set()
        heard.close()


async def _lines(child: ChildServer) -> AsyncIterator[bytes]:
    assert child.process.stdout is not None
    pending = bytearray()
    while chunk := await child.process.stdout.read(CHUNK):
        first, *others = chunk.split(b"\n")
        pending += first
        if len(pending) > LINE_BYTES:
            raise FloodError(f"it sent a message of over {LINE_BYTES // 2**20} MiB")
        for other in others:
            yield bytes(pending)
            pending = bytearray(other)


def _message(line: bytes, watch: ConnectionWatch) -> wire.JSONRPCMessage | None:
    if not line.strip():
        return None
    try:
        return wire.jsonrpc_message_adapter.validate_json(line, by_name=False)
    except ValueError:
        watch.garbled()
        return None


async def _say(child: ChildServer, said: MemoryObjectReceiveStream[SessionMessage]) -> None:
    assert child.process.stdin is not None
    with suppress(OSError, anyio.ClosedResourceError, anyio.BrokenResourceError):
        async for each in said:
            line = each.message.model_dump_json(by_alias=True, exclude_unset=True)
            child.process.stdin.write(line.encode() + b"\n")
            await child.process.stdin.drain()


async def _drain(child: ChildServer) -> None:
    assert child.process.stderr is not None
    read = 0
    with suppress(OSError):
        while chunk := await child.process.stderr.read(CHUNK):
            child.watch.stderr += chunk
            del child.watch.stderr[:-STDERR_BYTES]
            read += len(chunk)
            if read > STDERR_FREE:
                await asyncio.sleep(STDERR_PAUSE_S)


async def _outlived(child: ChildServer) -> None:
    """Once the server has ended, end what it started: that may hold its streams, so that its death would go unseen."""
    while child.process.returncode is None:  # noqa: ASYNC110 - `wait` would also wait for its pipes
        await asyncio.sleep(ENDED_S)
    await asyncio.sleep(LAST_WORDS_S)
    if not child.over.is_set():
        _signal(child.process, signal.SIGKILL)


async def _status(process: asyncio.subprocess.Process) -> str:
    """How it ended, in words; it may have closed its output and live on."""
    if not await _exited(process, GRACE_S):
        return " its side of the line"
    code = process.returncode or 0
    return f" with status {code}" if code >= 0 else f", killed by {signal.Signals(-code).name}"


async def _end(child: ChildServer, tasks: list[asyncio.Task[None]], leash: IO[bytes]) -> None:
    process = child.process
    assert process.stdin is not None
    flooding = child.watch.why is not None
    child.watch.ended("the line to it was closed")
    process.stdin.close()
    if not flooding:
        await _exited(process, GRACE_S)
    _signal(process, signal.SIGTERM)
    await _exited(process, GRACE_S)
    leash.close()  # what is left of it and of what it started is ended by who holds the other end
    await _exited(process, GRACE_S)
    _signal(process, signal.SIGKILL)
    await _exited(process, GRACE_S)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    transport = getattr(process, "_transport", None)  # a grandchild may hold a pipe: nothing public closes our end
    if transport is not None:
        with suppress(PermissionError):
            transport.close()


async def _exited(process: asyncio.subprocess.Process, within_s: float) -> bool:
    """Whether it has ended by then. `wait` would also wait for its pipes, which what it started may hold open."""
    deadline = _now() + within_s
    while process.returncode is None and _now() < deadline:  # noqa: ASYNC110 - see above: there is no event
        await asyncio.sleep(0.01)
    return process.returncode is not None


def _now() -> float:
    return asyncio.get_running_loop().time()


def _signal(process: asyncio.subprocess.Process, which: signal.Signals) -> None:
    """To the whole group, whose leader the child is: also once that has ended."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, which)
