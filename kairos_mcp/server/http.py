"""Serve MCP over HTTP: Streamable HTTP at /mcp, HTTP+SSE at /sse and /messages/, all with one app.

Composed by hand, because the SDK's ready-made application checks too little (http_guard.py) and enters its lifespan
once for each SSE connection; here the app is opened around everything.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from functools import partial
from ipaddress import ip_address
from threading import Timer
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

import anyio
import uvicorn
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.applications import Starlette
from starlette.routing import Route
from starlette.types import ASGIApp

from kairos_mcp.core.errors import ConfigError, KairosError
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.page.app import Mounted, Page
from kairos_mcp.server.auth import AccessRule, AdminTools, Authentication, Challenge, RateLimiter, answer_unavailable
from kairos_mcp.server.http_bounds import RequestBounds
from kairos_mcp.server.http_events import RETRY_MS, EventsOfSessions
from kairos_mcp.server.http_guard import CheckedBody, HttpGuard, ServerNames
from kairos_mcp.server.http_health import METRICS, Health, MetricsPage
from kairos_mcp.server.http_places import Peers, Places
from kairos_mcp.server.http_protocol import bounded_protocol
from kairos_mcp.server.http_sessions import HttpSessions
from kairos_mcp.server.http_shutdown import CountedCalls, OrderlyClose, Shutdown
from kairos_mcp.server.http_transports import SseTransport, StreamableTransport
from kairos_mcp.server.mcp_server import build_server, open_when_needed
from kairos_mcp.server.observer_page import OBSERVE, SIGN_IN, ObserverData, ObserverFiles, SignIn
from kairos_mcp.server.sender import ANONYMOUS, set_principal
from kairos_mcp.server.tokens import Tokens, make_owner_token, make_tokens
from kairos_mcp.settings.settings import Settings
from kairos_mcp.store.page_files import published_page

if TYPE_CHECKING:
    from kairos_mcp.app.app import App

log = logging.getLogger(__name__)

Transport = Literal["http", "sse"]

HOST, PORT = "127.0.0.1", 8765
PAGE, PAGE_ADDRESSES = "/ui", ("127.0.0.1", "::1")  # the page is for who sits at this machine
SCRAPE_S = 5.0  # in which a request for metrics is admitted: Prometheus waits ten seconds
ANSWER_S = 0.2  # for answers on SSE streams when the server ends: there a call and its answer are two requests

UNKNOWN_BYTES, UNKNOWN_S = 256 * 1024, 5.0  # bounds of a body while nobody knows whose it is

GetApp = Callable[[], Awaitable["App"]]
BuildServer = Callable[[GetApp, Settings], Server[Any]]


@dataclass(frozen=True, slots=True)
class ListenOptions:
    """Where to listen, and with which transports: `http` serves SSE clients too. Port 0 takes a free one; `names` are
    further host names that clients may use. `drives`: whether this server drives runs itself. `no_auth`: whether
    clients without a token are served, as the local owner who decides nothing; on loopback alone."""

    transport: Transport = "http"
    host: str = HOST
    port: int = PORT
    names: tuple[str, ...] = ()
    drives: bool = True
    no_auth: bool = False


def serve(
    settings: Settings,
    options: ListenOptions,
    bounds: RequestBounds | None = None,
    build: BuildServer = build_server,
    show_token: Callable[[str], None] = lambda token: None,
) -> None:
    """Serve until SIGTERM or Ctrl-C; a second one kills the process. Raises ConfigError if it can't listen.

    `build` makes the MCP server: what the conformance suite is run against is ours with more tools. `show_token` is
    called with the local owner's token if one is made now."""
    bounds = bounds or RequestBounds.from_settings(settings)
    tokens = make_tokens(settings)
    with bind_socket(options) as bound:
        address, port = bound.getsockname()[:2]
        if (token := _ensure_access(settings, options, tokens, address)) is not None:
            show_token(token)
        bound.listen(2048)
        has_page = options.transport == "http" and address in PAGE_ADDRESSES
        resource_host = () if settings.oauth is None else (urlsplit(settings.oauth.resource).netloc,)
        app = partial(
            serve_app,
            transport=options.transport,
            names=ServerNames(port, (*options.names, *resource_host)),
            access=_access(settings, tokens, no_auth=options.no_auth),
            bounds=bounds,
            has_metrics=settings.telemetry,
            make_page=partial(Page, home=settings.home, port=port, serves="http") if has_page else None,
        )
        url = f"http://{f'[{address}]' if ':' in address else address}:{port}"
        paths = ("/mcp", "/sse") if options.transport == "http" else ("/sse",)
        endpoints = " and ".join(url + path for path in paths)
        page = f"{url}{PAGE}/" if has_page else None
        try:
            anyio.run(_serve, settings, build, app, bounds, bound, endpoints, page, options.drives)
        finally:
            anyio.run(tokens.close)


