"""Serve MCP over HTTP: Streamable HTTP at /mcp, HTTP+SSE at /sse and /messages/, one host behind all.

Composed by hand, because the SDK's ready-made app guards too little (guard.py) and enters its lifespan once
for each SSE connection; here the host is opened around everything.
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
from kairos_mcp.server.bounds import RequestBounds
from kairos_mcp.server.http_guard import METHOD, CheckedBody, HttpGuard, ServerNames, header, refuse
from kairos_mcp.server.http_protocol import listener
from kairos_mcp.server.http_sessions import HttpSession, HttpSessions
from kairos_mcp.server.mcp_server import build_server
from kairos_mcp.server.stdio import reachable
from kairos_mcp.server.tokens import TokenStore
from kairos_mcp.server.who import NOBODY, principal, speaks_for
from kairos_mcp.settings.settings import Settings

Transport = Literal["http", "sse"]

HOST, PORT = "127.0.0.1", 8765
BOUNDS = RequestBounds()

_SESSION, _VERSION = b"mcp-session-id", b"mcp-protocol-version"
_TOLD = re.compile(rb"session_id=([0-9a-f]{32})")  # the SDK tells the id of an SSE session in its first event alone


@dataclass(frozen=True, slots=True)
class ListenOptions:
    """Where and how: `http` answers SSE clients too, port 0 takes a free one, `names` are further hosts that
    we are asked as."""

    transport: Transport = "http"
    host: str = HOST
    port: int = PORT
    names: tuple[str, ...] = ()


def serve(settings: Settings, listening: ListenOptions, bounds: RequestBounds = BOUNDS) -> None:
    """Serve until SIGTERM or Ctrl-C; a second one kills it. Raises ConfigError where it can't listen."""
    tokens = TokenStore(settings.home)
    with _bind_socket(listening) as bound:
        address, port = bound.getsockname()[:2]
        beyond = not ip_address(address).is_loopback
        if beyond and not tokens.any():
            raise ConfigError(
                f"Listening on {address} without tokens would let anybody in.",
                "Make one by `kairos-mcp token add NAME`, or listen on 127.0.0.1.",
            )
        bound.listen(2048)
        app = partial(
            serve_app,
            transport=listening.transport,
            names=ServerNames(port, listening.names),
            entrance=AccessRule(tokens, guarded=beyond),
            bounds=bounds,
        )
        where = f"http://{f'[{address}]' if ':' in address else address}:{port}"
        paths = ("/mcp", "/sse") if listening.transport == "http" else ("/sse",)
        told = f"kairos-mcp: listening on {' and '.join(where + path for path in paths)}"
        anyio.run(_serve, settings, app, bounds, bound, told)


@contextmanager
def _bind_socket(listening: ListenOptions) -> Iterator[socket.socket]:
    """A socket on the address, not listening yet: what can't be served is refused before anybody connects."""
    try:
        # AI_PASSIVE is left out: an empty host is loopback, not everywhere
        found = socket.getaddrinfo(listening.host or HOST, listening.port, type=socket.SOCK_STREAM)
        family, *_, address = min(found, key=lambda each: each[0] != socket.AF_INET)
        # asyncio takes the delay (40 ms an event) only off a socket that says that it is TCP
        bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    except (OSError, UnicodeError, OverflowError) as error:
        raise ConfigError(f"There is no address {listening.host[:200]!r}.", "Check --host and --port.") from error
    with bound:
        try:
            if os.name == "posix":
                bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
        except (OSError, OverflowError) as error:
            raise ConfigError(
                f"{listening.host[:200]}:{listening.port} can't be listened on: {error}.",
                "Choose another --host or --port; 0 takes a free port.",
            ) from error
        yield bound


async def _serve(
    settings: Settings,
    opened: Callable[[Server[Any]], AbstractAsyncContextManager[ASGIApp]],
    bounds: RequestBounds,
    bound: socket.socket,
    told: str,
) -> None:
    speaks_for(NOBODY)
    async with reachable(settings) as reach, opened(build_server(reach, settings)) as app:
        print(told, file=sys.stderr, flush=True)  # noqa: T201 - stdout stays empty, as on stdio
        await UvicornServer(app, bounds).run_until_signal(bound)


@asynccontextmanager
async def serve_app(
    server: Server[Any], *, transport: Transport, names: ServerNames, entrance: AccessRule, bounds: RequestBounds
) -> AsyncIterator[ASGIApp]:
    """The app over an MCP server, serving while the block lasts."""
    sessions = HttpSessions(bounds)
    sse = SseTransport(server, bounds, sessions)
    streamable = StreamableHTTPSessionManager(
        server,
        session_idle_timeout=bounds.idle_s,
        max_request_body_size=bounds.body_bytes,
        max_sessions=None,  # ours are counted by whose they are, together with those of SSE
    )
    ways: dict[str, ASGIApp] = {"/sse": sse.stream, "/messages/": sse.messages}
    if transport == "http":
        ways["/mcp"] = StreamableTransport(streamable, sessions)
    rates = RateLimiter(bounds)
    routes = [
        Route(path, endpoint=Authentication(CheckedBody(way, bounds), entrance, rates)) for path, way in ways.items()
    ]
    app = Starlette(routes=routes)
    app.router.redirect_slashes = False
    async with streamable.run():
        yield OrderlyClose(HttpGuard(app, names))


