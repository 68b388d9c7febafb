"""Serve the page for people on this machine: by itself, until a signal ends it, or beside MCP on stdio."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import anyio
from anyio.abc import TaskStatus

from kairos_mcp.app.app import App
from kairos_mcp.page.app import Page
from kairos_mcp.server.http import ListenOptions, UvicornServer, bind_socket
from kairos_mcp.server.http_bounds import RequestBounds
from kairos_mcp.server.http_shutdown import OrderlyClose
from kairos_mcp.store.page_files import published_page

if TYPE_CHECKING:
    import socket

    from kairos_mcp.settings.settings import Settings


def serve_page(settings: Settings, port: int, announce: Callable[[str], None]) -> None:
    """Serve the page on 127.0.0.1; call `announce` with its URL once it can be reached. Raises ConfigError where the
    port can't be had."""
    with bind_socket(ListenOptions(port=port)) as bound:
        bound.listen(128)
        anyio.run(_serve, settings, bound, announce)


async def serve_beside(app: App, *, task_status: TaskStatus[None]) -> None:
    """Serve the page from this process, on a free port of this machine, until it is cancelled; report once it can be
    reached."""

    async def get_app() -> App:
        return app

    home = app.settings.home
    with bind_socket(ListenOptions(port=0)) as bound:
        bound.listen(128)
        port = bound.getsockname()[1]
        page = Page(get_app, home, port, "ui")
        server = UvicornServer(OrderlyClose(page.asgi), RequestBounds.from_settings(app.settings))
        with published_page(home, f"http://127.0.0.1:{port}/"):
            task_status.started()
            await server.serve([bound])


async def _serve(settings: Settings, bound: socket.socket, announce: Callable[[str], None]) -> None:
    port = bound.getsockname()[1]
    url = f"http://127.0.0.1:{port}/"
    async with App.open(settings, via="command") as app:

        async def get_app() -> App:
            return app

        page = Page(get_app, settings.home, port, "ui")
        server = UvicornServer(OrderlyClose(page.asgi), RequestBounds.from_settings(settings))
        with published_page(settings.home, url):
            announce(url)
            await server.run_until_signal(bound)
