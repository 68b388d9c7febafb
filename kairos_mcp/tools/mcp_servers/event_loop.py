"""One background thread with an event loop, for all downstream servers of a house.

Their connections outlive a call, and a tool's `run` only waits for what happens here.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from kairos_mcp.core.errors import Unreachable

T = TypeVar("T")

CLOSING_S = 8  # three graces of a child, all at once, and some


class BackgroundLoop:
    """The loop, made at the first use. `submit` may be called from any thread but its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._stopping: asyncio.Event | None = None
        self._closed = False
        self._closers: list[Callable[[], Coroutine[Any, Any, None]]] = []

    def submit(self, work: Callable[[], Coroutine[Any, Any, T]]) -> Future[T]:
        """Begin the work in the loop. Raises Unreachable once the server is closing."""
        with self._lock:
            if self._closed:
                raise Unreachable("The house is closing.", "Call again when it is open.")
            if self._loop is None:
                started: Future[None] = Future()
                self._thread = threading.Thread(target=self._live, args=(started,), name="kairos-servers", daemon=True)
                self._thread.start()
                started.result()
            assert self._loop is not None
            return asyncio.run_coroutine_threadsafe(work(), self._loop)

    def at_close(self, closer: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Have this awaited in the loop before it ends."""
        self._closers.append(closer)

    def close(self) -> None:
        """End all connections and the thread; blocks for at most CLOSING_S or so."""
        with self._lock:
            self._closed = True
            loop, thread, stopping = self._loop, self._thread, self._stopping
        if loop is None or thread is None or stopping is None or not thread.is_alive():
            return
        loop.call_soon_threadsafe(stopping.set)
        thread.join(CLOSING_S + 2)

    def _live(self, started: Future[None]) -> None:
        async def until_stopped() -> None:
            self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
            started.set_result(None)
            await self._stopping.wait()
            closing = [asyncio.create_task(closer()) for closer in self._closers]
            if closing:
                await asyncio.wait(closing, timeout=CLOSING_S)

        asyncio.run(until_stopped())
