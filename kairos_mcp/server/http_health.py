"""`GET /healthz`, `/readyz` and `/metrics`, for whoever watches over the process: a proxy, systemd, Prometheus.

The first two are answered to anybody, whatever the Host header: a prober knows neither our names nor a token. So they
say no more than whether; why not is in the log. Metrics are figures of all principals: for the scope admin.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import anyio
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from kairos_mcp.core.errors import KairosError
from kairos_mcp.server.auth import Challenge
from kairos_mcp.server.http_shutdown import Shutdown
from kairos_mcp.server.sender import has_scope

if TYPE_CHECKING:
    from kairos_mcp.app.app import App

log = logging.getLogger(__name__)

LIVE, READY, METRICS = "/healthz", "/readyz", "/metrics"
PROMETHEUS_TEXT = "text/plain; version=0.0.4; charset=utf-8"
CHECK_S = 2.0  # for the store to be opened and locked; a prober's own patience is often 1 to 5 s
FRESH_S = 1.0  # a result holds so long: anybody may ask, as often as they like


class Health:
    """Middleware: answers probes, and passes everything else on.

    Alive is a process that answers. Ready is one that can read and write its store, and is not about to end.
    """

    def __init__(self, app: ASGIApp, get_app: Callable[[], Awaitable[App]], shutdown: Shutdown) -> None:
        self._app = app
        self._get_app = get_app
        self._shutdown = shutdown
        self._lock = anyio.Lock()
        self._is_usable = True
        self._checked_s = -FRESH_S

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] not in (LIVE, READY):
            await self._app(scope, receive, send)
        elif scope["method"] not in ("GET", "HEAD"):
            await Response(status_code=405, headers={"allow": "GET, HEAD"})(scope, receive, send)
        elif scope["path"] == LIVE or await self._is_ready():
            await _status(200, "ok")(scope, receive, send)
        else:
            await _status(503, "unavailable")(scope, receive, send)

    async def _is_ready(self) -> bool:
        if self._shutdown.has_begun:
            return False
        async with self._lock:
            if time.monotonic() - self._checked_s >= FRESH_S:
                self._is_usable = await self._is_store_usable()
                self._checked_s = time.monotonic()
            return self._is_usable

    async def _is_store_usable(self) -> bool:
        try:
            app = await self._get_app()  # the first time it is imported, which may take longer
            with anyio.fail_after(CHECK_S):
                await app.check_ready()
        except (KairosError, TimeoutError) as error:
            if self._is_usable:  # once, not at each probe
                log.warning("not ready: %s", str(error) or f"the store did not answer within {CHECK_S:g} s")
            return False
        if not self._is_usable:
            log.warning("ready again")
        return True


def _status(code: int, status: str) -> Response:
    return JSONResponse({"status": status}, code, {"cache-control": "no-store"})


class MetricsPage:
    """The endpoint of /metrics, once somebody is admitted: the text format of Prometheus, where telemetry is on."""

    def __init__(self, get_app: Callable[[], Awaitable[App]], challenge: Challenge) -> None:
        self._get_app = get_app
        self._challenge = challenge

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await (await self._answer(scope))(scope, receive, send)

    async def _answer(self, scope: Scope) -> Response:
        if scope["method"] not in ("GET", "HEAD"):
            return Response(status_code=405, headers={"allow": "GET, HEAD"})
        if not (has_scope("admin") or has_scope("observe")):
            return self._challenge.refuse_scope("admin", scope["user"].scopes)
        app = await self._get_app()
        return Response(
            await app.metrics_page(), headers={"content-type": PROMETHEUS_TEXT, "cache-control": "no-store"}
        )