class StreamableTransport:
    """Streamable HTTP: requests that stand alone, and those of sessions, which clients up to 2025-11-25 have."""

    def __init__(self, manager: StreamableHTTPSessionManager, sessions: HttpSessions) -> None:
        self._manager = manager
        self._sessions = sessions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Only a session can be listened to or ended; the SDK would make one for every stray GET."""
        in_session = header(scope, _SESSION)
        allowed = ("POST", "GET", "DELETE") if in_session else ("POST",)
        if scope["method"] not in allowed:
            allow = {"allow": ", ".join(allowed)}
            await refuse(405, "Messages are posted here.", headers=allow)(scope, receive, send)
        elif in_session:
            await self._go_on(in_session, scope, receive, send)
        elif scope.get(METHOD) == "initialize" and header(scope, _VERSION) in ("", *HANDSHAKE_PROTOCOL_VERSIONS):
            await self._begin(scope, receive, send)
        else:
            await self._manager.handle_request(scope, receive, send)

    async def _begin(self, scope: Scope, receive: Receive, send: Send) -> None:
        session = await self._sessions.begin(principal(), partial(self._end, scope))
        if session is None:
            await _no_room(scope, receive, send)
            return

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] < 400:
                session.id = header(message, _SESSION)
            await send(message)

        try:
            with self._sessions.count_request(session):
                await self._manager.handle_request(scope, receive, sending)
        finally:
            if not session.id:
                self._sessions.end(session)
        if session.has_ended:  # for another one, before the SDK said its id
            await self._end(scope, session)

    async def _go_on(self, session_id: str, scope: Scope, receive: Receive, send: Send) -> None:
        session = self._sessions.find_session(session_id, principal())
        if session is None:
            await self._manager.handle_request(scope, receive, send)
            return
        with self._sessions.count_request(session, listens=scope["method"] == "GET"):
            await self._manager.handle_request(scope, receive, send)
        if scope["method"] == "DELETE":
            self._sessions.end(session)

    async def _end(self, opened_by: Scope, session: HttpSession) -> None:
        """Delete a session as its client would: the SDK knows no other way to end one from outside."""
        headers = [(_SESSION, session.id.encode("latin-1"))]
        scope = {**opened_by, "method": "DELETE", "headers": headers}

        async def nothing() -> Message:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def unread(_message: Message) -> None:
            return None

        await self._manager.handle_request(scope, nothing, unread)


class SseTransport:
    """The transport of clients up to 2024-11-05: one stream down, messages posted beside it."""

    def __init__(self, server: Server[Any], bounds: RequestBounds, sessions: HttpSessions) -> None:
        self._server = server
        self._streams = SseServerTransport("/messages/", max_request_body_size=bounds.body_bytes)
        self._sessions = sessions

    async def stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "GET":
            await refuse(405, "The stream is got.", headers={"allow": "GET"})(scope, receive, send)
            return
        lasting = anyio.CancelScope()

        async def close(_session: HttpSession) -> None:
            lasting.cancel()

        session = await self._sessions.begin(principal(), close)
        if session is None:
            await _no_room(scope, receive, send)
            return

        async def sending(message: Message) -> None:
            told = None if session.id else _TOLD.search(message.get("body", b""))
            if told:
                session.id = told[1].decode()
            await send(message)

        try:
            with self._sessions.count_request(session, listens=True), lasting:
                async with self._streams.connect_sse(scope, receive, sending) as (reads, writes):
                    await self._server.run(reads, writes, self._server.create_initialization_options())
        finally:
            self._sessions.end(session)
        if lasting.cancelled_caught and session.id:
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        elif lasting.cancelled_caught:
            await _no_room(scope, receive, send)

    async def messages(self, scope: Scope, receive: Receive, send: Send) -> None:
        (named,) = parse_qs(scope["query_string"]).get(b"session_id", [b""])[:1]
        session = self._sessions.find_session(named.decode("latin-1"), principal())
        with nullcontext() if session is None else self._sessions.count_request(session):
            await self._streams.handle_post_message(scope, receive, send)


async def _no_room(scope: Scope, receive: Receive, send: Send) -> None:
    await refuse(503, "Too many open sessions.", headers={"retry-after": "10"})(scope, receive, send)


class OrderlyClose:
    """Ends an open answer in order when the server leaves: only then are requests cancelled from below."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = ended = False

        async def sending(message: Message) -> None:
            nonlocal begun, ended
            begun = True
            ended = message["type"] == "http.response.body" and not message.get("more_body", False)
            await send(message)

        try:
            await self._app(scope, receive, sending)
        except asyncio.CancelledError:
            if not begun:
                await refuse(503, "The server is leaving; runs are kept.")(scope, receive, send)
            elif not ended:
                await send({"type": "http.response.body", "body": b"", "more_body": False})


class UvicornServer(uvicorn.Server):
    """uvicorn, but for the signals: theirs kill the process before the house is closed."""

    def __init__(self, app: ASGIApp, bounds: RequestBounds) -> None:
        self._leaving_s = bounds.leaving_s
        super().__init__(
            uvicorn.Config(
                app,
                http=listener(bounds),
                ws="none",
                loop="asyncio",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                limit_concurrency=bounds.connections + 1,
                h11_max_incomplete_event_size=bounds.header_bytes,
                timeout_graceful_shutdown=max(1, round(bounds.leaving_s)),
            )
        )

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def run_until_signal(self, bound: socket.socket) -> None:
        async with anyio.create_task_group() as watch:
            watch.start_soon(self._on_signal)
            await self.serve([bound])
            watch.cancel_scope.cancel()

    async def _on_signal(self) -> None:
        """The first signal ends the server in order, or after a while in any case; a second one kills it."""
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async for number in signals:
                self.handle_exit(number, None)  # open streams listen for this call
                break
        timer = Timer(self._leaving_s + 1.5, os._exit, (0,))
        timer.daemon = True
        timer.start()
