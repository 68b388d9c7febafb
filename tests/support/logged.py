"""What a client is sent as log messages, and how it asks for them, in whatever era it is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import mcp_types as wire
from mcp.client.client import Client

from kairos_mcp.app.app import App
from kairos_mcp.core.decision_rights import LOCAL
from kairos_mcp.server.mcp_server import build_server
from kairos_mcp.server.sender import set_principal
from support.app import WITHIN_S
from support.sampling_clients import ERAS, LEGACY, provide_app

Entry = tuple[str, str | None, dict[str, Any]]  # level, logger, data


@dataclass
class Logged:
    """The log messages of a client, in order. It is the client's `logging_callback`."""

    entries: list[Entry] = field(default_factory=list)
    came: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, params: wire.LoggingMessageNotificationParams) -> None:
        assert isinstance(params.data, dict)
        self.entries.append((params.level, params.logger, params.data))
        self.came.set()

    @property
    def events(self) -> list[str]:
        return [data["event"] for _, _, data in self.entries]

    def of(self, event: str) -> list[Entry]:
        return [entry for entry in self.entries if entry[2]["event"] == event]

    async def until(self, seen: Callable[[], object]) -> None:
        """Return as soon as this holds of what came."""
        async with asyncio.timeout(WITHIN_S):
            while not seen():
                self.came.clear()
                await self.came.wait()


async def set_level(client: Client, level: str) -> None:
    """Name a level for the session, as clients do up to 2025-11-25: past the SDK, which warns and checks it."""
    request = wire.SetLevelRequest(params=wire.SetLevelRequestParams.model_construct(level=level))
    await client.session.send_request(request, wire.EmptyResult)


@asynccontextmanager
async def open_logged_client(
    app: App, era: str, level: str | None, principal: str = LOCAL
) -> AsyncIterator[tuple[Client, Logged]]:
    """A client of this principal, as long as no other one connects, that wants what is logged from this level."""
    logged = Logged()
    set_principal(principal)
    server = build_server(provide_app(app), app.settings)
    ways: dict[str, Any] = {"logging_callback": logged, "log_level": level}  # which counts in the modern era alone
    async with Client(server, mode=ERAS[era], **ways) as client:
        if era == LEGACY and level is not None:
            await set_level(client, level)
        yield client, logged
    set_principal(LOCAL)
