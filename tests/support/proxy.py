"""A proxy before several servers: each request goes to the next one, or where its session was begun."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from threading import Event, Thread

SESSION = re.compile(rb"^mcp-session-id: (\S+)", re.IGNORECASE | re.MULTILINE)
LENGTH = re.compile(rb"^content-length: (\d+)", re.IGNORECASE | re.MULTILINE)


@dataclass
class RoundRobin:
    """`ports` of the servers; one that does not answer is passed over. `sticky`: requests of a session go to the server
    that began it. `served`: which server answered each request, by its place among the ports."""

    ports: Sequence[int]
    sticky: bool = False
    served: list[int] = field(default_factory=list)
    port: int = 0
    _homes: dict[bytes, int] = field(default_factory=dict)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _next: int = 0
    _loop: asyncio.AbstractEventLoop | None = None
    _thread: Thread | None = None

    def start(self) -> RoundRobin:
        bound = socket.create_server(("127.0.0.1", 0))
        self.port, ready = bound.getsockname()[1], Event()

        async def serve() -> None:
            self._loop = asyncio.get_running_loop()
            self._ended = asyncio.Event()
            server = await asyncio.start_server(self._pass_on, sock=bound)
            ready.set()
            async with server:
                await self._ended.wait()

        self._thread = Thread(target=asyncio.run, args=(serve(),), daemon=True)
        self._thread.start()
        assert ready.wait(20)
        return self

    def stop(self) -> None:
        """End, and close what is still open; asyncio.run cancels the requests that are under way."""
        assert self._loop is not None
        assert self._thread is not None
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join(20)
        assert not self._thread.is_alive()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass one request on, and its answer back; then the connection is closed."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)  # else nobody holds it once its client has gone
        task.add_done_callback(self._tasks.discard)
        with suppress(ConnectionError, asyncio.IncompleteReadError), closing(writer):
            head = await reader.readuntil(b"\r\n\r\n")
            length = LENGTH.search(head)
            body = await reader.readexactly(int(length[1])) if length else b""
            place, upstream, sink = await self._connect(SESSION.search(head))
            self.served.append(place)
            with closing(sink):
                sink.write(head.replace(b"\r\n", b"\r\nConnection: close\r\n", 1) + body)
                while chunk := await upstream.read(65536):
                    if (found := SESSION.search(chunk)) is not None:
                        self._homes.setdefault(found[1], place)
                    writer.write(chunk)
                    await writer.drain()

    async def _connect(self, session: re.Match[bytes] | None) -> tuple[int, asyncio.StreamReader, asyncio.StreamWriter]:
        home = self._homes.get(session[1]) if self.sticky and session is not None else None
        for _ in self.ports:
            place = self._next if home is None else home
            self._next = (self._next + 1) % len(self.ports) if home is None else self._next
            with suppress(ConnectionError):
                return place, *(await asyncio.open_connection("127.0.0.1", self.ports[place]))
        raise ConnectionError
