"""The wire below HTTP: what a connection may cost before and after its requests.

uvicorn waits for ever for a header that does not come, for the rest of a body that nobody reads any more, and
for a client that takes nothing of its answer; and it keeps every idle connection, so that enough of them shut
out all others. Here each of these has its time, and an idle connection makes room for a new one.
"""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar, cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from kairos_mcp.server.bounds import Bounds


def listener(limits: Bounds) -> type[H11Protocol]:
    """The protocol for uvicorn, which makes one of it for each connection."""

    class Bounded(Listener):
        bounds = limits

    return Bounded


class Listener(H11Protocol):
    bounds: ClassVar[Bounds]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._since = self.loop.time()
        self._owed: asyncio.TimerHandle | None = None  # the client owes the rest of something
        self._unread: asyncio.TimerHandle | None = None
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
