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
from kairos_mcp.tools.mcp_servers.flood_guard import MAX_MESSAGE_BYTES, MESSAGE_TOO_LARGE, TOO_MANY_VALUES
from kairos_mcp.tools.mcp_servers.message_repair import NO_ANSWER, SESSION_LOST, MessageRepair

SESSION = "mcp-session-id"
_GATEWAYS = (HTTPStatus.BAD_GATEWAY, HTTPStatus.GATEWAY_TIMEOUT)  # of which nobody knows what is behind them
_PACKED = re.compile("gzip|deflate|br|zstd|compress", re.IGNORECASE)
_CHALLENGE = re.compile(r'error(?:_description)?="([^"]{1,300})"(?!.*error_description=)')
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
        await request.aread()  # one that follows a redirect was not read so far
        response = await self._inner.handle_async_request(request)
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        is_event_stream = kind == "text/event-stream"
        bounded = _BoundedStream(response.stream, self._on_flood, is_event_stream=is_event_stream)
        is_plain = not _PACKED.search(response.headers.get("content-encoding", ""))
        accepts = response.status_code == HTTPStatus.ACCEPTED
        if not response.headers.get(SESSION, "").isascii():
            del response.headers[SESSION]  # which no header of ours could hold
        if is_plain and response.is_success and not accepts and (is_event_stream or kind == "application/json"):
            response.stream = _RepairedStream(bounded, self._repair, request, is_event_stream=is_event_stream)
        elif (
            request.method == "POST"
            and is_plain
            and not response.has_redirect_location
            and not (accepts and _number_of(request) is None)
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
            sent = b"".join([part async for part in bounded])
        finally:
            await bounded.aclose()
        status, said = response.status_code, read_error(sent.decode("utf-8", "replace")).words
        if not sent and (challenge := _CHALLENGE.search(response.headers.get("www-authenticate", ""))):
            said = challenge[1]
        body = self._repair.repair_text(sent)
        is_error = response.is_error
        # Servers say in words and codes of their own that a session is lost.
        is_lost = SESSION in request.headers and (
            status in (HTTPStatus.NOT_FOUND, HTTPStatus.GONE) or (is_error and "session" in said.lower())
        )
        if is_lost or not _is_message(body) or (is_error and not (b'"jsonrpc"' in sent and b'"error"' in body)):
            what = _describe_response(status, kind if sent else "empty", said)
            is_unanswered = status in (*_GATEWAYS, HTTPStatus.ACCEPTED) or not (sent or is_error)
            body = _error_answer(request, status, what, is_lost=is_lost, is_unanswered=is_unanswered)
        if response.status_code == HTTPStatus.ACCEPTED:
            response.status_code = int(HTTPStatus.OK)  # by the other one the library takes it for no answer
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
    """A body whose messages are repaired: one that is JSON as a whole, of a stream of events each event."""

    def __init__(
        self, inner: _BoundedStream, repair: MessageRepair, request: httpx2.Request, *, is_event_stream: bool
    ) -> None:
        self._inner = inner
        self._repair = repair
        self._request = request
        self._is_event_stream = is_event_stream
        self._begins = True
        self._data: list[bytes] = []  # lines of an event that is no message so far

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
        if _is_message(answer):
            yield answer
            return
        if rest.startswith((b"data:", b"event:", b"id:", b":")):  # events under the name of JSON
            events = b"".join(map(self._repair_line, [*rest.splitlines(), b""]))
            answers = (line[6:] for line in events.splitlines() if line.startswith(b"data: "))
            if (first := next((each for each in answers if b'"method"' not in each), None)) is not None:
                yield first
                return
        what = _describe_response(200, "JSON" if rest else "empty", "")
        yield _error_answer(self._request, 200, what, is_unanswered=not rest)

    def _repair_line(self, line: bytes) -> bytes:
        """Return a line with its end. Of data only whole messages go on, whatever the name of their event: each ends
        its event, since some servers leave out the blank line, and what is no message fails the whole stream."""
        if self._begins:
            line, self._begins = line.removeprefix(b"\xef\xbb\xbf"), False
        name, _, data = line.partition(b":")
        if line[:1] == b"{":  # JSON under the name of events
            name, data = b"data", line
        if name == b"event":
            return b""
        if name == b"data" and data.strip():
            self._data.append(data.strip())
            return self._end_event(is_whole=False)
        return self._end_event(is_whole=True) if not line else line + b"\n"

    def _end_event(self, *, is_whole: bool) -> bytes:
        """Return the message that the data so far is; nothing for what is none, which is given up if it is whole."""
        message = self._repair.repair_text(b"\n".join(self._data), is_whole=is_whole) if self._data else b""
        is_message = bool(message) and _is_message(message)
        if is_message or is_whole:
            self._data.clear()
        return b"data: " + message.replace(b"\n", b" ") + b"\n\n" if is_message else b""

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
    return f"its reply is not a message, but {kind or 'of no content type'}{words}"


def _number_of(request: httpx2.Request) -> Any:
    """Return the id of the message that is sent; None of a notification."""
    asked = json.loads(request.content)
    return asked.get("id") if isinstance(asked, dict) else None


def _error_answer(
    request: httpx2.Request, status: int, message: str, *, is_lost: bool = False, is_unanswered: bool = False
) -> bytes:
    """Return an error in place of an answer, with the code that the library would give it."""
    is_missing = status == HTTPStatus.NOT_FOUND and not is_lost
    code = wire.INVALID_REQUEST if is_lost else wire.METHOD_NOT_FOUND if is_missing else wire.INTERNAL_ERROR
    data = {SESSION_LOST: True} if is_lost else {NO_ANSWER: True} if is_unanswered else None
    error = {"code": code, "message": message, **({"data": data} if data else {})}
    return json.dumps({"jsonrpc": "2.0", "id": _number_of(request), "error": error}).encode()