@dataclass(frozen=True, slots=True)
class Access:
    """Who is admitted, how others are refused, and where OAuth clients learn more."""

    rule: AccessRule
    challenge: Challenge
    sign_in: SignIn
    routes: Sequence[Route] = ()


def _ensure_access(settings: Settings, options: ListenOptions, tokens: Tokens, address: str) -> str | None:
    """See to it that somebody can be admitted, and nobody who should not be. Return the local owner's token if there
    was no way in, so that it is made now. Raises ConfigError, StoreUnavailable."""
    is_public = not ip_address(address).is_loopback
    if options.no_auth:
        if is_public or settings.oauth is not None:
            where = f"Listening on {address}" if is_public else "With [oauth] in the settings"
            raise ConfigError(
                f"{where} --no-auth would give access to anybody.",
                "Leave it out; or listen on 127.0.0.1, without [oauth].",
            )
        log.warning(
            "no token is asked for: any program on this machine runs and reads as you, but decides nothing; what needs"
            " a decision waits for a command, or for the page"
        )
        return None
    if settings.oauth is not None or tokens.any():
        return None
    if is_public:
        raise ConfigError(
            f"Listening on {address} without tokens would give access to anybody.",
            "Make one by `kairos-mcp token add NAME`, configure [oauth], or listen on 127.0.0.1.",
        )
    token = make_owner_token(tokens, settings.home)
    if token is not None:
        log.info("a token was made for the owner of this state folder; `kairos-mcp install HOST --http` uses it")
    return token


def _access(settings: Settings, tokens: Tokens, *, no_auth: bool) -> Access:
    if settings.oauth is None:
        return Access(AccessRule(tokens, no_auth=no_auth), Challenge(), SignIn(None, None))
    from kairos_mcp.server.oauth import OAuthVerifier, metadata_routes, metadata_url

    verifier = OAuthVerifier(settings.oauth)
    rule, sign_in = AccessRule(tokens, oauth=verifier), SignIn(settings.oauth, verifier)
    return Access(rule, Challenge(metadata_url(settings.oauth)), sign_in, metadata_routes(settings.oauth))


@contextmanager
def bind_socket(options: ListenOptions) -> Iterator[socket.socket]:
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
    build: BuildServer,
    open_app: Callable[[Server[Any], GetApp, Shutdown], AbstractAsyncContextManager[ASGIApp]],
    bounds: RequestBounds,
    bound: socket.socket,
    endpoints: str,
    page: str | None,
    drives: bool,
) -> None:
    """`page`: the URL of the page, if it is served; other processes can find it once there is a state folder."""
    set_principal(ANONYMOUS)
    opened: list[App] = []

    def end_waits() -> None:
        for app in opened:
            app.runs.end_waits()

    shutdown = Shutdown(end_waits)
    with ExitStack() as published:

        def publish_page() -> None:
            nonlocal page
            if page is not None:
                published.enter_context(published_page(settings.home, page))
                page = None

        async with open_when_needed(settings, drives=drives) as open_once:

            async def get_app() -> App:
                opened[:] = [await open_once()]
                publish_page()
                return opened[0]

            if settings.home.is_dir():
                publish_page()

            async def begin_sending() -> None:
                with suppress(KairosError, OSError):  # the first request reports that
                    await (await get_app()).begin_sending()

            if settings.store is not None or (settings.home / "kairos.db").exists():
                sending = asyncio.create_task(begin_sending())  # to webhooks that were subscribed before
                published.callback(sending.cancel)
            async with open_app(build(get_app, settings), get_app, shutdown) as app:
                log.info("listening on %s", endpoints)
                await UvicornServer(app, bounds, shutdown).run_until_signal(bound)


