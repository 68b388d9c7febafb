"""Serve MCP over HTTP: Streamable HTTP at /mcp, HTTP+SSE at /sse and /messages/, all with one app.

Composed by hand, because the SDK's ready-made application checks too little (http_guard.py) and enters its lifespan
once for each SSE connection; here the app is opened around everything.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_address
from threading import Timer
from typing import Any, Literal
from urllib.parse import parse_qs

import anyio
import uvicorn
from mcp.server.lowlevel import Server
from mcp.server.sse import SseServerTransport
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from starlette.applications import Starlette
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kairos_mcp.core.errors import ConfigError
from kairos_mcp.server.auth import AccessRule, Authentication, RateLimiter
from kairos_mcp.server.call import NOBODY, current_principal, set_principal
from kairos_mcp.server.http_bounds import RequestBounds
from kairos_mcp.server.http_guard import METHOD, CheckedBody, HttpGuard, ServerNames, header, refuse
from kairos_mcp.server.http_protocol import bounded_protocol
from kairos_mcp.server.http_sessions import HttpSession, HttpSessions
from kairos_mcp.server.mcp_server import build_server, open_when_needed
from kairos_mcp.server.tokens import TokenStore
from kairos_mcp.settings.settings import Settings

Transport = Literal["http", "sse"]

HOST, PORT = "127.0.0.1", 8765
BOUNDS = RequestBounds()

_SESSION, _VERSION = b"mcp-session-id", b"mcp-protocol-version"
_SSE_ID = re.compile(rb"session_id=([0-9a-f]{32})")  # the SDK shows the id of an SSE session only in its first event


@dataclass(frozen=True, slots=True)
class ListenOptions:
    """Where to listen, and with which transports: `http` serves SSE clients too. Port 0 takes a free one; `names` are
    further host names that clients may use."""

    transport: Transport = "http"
    host: str = HOST
    port: int = PORT
    names: tuple[str, ...] = ()


def serve(settings: Settings, options: ListenOptions, bounds: RequestBounds = BOUNDS) -> None:
    """Serve until SIGTERM or Ctrl-C; a second one kills the process. Raises ConfigError if it can't listen."""
    tokens = TokenStore(settings.home)
    with _bind_socket(options) as bound:
        address, port = bound.getsockname()[:2]
        is_public = not ip_address(address).is_loopback
        if is_public and not tokens.any():
            raise ConfigError(
                f"Listening on {address} without tokens would give access to anybody.",
                "Make one by `kairos-mcp token add NAME`, or listen on 127.0.0.1.",
            )
        bound.listen(2048)
        app = partial(
            serve_app,
            transport=options.transport,
            names=ServerNames(port, options.names),
            access=AccessRule(tokens, needs_token=is_public),
            bounds=bounds,
        )
        url = f"http://{f'[{address}]' if ':' in address else address}:{port}"
        paths = ("/mcp", "/sse") if options.transport == "http" else ("/sse",)
        note = f"kairos-mcp: listening on {' and '.join(url + path for path in paths)}"
        anyio.run(_serve, settings, app, bounds, bound, note)


@contextmanager
def _bind_socket(options: ListenOptions) -> Iterator[socket.socket]:
    """A socket bound to the address, not listening yet. Raises ConfigError."""
    try:
        # AI_PASSIVE is left out: an empty host is loopback, not everywhere
        found = socket.getaddrinfo(options.host or HOST, options.port, type=socket.SOCK_STREAM)
        family, *_, address = min(found, key=lambda result: result[0] != socket.AF_INET)
        # asyncio turns off the delay (40 ms an event) only for a socket whose protocol is stated as TCP
        bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    except (OSError, UnicodeError, OverflowError) as error:
        raise ConfigError(f"There is no address {options.host[:200]!r}.", "Check --host and --port.") from error
    with bound:
        try:
            if os.name == "posix":
                bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
        except (OSError, OverflowError) as error:
            raise ConfigError(
                f"{options.host[:200]}:{options.port} can't be listened on: {error}.",
                "Choose another --host or --port; 0 takes a free port.",
            ) from error
        yield bound


async def _serve(
    settings: Settings,
    open_app: Callable[[Server[Any]], AbstractAsyncContextManager[ASGIApp]],
    bounds: RequestBounds,
    bound: socket.socket,
    note: str,
) -> None:
    set_principal(NOBODY)
    async with open_when_needed(settings) as get_app, open_app(build_server(get_app, settings)) as app:
        print(note, file=sys.stderr, flush=True)  # noqa: T201 - stdout stays empty, as on stdio
        await UvicornServer(app, bounds).run_until_signal(bound)


@asynccontextmanager
async def serve_app(
    server: Server[Any], *, transport: Transport, names: ServerNames, access: AccessRule, bounds: RequestBounds
) -> AsyncIterator[ASGIApp]:
    """The ASGI application of an MCP server, serving while the block lasts."""
    sessions = HttpSessions(bounds)
    sse = SseTransport(server, bounds, sessions)
    streamable = StreamableHTTPSessionManager(
        server,
        session_idle_timeout=bounds.idle_s,
        max_request_body_size=bounds.body_bytes,
        max_sessions=None,  # HttpSessions counts them, together with those of SSE
    )
    endpoints: dict[str, ASGIApp] = {"/sse": sse.stream, "/messages/": sse.messages}
    if transport == "http":
        endpoints["/mcp"] = StreamableTransport(streamable, sessions)
    rates = RateLimiter(bounds)
    routes = [
        Route(path, endpoint=Authentication(CheckedBody(endpoint, bounds), access, rates))
        for path, endpoint in endpoints.items()
    ]
    app = Starlette(routes=routes)
    app.router.redirect_slashes = False
    async with streamable.run():
        yield OrderlyClose(HttpGuard(app, names))


