"""A client that declares the extension for events, on a server in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from mcp.client.client import Client
from mcp.client.extension import ClientExtension, NotificationBinding
from mcp.shared.exceptions import MCPError
from support.app import UNWATCHED, Place
from support.sampling_clients import provide_app
from support.task_client import PLAIN, Notified, PlainRequest

from events.receivers import SECRET, Endpoint
from kairos_mcp.app.app import App
from kairos_mcp.core.urls import HostRule
from kairos_mcp.server.mcp_server import build_server
from kairos_mcp.settings.settings import Settings

WITHIN_S = 20.0


class EventsExtension(ClientExtension):
    """Declares the extension, and keeps what its notifications say."""

    identifier = "io.modelcontextprotocol/events"

    def __init__(self) -> None:
        self.notified: asyncio.Queue[tuple[str, dict[str, Any]]] = asyncio.Queue()

    def notifications(self) -> list[NotificationBinding[Any]]:
        return [self._binding(name) for name in ("active", "event", "heartbeat")]

    def _binding(self, name: str) -> NotificationBinding[Any]:
        async def keep(notified: Notified) -> None:
            self.notified.put_nowait((name, notified.model_dump(by_alias=True)))

        return NotificationBinding(method=f"notifications/events/{name}", params_type=Notified, handler=keep)


class EventClient:
    def __init__(self, client: Client, extension: EventsExtension) -> None:
        self.client, self.extension = client, extension

    async def ask(self, method: str, **params: Any) -> dict[str, Any]:
        async with asyncio.timeout(WITHIN_S):
            return await self.client.session.send_request(PlainRequest(method=f"events/{method}", params=params), PLAIN)

    async def refused(self, method: str, **params: Any) -> tuple[int, Any]:
        with pytest.raises(MCPError) as refused:
            await self.ask(method, **params)
        return refused.value.error.code, refused.value.error.data

    async def heard(self) -> tuple[str, dict[str, Any]]:
        async with asyncio.timeout(WITHIN_S):
            return await self.extension.notified.get()


@asynccontextmanager
async def opened(settings: Settings, era: str = "auto") -> AsyncIterator[tuple[App, EventClient]]:
    extension = EventsExtension()
    async with App.open(settings, via="mcp") as app:
        server = build_server(provide_app(app), settings)
        async with Client(server, mode=era, extensions=[extension]) as client:
            yield app, EventClient(client, extension)


def listening(place: Place, endpoint: Endpoint, *lines: dict[str, Any]) -> Settings:
    """Settings in which a person lists the endpoint's host, which is not public."""
    return place.settings(*lines, flow=UNWATCHED, private_hosts=(HostRule("127.0.0.1", port=endpoint.port),))


def delivery(endpoint: Endpoint, **more: Any) -> dict[str, Any]:
    return {"mode": "webhook", "url": endpoint.url, "secret": SECRET, **more}


async def send_all(app: App) -> None:
    await app.notifier._look()
    for task in list(app.notifier._sending.values()):
        await task
