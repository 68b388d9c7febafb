"""What a client is told of resources, in whatever era it is."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import mcp_types as wire
from mcp.client.client import Client
from mcp.server.subscriptions import ResourcesListChanged

from support.app import WITHIN_S
from support.sampling_clients import MODERN


@dataclass
class Notified:
    """The URIs that a client was told of, in order; None stands for the list. Up to 2025-11-25 it is the client's
    `message_handler`."""

    told: list[str | None] = field(default_factory=list)
    news: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, message: Any) -> None:
        match message:
            case wire.ResourceUpdatedNotification(params=params):
                self.take(str(params.uri))
            case wire.ResourceListChangedNotification():
                self.take(None)
            case _:
                pass

    def take(self, uri: str | None) -> None:
        self.told.append(uri)
        self.news.set()

    async def until(self, *uris: str | None) -> list[str | None]:
        """Return what was told once all of these are among it."""
        async with asyncio.timeout(WITHIN_S):
            while not set(uris) <= set(self.told):
                self.news.clear()
                await self.news.wait()
        return self.told


@asynccontextmanager
async def subscribe(
    client: Client, notified: Notified, era: str, *uris: str, lists: bool = False
) -> AsyncIterator[list[str]]:
    """Subscribe to these resources while the block lasts; yields those that were accepted."""
    if era != MODERN:
        if lists:
            await client.list_resources()
        for uri in uris:
            request = wire.SubscribeRequest(params=wire.SubscribeRequestParams(uri=uri))
            await client.session.send_request(request, wire.EmptyResult)
        yield list(uris)
        for uri in uris:
            last = wire.UnsubscribeRequest(params=wire.UnsubscribeRequestParams(uri=uri))
            await client.session.send_request(last, wire.EmptyResult)
        return
    async with client.listen(resource_subscriptions=list(uris), resources_list_changed=lists) as stream:

        async def take() -> None:
            async for event in stream:
                notified.take(None if isinstance(event, ResourcesListChanged) else event.uri)

        task = asyncio.create_task(take())
        try:
            yield list(stream.honored.resource_subscriptions or ())
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
