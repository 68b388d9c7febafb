"""Serve MCP on this process's stdin and stdout; end when they do, when the parent is gone, or on a signal.

The SDK's own transport sets no limit on a line, drops what it can't parse, so that the sender waits for ever, and lets
characters through that some readers take for the end of a line. Here reading and writing happen in daemon threads: a
read of stdin can't be interrupted, and must not hold the process when it ends.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from threading import Thread, Timer
from typing import TYPE_CHECKING

import anyio
import mcp_types as wire
from anyio.abc import TaskStatus
from mcp.shared.message import SessionMessage

from kairos_mcp.server.claude_code import CLIENT_NAME
from kairos_mcp.server.framing import FramedLine, LineCutter, UnreadableLine, encode_message, id_of_answer, parse_line
from kairos_mcp.server.mcp_server import build_server, open_when_needed
from kairos_mcp.server.thread_streams import UNWRITTEN_POLL_S, MessageReads, MessageWrites

if TYPE_CHECKING:
    from kairos_mcp.app.app import App
    from kairos_mcp.settings.settings import Settings

SHUTDOWN_S = 1.0  # from the end of stdin to the end of the process at the latest; a run resumes from its rows
PARENT_POLL_S = 0.5
PR_SET_PDEATHSIG = 1
PARENT_GONE = signal.SIGUSR1  # as the kernel reports it to us, so that a hangup is a hangup

CHUNK_BYTES = 2**16
LAST_WRITE_S = 0.5


def serve(settings: Settings) -> None:
    """Serve until stdin ends, the parent is gone, or SIGTERM, SIGINT or SIGHUP comes.

    Descriptors 0 and 1 are not given back afterwards: what is printed at exit must not reach the client.
    """
    parent = os.getppid()
    source, target = _take_descriptors()
    anyio.run(_serve, settings, source, target, parent)


async def _serve(settings: Settings, source: int, target: int, parent: int) -> None:
    async with open_when_needed(settings) as get_app:
        server = build_server(get_app, settings, serve_page=_serve_page)
        async with _until_signal(parent), connect_streams(source, target, _exit_soon) as streams:
            try:
                await server.run(*streams, server.create_initialization_options())
            finally:
                _exit_soon()  # not only at the end of stdin


async def _serve_page(app: App, *, task_status: TaskStatus[None]) -> None:
    from kairos_mcp.server.page_server import serve_beside

    await serve_beside(app, task_status=task_status)


def _take_descriptors() -> tuple[int, int]:
    """Return private copies of stdin and stdout; point 0 at /dev/null and 1 at stderr, for every child too."""
    while (null := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass  # a host may have left 0, 1 or 2 closed: no copy may land there
    source, target = os.dup(0), os.dup(1)  # not inherited by children
    os.dup2(null, 0)
    os.dup2(2, 1)
    os.close(null)
    return source, target


def _exit_soon() -> None:
    """End the process soon, whatever still holds it: a stuck tool, or a client that does not read its answers."""
    timer = Timer(SHUTDOWN_S, partial(os._exit, 0))
    timer.daemon = True
    timer.start()


@asynccontextmanager
async def _until_signal(parent: int) -> AsyncIterator[None]:
    """Cancel the block once a signal comes or the parent is gone."""
    async with anyio.create_task_group() as tasks:
        if os.name == "posix":
            tasks.start_soon(_cancel_on_signal, parent, tasks.cancel_scope)
            tasks.start_soon(_cancel_without_parent, parent, tasks.cancel_scope)
        yield
        tasks.cancel_scope.cancel()


async def _cancel_on_signal(parent: int, scope: anyio.CancelScope) -> None:
    """Shut down at the first signal; then the default handlers are back, so that a second one kills the process."""
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP, PARENT_GONE) as signals:
        _request_signal_at_parents_death()
        async for number in signals:
            if number != PARENT_GONE or os.getppid() != parent:
                break
    scope.cancel()


async def _cancel_without_parent(parent: int, scope: anyio.CancelScope) -> None:
    """Notice the parent's death: another process may hold our stdin open, so that it never ends."""
    while os.getppid() == parent:  # noqa: ASYNC110 - no event tells of it on every system
        await anyio.sleep(PARENT_POLL_S)
    scope.cancel()


