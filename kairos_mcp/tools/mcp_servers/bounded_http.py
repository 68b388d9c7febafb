"""HTTP to a downstream server: bodies are bounded, and their messages repaired before the library reads them."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextvars import ContextVar

import httpx2

from kairos_mcp.core.json_bounds import MESSAGE_VALUES, ValueCounter
from kairos_mcp.tools.mcp_servers.flood_guard import MAX_MESSAGE_BYTES, TOO_MANY_VALUES
from kairos_mcp.tools.mcp_servers.message_repair import MessageRepair

MESSAGE_TOO_LARGE = f"it sent a message of over {MAX_MESSAGE_BYTES // 2**20} MiB"
_EVENT_ENDS = re.compile(rb"\n\n|\r\r|\r\n\r\n")

Rechecks = Iterator[Callable[[], None]]


class BoundedHttp(httpx2.AsyncBaseTransport):
    """HTTP with bounded bodies: MAX_MESSAGE_BYTES and MESSAGE_VALUES for each body, or for each event of a stream.

    `on_flood` is called with the reason for more. The first request of a call takes its check from `rechecks` and makes
    it right before the request's head is sent.
    """

    def __init__(
        self,
        inner: httpx2.AsyncBaseTransport,
        rechecks: ContextVar[Rechecks],
        repair: MessageRepair,
        on_flood: Callable[[str], None],
    ) -> None:
        self._inner = inner
        self._rechecks = rechecks
        self._repair = repair
        self._on_flood = on_flood

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        rechecks = self._rechecks.get(iter(()))

        async def recheck_before_send(event: str, _info: object) -> None:
            if event.endswith("send_request_headers.started"):
                for recheck in rechecks:
                    recheck()

        request.extensions = {**request.extensions, "trace": recheck_before_send}
        response = await self._inner.handle_async_request(request)
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        is_event_stream = kind == "text/event-stream"
        bounded = _BoundedStream(response.stream, self._on_flood, is_event_stream=is_event_stream)
        is_plain = response.headers.get("content-encoding", "identity") == "identity"
        if is_plain and (is_event_stream or kind == "application/json"):
            response.stream = _RepairedStream(bounded, self._repair, is_event_stream=is_event_stream)
        else:
            response.stream = bounded
        return response

    async def aclose(self) -> None:
        await self._inner.aclose()


class _BoundedStream(httpx2.AsyncByteStream):
    """A body that calls `on_flood` and fails once it, or one event of it, has more bytes or values than are read."""

    def __init__(
        self, inner: httpx2.AsyncByteStream, on_flood: Callable[[str], None], *, is_event_stream: bool
    ) -> None:
        self._inner = inner
        self._on_flood = on_flood
        self._is_event_stream = is_event_stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        read, tail, values = 0, b"", ValueCounter(MESSAGE_VALUES)
        async for part in self._inner:
            read += len(part)
            counted = part
            if self._is_event_stream:
                window = tail + part
                for end in _EVENT_ENDS.finditer(window):
                    read = len(window) - end.end()
                    values = ValueCounter(MESSAGE_VALUES)
                    counted = window[end.end() :]
                tail = window[-3:]
            flood = MESSAGE_TOO_LARGE if read > MAX_MESSAGE_BYTES else None
            if values.feed(counted):
                flood = TOO_MANY_VALUES
            if flood is not None:
                self._on_flood(flood)
                raise httpx2.ReadError(flood)
            yield part

    async def aclose(self) -> None:
        await self._inner.aclose()


class _RepairedStream(httpx2.AsyncByteStream):
    """A body whose messages are repaired: one that is JSON as a whole, of a stream of events each line of data."""

    def __init__(self, inner: _BoundedStream, repair: MessageRepair, *, is_event_stream: bool) -> None:
        self._inner = inner
        self._repair = repair
        self._is_event_stream = is_event_stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        pending = bytearray()
        async for part in self._inner:
            end = part.rfind(b"\n") + 1 if self._is_event_stream else 0
            if end == 0:
                pending += part
                continue
            lines = bytes(pending + part[:end])
            pending = bytearray(part[end:])
            yield b"".join(self._repair_line(line) for line in lines.splitlines(keepends=True))
        rest = bytes(pending)
        yield self._repair_line(rest) if self._is_event_stream else self._repair.repair_text(rest)

    def _repair_line(self, line: bytes) -> bytes:
        name, colon, data = line.partition(b":")
        if name != b"data" or not data.strip():
            return line
        return name + colon + b" " + self._repair.repair_text(data.strip()) + b"\n"

    async def aclose(self) -> None:
        await self._inner.aclose()
