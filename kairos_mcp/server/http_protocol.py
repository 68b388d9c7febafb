"""The wire below HTTP: what a connection may cost before and after its requests.

uvicorn waits for ever for a header that does not come, for the rest of a body that nobody reads any more, and
for a client that takes nothing of its answer; and it keeps every idle connection, so that enough of them shut
out all others. Here each of these has its time, and an idle connection makes room for a new one.

h11 also reads what two readers could cut in two ways: a bare LF for the end of a line, folded headers, a length
beside chunks. A proxy before us may cut such a message elsewhere, and then somebody's next request is hidden in it.
So where a message ends is read strictly (`StrictBuffer`); the rest is a 400, after which nothing more is read.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Any, ClassVar, cast

import h11

# h11 has no switch for this, and its public side gives headers that are joined and normalised already
from h11._receivebuffer import ReceiveBuffer
from uvicorn.protocols.http.h11_impl import H11Protocol

from kairos_mcp.server.bounds import RequestBounds

_LOOSE = re.compile(rb"(?<!\r)\n|\r(?!\n|\Z)|\r\n[ \t]")  # an end of a line that is not CRLF, or a line that goes on
_REQUEST_LINE = re.compile(rb"[!-~]+ [!-~]+ HTTP/1\.[01]")
_CHUNK_SIZE = re.compile(rb"[0-9A-Fa-f]{1,16}(;[^\r\n]*)?\r\n")


class StrictBuffer(ReceiveBuffer):
    """What h11 takes its lines from: a request's header, a chunk's size, a trailer. Raises h11.RemoteProtocolError
    for those that another reader may cut otherwise."""

    def maybe_extract_lines(self) -> list[bytearray] | None:
        """Give the lines of a header or trailer once it is whole."""
        empty = self._data[:2] == b"\r\n"
        end = self._data.find(b"\r\n\r\n")
        head = self._data if end < 0 else self._data[: end + 4]
        if not empty and _LOOSE.search(head):
            raise h11.RemoteProtocolError("a line does not end in CRLF, or is folded")
        lines = super().maybe_extract_lines()
        if lines and not _is_one_message(lines):
            raise h11.RemoteProtocolError("it is not said plainly where the message ends")
        return lines

    def maybe_extract_next_line(self) -> bytearray | None:
        """Give the line that says how long the next chunk is."""
        line = super().maybe_extract_next_line()
        if line is not None and _CHUNK_SIZE.fullmatch(line) is None:
            raise h11.RemoteProtocolError("a chunk's size is not plain")
        return line


def _is_one_message(lines: Sequence[bytearray]) -> bool:
    """Whether a header says in one way alone how long its body is. A trailer has no business to say it at all."""
    names = [bytes(line.partition(b":")[0]).lower() for line in lines]
    lengths, encodings = names.count(b"content-length"), names.count(b"transfer-encoding")
    if b" HTTP/" not in lines[0]:
        return lengths + encodings == 0
    if _REQUEST_LINE.fullmatch(lines[0]) is None or lengths + encodings > 1:
        return False
    if encodings and not lines[0].endswith(b"1.1"):
        return False  # chunks came with 1.1: who says 1.0 may be read up to its end
    return all(b"," not in line for line, name in zip(lines, names, strict=True) if name == b"content-length")


def listener(limits: RequestBounds) -> type[H11Protocol]:
    """The protocol for uvicorn, which makes one of it for each connection."""

    class Bounded(Listener):
        bounds = limits

    return Bounded


class Listener(H11Protocol):
    bounds: ClassVar[RequestBounds]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._since = self.loop.time()
        self._owed: asyncio.TimerHandle | None = None  # the client owes the rest of something
        self._unread: asyncio.TimerHandle | None = None
        self.conn._receive_buffer = StrictBuffer()  # nothing has been received yet
        super().connection_made(cast("asyncio.Transport", transport))
        self._wait_for_client()
        if len(self.connections) > self.bounds.connections:
            self._make_room()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._client_owes():
            self._wait_for_client()
        else:
            self._stop_waiting()

    def send_400_response(self, msg: str) -> None:
        """Refuse what can't be read. Where it is the rest of a body that was answered already, only the end is left."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.close()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self.loop.call_later(self.bounds.unread_s, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._is_read()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self._is_read()
        super().connection_lost(exc)

    @property
    def idle(self) -> bool:
        """Nobody here works on a request of it."""
        return self.cycle is None or self.cycle.response_complete

    def _client_owes(self) -> bool:
        """A header that has begun, or the rest of a body after its answer."""
        return self.conn.their_state is h11.IDLE or (self.conn.their_state is h11.SEND_BODY and self.idle)

    def _wait_for_client(self) -> None:
        """From the first byte on: more bytes gain no more time."""
        if self._owed is None:
            self._owed = self.loop.call_later(self.bounds.header_s, self._give_up)

    def _stop_waiting(self) -> None:
        if self._owed is not None:
            self._owed.cancel()
            self._owed = None

    def _is_read(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _give_up(self) -> None:
        if not self.transport.is_closing():
            begun, _ = self.conn.trailing_data
            if begun and self.conn.our_state is h11.IDLE:
                self.transport.write(self._request_timeout())
            self.transport.close()

    def _request_timeout(self) -> bytes:
        headers = [(b"content-length", b"0"), (b"connection", b"close")]
        response = h11.Response(status_code=408, headers=headers, reason=b"Request Timeout")
        said: list[Any] = [self.conn.send(response), self.conn.send(h11.EndOfMessage())]
        return b"".join(part or b"" for part in said)

    def _make_room(self) -> None:
        """The oldest idle connection goes. Where none is idle, the request of the new one gets a 503."""
        others = [
            other for other in self.connections if isinstance(other, Listener) and other is not self and other.idle
        ]
        oldest = min(others, key=lambda other: other._since, default=None)
        if oldest is not None:
            self.connections.discard(oldest)
            oldest.transport.close()
