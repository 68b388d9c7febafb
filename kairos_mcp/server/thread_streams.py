"""Streams of messages between the event loop and the threads that read stdin and write stdout.

A message costs one callback of the loop, or one item of a queue; a thread that called a memory stream of anyio would
make a task and two futures for each.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from queue import SimpleQueue
from threading import Semaphore
from types import TracebackType
from typing import Self

import anyio
from mcp.shared.message import SessionMessage

MAX_UNREAD = 64  # messages that the server has not taken yet, before the thread waits
MAX_UNWRITTEN = 128  # messages that may wait for a client that does not read, before whoever sends one waits
UNWRITTEN_POLL_S = 0.05


class _Stream(ABC):
    """What the SDK wants of either end: it is closed when its block ends."""

    @abstractmethod
    def close(self) -> None: ...

    async def aclose(self) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class MessageReads(_Stream):
    """What a thread has read, for the server to take. To be made in the event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._unread: deque[SessionMessage] = deque()
        self._arrival: asyncio.Future[None] | None = None
        self._room = Semaphore(MAX_UNREAD)
        self.is_closed = False

    def put(self, message: SessionMessage) -> bool:
        """Hand a message over from the thread, once there is room. False: nobody takes any more. Raises RuntimeError
        where the loop has ended."""
        self._room.acquire()
        if not self.is_closed:
            self._loop.call_soon_threadsafe(self._add, message)
        return not self.is_closed

    def end(self) -> None:
        """Say from a thread that nothing comes after this. Raises RuntimeError where the loop has ended."""
        self._loop.call_soon_threadsafe(self.close)

    def close(self) -> None:
        """End the stream; what was read is still taken."""
        self.is_closed = True
        self._room.release()
        self._wake()

    async def receive(self) -> SessionMessage:
        """Return the next message. Raises EndOfStream."""
        while not self._unread:
            if self.is_closed:
                raise anyio.EndOfStream
            self._arrival = self._loop.create_future()
            await self._arrival
        self._room.release()
        return self._unread.popleft()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    def _add(self, message: SessionMessage) -> None:
        self._unread.append(message)
        self._wake()

    def _wake(self) -> None:
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)


class MessageWrites(_Stream):
    """What the server sends, for a thread to write. To be made in the event loop. `all_written`: set once the thread
    has written all, or can write no more."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._unwritten: SimpleQueue[SessionMessage | None] = SimpleQueue()
        self._is_closed = False
        self.all_written = asyncio.Event()

    @property
    def is_full(self) -> bool:
        """Whether so much waits for the client that nothing more should be begun for it."""
        return self._unwritten.qsize() >= MAX_UNWRITTEN

    async def send(self, message: SessionMessage) -> None:
        """Hand a message to the thread, once there is room. Raises BrokenResourceError where none is written any
        more."""
        while self.is_full and not self._is_closed:  # noqa: ASYNC110 - rare, and brief
            await anyio.sleep(UNWRITTEN_POLL_S)
        if self._is_closed:
            raise anyio.BrokenResourceError
        self.put(message)

    def put(self, message: SessionMessage) -> None:
        """Hand a message to the thread from any other, however many wait."""
        self._unwritten.put(message)

    def get(self) -> SessionMessage | None:
        """Return the next message to the thread that writes, once there is one; None at the end."""
        return self._unwritten.get()

    def close(self) -> None:
        """Take no more; what was sent is still written."""
        self._is_closed = True
        self._unwritten.put(None)

    def end(self) -> None:
        """Say from the thread that it writes no more. Raises RuntimeError where the loop has ended."""
        self._is_closed = True
        self._loop.call_soon_threadsafe(self.all_written.set)
