"""The HTTP/1.1 protocol of a connection: bounds on time before and after requests, and strict framing.

uvicorn waits for ever for a header that does not come, for the rest of a body that nobody reads any more, and for a
client that does not read its answer; and it keeps every idle connection, so that enough of them shut out all others.
Here each of these waits is bounded, and an idle connection, whose next header is not whole, makes room for a new one:
one of the peer that has the most of them.

h11 also accepts messages that two readers could split differently: a bare LF as the end of a line, folded headers, a
length beside chunks. A proxy before us may split such a message elsewhere, and hide somebody's next request in it
(request smuggling). So `StrictBuffer` reads the end of a message strictly; anything else is a 400, and no more is read.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, ClassVar, cast

import h11

# h11 has no switch for this, and its public side gives headers that are joined and normalised already
from h11._receivebuffer import ReceiveBuffer
from uvicorn.protocols.http.h11_impl import H11Protocol

from kairos_mcp.server.http_bounds import RequestBounds
from kairos_mcp.server.http_places import Peers

_LOOSE_LINE_END = re.compile(rb"(?<!\r)\n|\r(?!\n|\Z)|\r\n[ \t]")  # not CRLF, or a folded header
_REQUEST_LINE = re.compile(rb"[!-~]+ [!-~]+ HTTP/1\.[01]")
_CHUNK_SIZE = re.compile(rb"[0-9A-Fa-f]{1,16}(;[^\r\n]*)?\r\n")


class StrictBuffer(ReceiveBuffer):
    """The buffer that h11 takes lines from: a request's header, a chunk's size, a trailer. Raises
    h11.RemoteProtocolError for those that another reader may split differently."""

    def maybe_extract_lines(self) -> list[bytearray] | None:
        """Return the lines of a header or trailer once it is complete."""
        is_empty = self._data[:2] == b"\r\n"
        end = self._data.find(b"\r\n\r\n")
        head = self._data if end < 0 else self._data[: end + 4]
        if not is_empty and _LOOSE_LINE_END.search(head):
            raise h11.RemoteProtocolError("a line does not end in CRLF, or is folded")
        lines = super().maybe_extract_lines()
        if lines and not _has_one_length(lines):
            raise h11.RemoteProtocolError("it is ambiguous where the message ends")
        return lines

    def maybe_extract_next_line(self) -> bytearray | None:
        """Return the line with the size of the next chunk."""
        line = super().maybe_extract_next_line()
        if line is not None and _CHUNK_SIZE.fullmatch(line) is None:
            raise h11.RemoteProtocolError("a chunk's size is not plain")
        return line


def _has_one_length(lines: Sequence[bytearray]) -> bool:
    """Whether a header states the length of its body in one way only. A trailer may not state it at all."""
    names = [bytes(line.partition(b":")[0]).lower() for line in lines]
    lengths, encodings = names.count(b"content-length"), names.count(b"transfer-encoding")
    if b" HTTP/" not in lines[0]:
        return lengths + encodings == 0
    if _REQUEST_LINE.fullmatch(lines[0]) is None or lengths + encodings > 1:
        return False
    if encodings and not lines[0].endswith(b"1.1"):
        return False  # chunks came with HTTP/1.1: a reader of 1.0 may read up to the end of the connection
    return all(b"," not in line for line, name in zip(lines, names, strict=True) if name == b"content-length")


def bounded_protocol(limits: RequestBounds) -> type[H11Protocol]:
    """A protocol class for uvicorn, which makes an instance of it for each connection."""

    class WithLimits(BoundedProtocol):
        bounds = limits
        peers = Peers(limits.trusted_proxies)

    return WithLimits


class BoundedProtocol(H11Protocol):
    """A connection whose waits are bounded by `bounds`."""

    bounds: ClassVar[RequestBounds]
    peers: ClassVar[Peers]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._connected_at = self.loop.time()
        self._header_timer: asyncio.TimerHandle | None = None  # runs while the client owes us bytes
        self._unread_timer: asyncio.TimerHandle | None = None  # runs while the client reads nothing
        self.conn._receive_buffer = StrictBuffer()  # nothing has been received yet
        super().connection_made(cast("asyncio.Transport", transport))
        address, port = self.client or ("", 0)
        self._peer = f"{address} {port}" if self.peers.include(address) else address
        self._wait_for_client()
        if len(self.connections) > self.bounds.connections:
            self._make_room()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        # A header has begun, or the rest of a body is due after its answer.
        if self.conn.their_state is h11.IDLE or (self.conn.their_state is h11.SEND_BODY and self.is_idle):
            self._wait_for_client()
        else:
            self._stop_waiting()

    def send_400_response(self, msg: str) -> None:
        """Refuse what can't be read; close the connection if its request was answered already."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.close()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread_timer = self.loop.call_later(self.bounds.unread_s, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_unread_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self._stop_unread_timer()
        super().connection_lost(exc)

    @property
    def is_idle(self) -> bool:
        """Whether no request of this connection is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def _wait_for_client(self) -> None:
        """Start the timer, if it does not run yet: more bytes gain no more time."""
        if self._header_timer is None:
            self._header_timer = self.loop.call_later(self.bounds.header_s, self._give_up)

    def _stop_waiting(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _stop_unread_timer(self) -> None:
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None

    def _give_up(self) -> None:
        if not self.transport.is_closing():
            begun, _ = self.conn.trailing_data
            if begun and self.conn.our_state is h11.IDLE:
                headers = [(b"content-length", b"0"), (b"connection", b"close")]
                response = h11.Response(status_code=408, headers=headers, reason=b"Request Timeout")
                parts: list[Any] = [self.conn.send(response), self.conn.send(h11.EndOfMessage())]
                self.transport.write(b"".join(part or b"" for part in parts))
            self.transport.close()

    def _make_room(self) -> None:
        """Close the oldest idle connection of the peer that has the most, this new one counted. If none is idle,
        uvicorn answers the new one's request with 503."""
        idle = [other for other in self.connections if isinstance(other, BoundedProtocol) and other.is_idle]
        counts = Counter(other._peer for other in idle)
        others = [other for other in idle if other is not self]
        closed = min(others, key=lambda other: (-counts[other._peer], other._connected_at), default=None)
        if closed is not None:
            self.connections.discard(closed)
            closed.transport.close()
