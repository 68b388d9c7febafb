"""HTTP to a downstream server: bodies are bounded, and their messages repaired before the library reads them."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextvars import ContextVar
from http import HTTPStatus
from typing import Any

import httpx2
import mcp_types as wire

from kairos_mcp.core.json_bounds import MESSAGE_VALUES, ValueCounter
from kairos_mcp.models.replies.errors import read_error
from kairos_mcp.tools.mcp_servers.definition import quote_server
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

        async def recheck_before_send(event: str, info: Mapping[str, Any]) -> None:
            is_head = event.endswith("send_request_headers.started")
            if is_head and info["request"].method != b"CONNECT":  # which a proxy is asked before
                for recheck in rechecks:
                    recheck()

        request.extensions = {**request.extensions, "trace": recheck_before_send}
        response = await self._inner.handle_async_request(request)
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        is_event_stream = kind == "text/event-stream"
        bounded = _BoundedStream(response.stream, self._on_flood, is_event_stream=is_event_stream)
        is_plain = response.headers.get("content-encoding", "identity") == "identity"
        has_answer = response.is_success and (is_event_stream or kind == "application/json")
        if is_plain and has_answer:
            response.stream = _RepairedStream(bounded, self._repair, request, is_event_stream=is_event_stream)
        elif (
            request.method == "POST" and is_plain and response.status_code != 202 and not response.has_redirect_location
        ):
            response.stream = await self._read_other(bounded, request, response, kind)
        else:
            response.stream = bounded
        return response

    async def _read_other(
        self, bounded: _BoundedStream, request: httpx2.Request, response: httpx2.Response, kind: str
    ) -> httpx2.AsyncByteStream:
        """Return the answer of a response that is none by its status or its type: a message, or an error that says
        what came, since the library says of a status only that it was one."""
        try:
            body = b"".join([part async for part in bounded])
        finally:
            await bounded.aclose()
        body = self._repair.repair_text(body)
        # Servers say in words and codes of their own that a session is lost.
        is_lost = response.status_code == HTTPStatus.NOT_FOUND and "mcp-session-id" in request.headers
        if is_lost or not _is_message(body):
            said = read_error(body.decode("utf-8", "replace")).words
            body = _error_answer(request, response.status_code, _describe_response(response.status_code, kind, said))
        for name in ("content-length", "transfer-encoding"):
            response.headers.pop(name, None)
        response.headers["content-type"] = "application/json"
        return httpx2.ByteStream(body)

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

    def __init__(
        self, inner: _BoundedStream, repair: MessageRepair, request: httpx2.Request, *, is_event_stream: bool
    ) -> None:
        self._inner = inner
        self._repair = repair
        self._request = request
        self._is_event_stream = is_event_stream
        self._begins = True

    async def __aiter__(self) -> AsyncIterator[bytes]:
        pending = bytearray()
        async for part in self._inner:
            # A CR at the end of a part may be half of a CRLF.
            end = max(part.rfind(b"\n"), part.rfind(b"\r", 0, -1)) + 1 if self._is_event_stream else 0
            if end == 0:
                pending += part
                continue
            lines = bytes(pending + part[:end])
            pending = bytearray(part[end:])
            yield b"".join(map(self._repair_line, lines.splitlines()))
        rest = bytes(pending)
        if self._is_event_stream:
            yield b"".join(map(self._repair_line, [*rest.splitlines(), b""]))
            return
        answer = self._repair.repair_text(rest)
        yield answer if _is_message(answer) else _error_answer(self._request, 200, _describe_response(200, "JSON", ""))

    def _repair_line(self, line: bytes) -> bytes:
        """Return a line with its end. A whole message ends its event: some servers leave out the blank line."""
        if self._begins:
            line, self._begins = line.removeprefix(b"\xef\xbb\xbf"), False
        name, _, data = line.partition(b":")
        if name != b"data" or not data.strip():
            return line + b"\n"
        repaired = self._repair.repair_text(data.strip())
        return b"data: " + repaired + (b"\n\n" if _is_message(repaired) else b"\n")

    async def aclose(self) -> None:
        await self._inner.aclose()


def _is_message(text: bytes) -> bool:
    try:
        wire.jsonrpc_message_adapter.validate_json(text, by_name=False)
    except ValueError:
        return False
    return True


def _describe_response(status: int, kind: str, said: str) -> str:
    words = f": {quote_server(said)}" if said else ""
    if status >= 300:
        phrase = HTTPStatus(status).phrase if status in set(HTTPStatus) else ""
        return f"HTTP {status} {phrase}".rstrip() + words
    return f"its reply is no message, but {kind or 'of no content type'}{words}"


def _error_answer(request: httpx2.Request, status: int, message: str) -> bytes:
    """Return an error in place of an answer, with the code that the library would give it."""
    code = wire.INTERNAL_ERROR
    if status == HTTPStatus.NOT_FOUND:
        code = wire.INVALID_REQUEST if "mcp-session-id" in request.headers else wire.METHOD_NOT_FOUND
    asked = json.loads(request.content)
    number = asked.get("id") if isinstance(asked, dict) else None
    return json.dumps({"jsonrpc": "2.0", "id": number, "error": {"code": code, "message": message}}).encode()
