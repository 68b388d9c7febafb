"""Subscribers over Streamable HTTP up to 2025-11-25: nobody notices a client that goes away, so its session ends it."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import httpx2
import uvicorn
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client
from support.app import WITHIN_S, place_in
from support.sampling_clients import provide_app

from kairos_mcp.app.app import App
from kairos_mcp.server.auth import AccessRule, Challenge
from kairos_mcp.server.http import Access, serve_app
from kairos_mcp.server.http_bounds import RequestBounds
from kairos_mcp.server.http_guard import ServerNames
from kairos_mcp.server.http_shutdown import Shutdown
from kairos_mcp.server.mcp_server import build_server
from kairos_mcp.server.observer_page import SignIn
from kairos_mcp.server.tokens import TokenStore


async def test_nobody_looks_for_a_session_that_was_deleted(tmp_path: Path) -> None:
    place = place_in(tmp_path / "place")
    async with App.open(place.settings(), via="mcp") as app:
        reach, access = (
            provide_app(app),
            Access(AccessRule(TokenStore(place.home), no_auth=True), Challenge(), SignIn(None, None)),
        )
        with socket.create_server(("127.0.0.1", 0)) as bound:
            port = bound.getsockname()[1]
            async with serve_app(
                build_server(reach, app.settings), reach, Shutdown(),
                transport="http", names=ServerNames(port, ()), access=access, bounds=RequestBounds(),
            ) as asgi:  # fmt: skip
                web = uvicorn.Server(uvicorn.Config(asgi, lifespan="off", log_config=None))
                serving = asyncio.create_task(web.serve([bound]))
                url = f"http://127.0.0.1:{port}/mcp"
                async with (
                    httpx2.AsyncClient(timeout=WITHIN_S) as http,
                    Client(streamable_http_client(url, http_client=http), mode="legacy") as client,
                ):
                    await client.list_resources()
                    assert app.watch.is_looking
                async with asyncio.timeout(WITHIN_S):
                    while app.watch.is_looking:  # noqa: ASYNC110 - the client does not wait for its DELETE
                        await asyncio.sleep(0.01)
                web.should_exit = True
                await serving