def _request_signal_at_parents_death() -> None:
    """Have PARENT_GONE sent when the parent dies. On Linux alone; elsewhere polling getppid is all there is.

    The signal comes when the parent's thread that started us ends, which may happen long before the parent does: so
    whoever gets it looks for the parent first.
    """
    import ctypes

    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, PARENT_GONE)
    except (OSError, AttributeError):
        return


@asynccontextmanager
async def connect_streams(
    source: int, target: int, on_end: Callable[[], None]
) -> AsyncIterator[tuple[MessageReads, MessageWrites]]:
    """The streams that a server runs on. The reading one ends with `source`, or when `target` takes no more.

    `on_end` is called in a thread at the end of `source`, even if the event loop is stuck.
    """
    reads, writes = MessageReads(), MessageWrites()
    Thread(target=_read_lines, args=(source, reads, writes, on_end), name="stdin", daemon=True).start()
    Thread(target=_write_messages, args=(target, reads, writes), name="stdout", daemon=True).start()
    try:
        yield reads, writes
    finally:
        reads.close()
        writes.close()
        with anyio.move_on_after(LAST_WRITE_S, shield=True):
            await writes.all_written.wait()


def _read_lines(source: int, reads: MessageReads, writes: MessageWrites, on_end: Callable[[], None]) -> None:
    """Read and parse lines. Parsing in this thread, not in the loop, keeps a long line from holding up other calls."""
    with suppress(RuntimeError, OSError):
        for line in _cut_lines(source):
            while writes.is_full and not reads.is_closed:
                time.sleep(UNWRITTEN_POLL_S)  # rare, and brief
            if line.text.strip() and not _pass_on(line, reads, writes):
                break
    on_end()
    with suppress(RuntimeError):
        reads.end()


def _pass_on(line: FramedLine, reads: MessageReads, writes: MessageWrites) -> bool:
    """Pass a message on to the server, and the refusal of any other line back out. False: the server takes no more."""
    message = parse_line(line)
    if not isinstance(message, UnreadableLine):
        return reads.put(SessionMessage(message))
    if (request_id := id_of_answer(line)) is not None:
        # an unreadable answer to a request of ours: the code that waits for it gets the error
        return reads.put(SessionMessage(message.as_error(request_id)))
    writes.put(SessionMessage(message.as_error(line.request_id())))
    return not reads.is_closed


def _cut_lines(source: int) -> Iterator[FramedLine]:
    cutter = LineCutter()
    yield from _drop_late_probe(list(cutter.split_chunk(os.read(source, CHUNK_BYTES))))
    while chunk := os.read(source, CHUNK_BYTES):
        yield from cutter.split_chunk(chunk)
    yield from cutter.flush()


def _drop_late_probe(waiting: list[FramedLine]) -> list[FramedLine]:
    """Leave out a client's probe of the protocol's era where its handshake waits behind it.

    While this process started the client gave up on the answer, and a connection that gave one takes no handshake.
    Claude Code is refused and probes again, which keeps it in the newer era.
    """
    match [parse_line(line) for line in waiting]:
        case [
            wire.JSONRPCRequest(method="server/discover"),
            *_,
            wire.JSONRPCRequest(method="initialize", params={"clientInfo": {"name": name}}),
        ] if name != CLIENT_NAME:
            return waiting[1:]
    return waiting


def _write_messages(target: int, reads: MessageReads, writes: MessageWrites) -> None:
    with suppress(RuntimeError):
        try:
            while (message := writes.get()) is not None:
                view = memoryview(encode_message(message))
                while view:
                    view = view[os.write(target, view) :]
        except OSError:  # the client has gone
            reads.end()
    with suppress(RuntimeError):
        writes.end()