class StreamableTransport:
    """Streamable HTTP: single requests, and those of sessions, which clients up to 2025-11-25 have."""

    def __init__(self, manager: StreamableHTTPSessionManager, sessions: HttpSessions) -> None:
        self._manager = manager
        self._sessions = sessions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """GET and DELETE need a session; the SDK would make one for every stray GET."""
        session_id = header(scope, _SESSION)
        allowed = ("POST", "GET", "DELETE") if session_id else ("POST",)
        if scope["method"] not in allowed:
            allow = {"allow": ", ".join(allowed)}
            await refuse(405, "Messages are sent here by POST.", headers=allow)(scope, receive, send)
        elif session_id:
            await self._continue(session_id, scope, receive, send)
        elif scope.get(METHOD) == "initialize" and header(scope, _VERSION) in ("", *HANDSHAKE_PROTOCOL_VERSIONS):
            await self._begin(scope, receive, send)
        else:
            await self._manager.handle_request(scope, receive, send)

    async def _begin(self, scope: Scope, receive: Receive, send: Send) -> None:
        session = await self._sessions.begin(current_principal(), partial(self._end, scope))
        if session is None:
            await _refuse_session(scope, receive, send)
            return

        async def watch_and_send(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] < 400:
                session.id = header(message, _SESSION)
            await send(message)

        try:
            with self._sessions.count_request(session):
                await self._manager.handle_request(scope, receive, watch_and_send)
        finally:
            if not session.id:
                self._sessions.end(session)
        if session.has_ended:  # to make room, before the SDK had named its id
            await self._end(scope, session)

    async def _continue(self, session_id: str, scope: Scope, receive: Receive, send: Send) -> None:
        session = self._sessions.find_session(session_id, current_principal())
        if session is None:
            await self._manager.handle_request(scope, receive, send)
            return
        with self._sessions.count_request(session, listens=scope["method"] == "GET"):
            await self._manager.handle_request(scope, receive, send)
        if scope["method"] == "DELETE":
            self._sessions.end(session)

    async def _end(self, opened_by: Scope, session: HttpSession) -> None:
        """Delete a session as its client would: the SDK has no other way to end one from outside."""
        headers = [(_SESSION, session.id.encode("latin-1"))]
        scope = {**opened_by, "method": "DELETE", "headers": headers}

        async def receive_nothing() -> Message:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send_nowhere(_message: Message) -> None:
            return None

        await self._manager.handle_request(scope, receive_nothing, send_nowhere)


class SseTransport:
    """HTTP+SSE, the transport of clients up to 2024-11-05: one stream to the client, and messages sent by POST."""

    def __init__(self, server: Server[Any], bounds: RequestBounds, sessions: HttpSessions) -> None:
        self._server = server
        self._streams = SseServerTransport("/messages/", max_request_body_size=bounds.body_bytes)
        self._sessions = sessions

    async def stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "GET":
            await refuse(405, "The stream is opened by GET.", headers={"allow": "GET"})(scope, receive, send)
            return
        stream_scope = anyio.CancelScope()

        async def close(_session: HttpSession) -> None:
            stream_scope.cancel()

        session = await self._sessions.begin(current_principal(), close)
        if session is None:
            await _refuse_session(scope, receive, send)
            return

        async def watch_and_send(message: Message) -> None:
            found = None if session.id else _SSE_ID.search(message.get("body", b""))
            if found:
                session.id = found[1].decode()
            await send(message)

        try:
            with self._sessions.count_request(session, listens=True), stream_scope:
                async with self._streams.connect_sse(scope, receive, watch_and_send) as (reads, writes):
                    await self._server.run(reads, writes, self._server.create_initialization_options())
        finally:
            self._sessions.end(session)
        if stream_scope.cancelled_caught and session.id:
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        elif stream_scope.cancelled_caught:
            await _refuse_session(scope, receive, send)

    async def messages(self, scope: Scope, receive: Receive, send: Send) -> None:
        (session_id,) = parse_qs(scope["query_string"]).get(b"session_id", [b""])[:1]
        session = self._sessions.find_session(session_id.decode("latin-1"), current_principal())
        with nullcontext() if session is None else self._sessions.count_request(session):
            await self._streams.handle_post_message(scope, receive, send)


async def _refuse_session(scope: Scope, receive: Receive, send: Send) -> None:
    await refuse(503, "Too many open sessions.", headers={"retry-after": "10"})(scope, receive, send)


class OrderlyClose:
    """Middleware: ends an open answer properly at shutdown, the only time when requests are cancelled."""

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
            elif not has_ended:
                await send({"type": "http.response.body", "body": b"", "more_body": False})


class UvicornServer(uvicorn.Server):
    """uvicorn with signal handling of our own: its handlers kill the process before the app is closed."""

    def __init__(self, app: ASGIApp, bounds: RequestBounds) -> None:
        self._shutdown_s = bounds.shutdown_s
        super().__init__(
            uvicorn.Config(
                app,
                http=bounded_protocol(bounds),
                ws="none",
                loop="asyncio",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                limit_concurrency=bounds.connections + 1,
                h11_max_incomplete_event_size=bounds.header_bytes,
                timeout_graceful_shutdown=max(1, round(bounds.shutdown_s)),
            )
        )

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def run_until_signal(self, bound: socket.socket) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._exit_on_signal)
            await self.serve([bound])
            tasks.cancel_scope.cancel()

    async def _exit_on_signal(self) -> None:
        """Shut down at the first signal, and end the process after a while in any case; a second one kills it."""
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async for number in signals:
                self.handle_exit(number, None)  # open streams watch for this call
                break
        timer = Timer(self._shutdown_s + 1.5, os._exit, (0,))
        timer.daemon = True
        timer.start()
