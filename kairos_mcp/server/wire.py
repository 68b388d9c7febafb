"""Messages over a pair of descriptors, one a line: bounded in memory, and no request without an answer.

The SDK's own transport sets no limit on a line, drops what it can't parse, so that its sender waits for ever,
and lets characters through that some readers take for the end of a line. Reading and writing happen in daemon
threads, because a read of stdin can't be interrupted and must not hold the process at its end.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from threading import Thread

import anyio
import mcp_types as wire
from anyio import from_thread
from anyio.lowlevel import EventLoopToken, current_token
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage
from pydantic import ValidationError
from pydantic_core import PydanticSerializationError

from kairos_mcp.server.framing import LINE_BYTES, FramedLine, LineCutter, id_of_answer, on_one_line

CHUNK_BYTES = 2**16
UNWRITTEN = 128  # answers that may wait for a client that does not read, before we stop reading as well
LOOK_S = 0.05
LAST_WRITE_S = 0.5

Reads = MemoryObjectReceiveStream[SessionMessage | Exception]
Writes = MemoryObjectSendStream[SessionMessage]
_GONE = (
    anyio.EndOfStream,
    anyio.BrokenResourceError,
    anyio.ClosedResourceError,
    RuntimeError,
    asyncio.CancelledError,
)
"""How a thread learns that the loop needs it no longer."""


@asynccontextmanager
async def connect_streams(source: int, target: int, ended: Callable[[], None]) -> AsyncIterator[tuple[Reads, Writes]]:
    """The streams that a server runs on. The reading one ends with `source`, or when `target` takes no more.

    `ended` is called in a thread at the end of `source`, whatever the loop is busy with.
    """
    deliver, server_reads = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    server_writes, outgoing = anyio.create_memory_object_stream[SessionMessage](0)
    desk = _ReadDispatcher(deliver, server_writes.clone())
    loop, written = current_token(), anyio.Event()
    Thread(target=_read_lines, args=(source, desk, ended, loop), name="stdin", daemon=True).start()
    Thread(target=_write, args=(target, outgoing, desk, written, loop), name="stdout", daemon=True).start()
    try:
        yield server_reads, server_writes
    finally:
        for stream in (server_reads, server_writes, desk.refusals, desk.deliver):
            stream.close()
        with anyio.move_on_after(LAST_WRITE_S, shield=True):
            await written.wait()
        outgoing.close()


@dataclass(frozen=True, slots=True)
class _ReadDispatcher:
    """Where what was read goes: messages to the server, refusals back out."""

    deliver: MemoryObjectSendStream[SessionMessage | Exception]
    refusals: Writes

    async def take(self, line: FramedLine, message: wire.JSONRPCMessage | UnreadableLine) -> None:
        while self.refusals.statistics().tasks_waiting_send >= UNWRITTEN:  # noqa: ASYNC110 - rare, and brief
            await anyio.sleep(LOOK_S)
        if isinstance(message, UnreadableLine) and (asked := id_of_answer(line)) is not None:
            # whoever asked is told why, instead of waiting for an answer that came
            await self.deliver.send(SessionMessage(message.answer(asked)))
        elif isinstance(message, UnreadableLine):
            await self.refusals.send(SessionMessage(message.answer(line.request_id())))
        else:
            await self.deliver.send(SessionMessage(message))


@dataclass(frozen=True, slots=True)
class UnreadableLine:
    """Why a line is no message. The text never repeats the line."""

    code: int
    text: str

    def answer(self, request_id: int | str | None) -> wire.JSONRPCError:
        error = wire.ErrorData(code=self.code, message=self.text)
        return wire.JSONRPCError(jsonrpc="2.0", id=request_id, error=error)


def parse_line(line: FramedLine) -> wire.JSONRPCMessage | UnreadableLine:
    if line.left_out:
        return UnreadableLine(wire.INVALID_REQUEST, f"A message has at most {LINE_BYTES} bytes.")
    try:
        return wire.jsonrpc_message_adapter.validate_json(line.text, by_name=False)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False, include_context=False)[0]
    if problem["type"] == "json_invalid":
        return UnreadableLine(wire.PARSE_ERROR, f"{problem['msg']}.")
    return UnreadableLine(wire.INVALID_REQUEST, "Not a JSON-RPC 2.0 message.")


def _read_lines(source: int, desk: _ReadDispatcher, ended: Callable[[], None], loop: EventLoopToken) -> None:
    """A line is parsed here and not in the loop: a long one holds up nobody but its sender."""
    with suppress(*_GONE, OSError):
        for line in _lines(source):
            if line.text.strip():
                from_thread.run(desk.take, line, parse_line(line), token=loop)
    ended()
    with suppress(*_GONE):
        from_thread.run_sync(desk.deliver.close, token=loop)


def _lines(source: int) -> Iterator[FramedLine]:
    cutter = LineCutter()
    while chunk := os.read(source, CHUNK_BYTES):
        yield from cutter.cut(chunk)
    yield from cutter.flush()


def _write(
    target: int,
    outgoing: MemoryObjectReceiveStream[SessionMessage],
    desk: _ReadDispatcher,
    written: anyio.Event,
    loop: EventLoopToken,
) -> None:
    with suppress(*_GONE):
        try:
            while True:
                _write_all(target, encode_message(from_thread.run(outgoing.receive, token=loop)))
        except OSError:  # the client has gone
            from_thread.run_sync(desk.deliver.close, token=loop)
    with suppress(*_GONE):
        from_thread.run_sync(written.set, token=loop)


def encode_message(sent: SessionMessage) -> bytes:
    """One line, whatever its reader takes for the end of one. What is no Unicode is answered as an error."""
    message = sent.message
    try:
        text = message.model_dump_json(by_alias=True, exclude_unset=True)
    except PydanticSerializationError:
        number = message.id if isinstance(message, wire.JSONRPCResponse) else None
        broken = UnreadableLine(wire.INTERNAL_ERROR, "The answer holds text that is no Unicode.")
        text = broken.answer(number).model_dump_json(by_alias=True, exclude_unset=True)
    return on_one_line(text).encode() + b"\n"


def _write_all(target: int, line: bytes) -> None:
    view = memoryview(line)
    while view:
        view = view[os.write(target, view) :]
