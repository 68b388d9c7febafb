"""How an HTTP server ends: calls that are being answered get their answers, then streams that listen are closed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import anyio
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kairos_mcp.server.call import LISTEN
from kairos_mcp.server.http_guard import METHOD, refuse


class Shutdown:
    """The end of one server: whether it has begun, and the calls that it waits for. `on_begin` lets those that only
    wait for a run return what there is."""

    def __init__(self, on_begin: Callable[[], None] = lambda: None) -> None:
        self.has_begun = False
        self._on_begin = on_begin
        self._calls = 0
        self._all_answered = anyio.Event()

    def begin(self) -> None:
        """Begin to end."""
        self.has_begun = True
        self._on_begin()
        self._note_end()

    async def wait_for_calls(self) -> None:
        """Return once no call is being answered."""
        await self._all_answered.wait()

    @contextmanager
    def count_call(self) -> Iterator[None]:
        """Count a call while the block lasts."""
        self._calls += 1
        try:
            yield
        finally:
            self._calls -= 1
            self._note_end()

    def _note_end(self) -> None:
        if self.has_begun and not self._calls:
            self._all_answered.set()


class CountedCalls:
    """Middleware: counts the messages being answered, but not streams that listen until their client leaves."""

    def __init__(self, app: ASGIApp, shutdown: Shutdown) -> None:
        self._app = app
        self._shutdown = shutdown

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "POST" or scope.get(METHOD) == LISTEN:
            await self._app(scope, receive, send)
            return
        with self._shutdown.count_call():
            await self._app(scope, receive, send)


class OrderlyClose:
    """Middleware: ends an open answer properly at shutdown, the only time when streams are cut short and requests are
    cancelled."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        has_begun = has_ended = False

        async def watch_and_send(message: Message) -> None:
            nonlocal has_begun, has_ended
            has_begun = True
            has_ended = message["type"] == "http.response.body" and not message.get("more_body", False)
            await send(message)

        try:
            await self._app(scope, receive, watch_and_send)
        except asyncio.CancelledError:
            if not has_begun:
                await refuse(503, "The server is shutting down; runs are kept.")(scope, receive, send)
                return
        if has_begun and not has_ended:
            await send({"type": "http.response.body", "body": b"", "more_body": False})