@asynccontextmanager
async def serve_app(
    server: Server[Any],
    get_app: GetApp,
    shutdown: Shutdown,
    *,
    transport: Transport,
    names: ServerNames,
    access: Access,
    bounds: RequestBounds,
    has_metrics: bool = False,
    make_page: Callable[[GetApp], Page] | None = None,
) -> AsyncIterator[ASGIApp]:
    """The ASGI application of an MCP server, serving while the block lasts.

    `make_page`: makes the page, if it is served too.
    """
    sessions = HttpSessions(bounds)
    sse = SseTransport(server, bounds, sessions)
    streamable = StreamableHTTPSessionManager(
        server,
        EventsOfSessions(),
        retry_interval=RETRY_MS,
        session_idle_timeout=bounds.idle_s,
        max_request_body_size=bounds.body_bytes,
        max_sessions=None,  # HttpSessions counts them, together with those of SSE
    )
    endpoints: dict[str, ASGIApp] = {"/sse": sse.stream, "/messages/": sse.messages}
    if transport == "http":
        endpoints["/mcp"] = StreamableTransport(streamable, sessions)
    rates = RateLimiter(bounds)
    places, peers = Places(bounds), Peers(bounds.trusted_proxies)
    unavailable = CheckedBody(answer_unavailable, replace(bounds, body_bytes=UNKNOWN_BYTES, body_s=UNKNOWN_S))

    def protect(path: str, endpoint: ASGIApp) -> ASGIApp:
        checked = CheckedBody(AdminTools(CountedCalls(endpoint, shutdown), access.challenge), bounds)
        within_s = SCRAPE_S if path == METRICS else math.inf
        return Authentication(checked, access.rule, rates, places, peers, access.challenge, unavailable, within_s)

    endpoints[f"{OBSERVE}/api/{{name}}"] = ObserverData(get_app, access.challenge)
    if has_metrics:
        endpoints[METRICS] = MetricsPage(get_app, access.challenge)
    routes = [Route(path, endpoint=protect(path, endpoint)) for path, endpoint in endpoints.items()]
    app = Starlette(routes=[Route(SIGN_IN, endpoint=access.sign_in), *routes, *access.routes])
    app.router.redirect_slashes = False
    async with streamable.run(), anyio.create_task_group() as tasks:
        tasks.start_soon(access.rule.check_store)
        guarded: ASGIApp = ObserverFiles(HttpGuard(app, names), names)
        if make_page is not None:
            guarded = Mounted(make_page(get_app), PAGE, guarded)
        yield Health(OrderlyClose(guarded), get_app, shutdown)
        tasks.cancel_scope.cancel()


class UvicornServer(uvicorn.Server):
    """uvicorn with signal handling of our own: its handlers kill the process before the app is closed."""

    def __init__(self, app: ASGIApp, bounds: RequestBounds, shutdown: Shutdown | None = None) -> None:
        self._shutdown_s = bounds.shutdown_s
        self._shutdown = shutdown or Shutdown()
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
            number = await anext(signals)
        timer = Timer(self._shutdown_s + 1.5, os._exit, (0,))
        timer.daemon = True
        timer.start()
        self._shutdown.begin()
        log.info("ending: no more connections, and calls under way have %g s", self._shutdown_s)
        self.should_exit = True  # no more connections
        with anyio.move_on_after(self._shutdown_s):
            await anyio.sleep(min(ANSWER_S, self._shutdown_s / 2))
            await self._shutdown.wait_for_calls()
        self.handle_exit(number, None)  # open streams watch for this call, and are cut short by it
