"""A server with a real app inside, and a client of each protocol era in the same process."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mcp_types as wire
import pytest
from jsonschema import Draft202012Validator
from mcp.client.client import Client
from support import postgres

from kairos_mcp.app.app import App
from kairos_mcp.server.mcp_server import build_server
from kairos_mcp.settings.load import load_settings
from kairos_mcp.settings.settings import Flags, Settings
from kairos_mcp.views.run_report import RESULT_SCHEMA

ERAS = {"2025-11-25": "legacy", "2026-07-28": "auto"}


@dataclass
class CheckingClient:
    """A connected client that checks each result, errors too, against the schema of its tool."""

    raw: Client
    schemas: dict[str, dict[str, Any] | None] = field(default_factory=dict)

    async def call(self, name: str, arguments: dict[str, Any] | None = None, **more: Any) -> wire.CallToolResult:
        result = await self.raw.call_tool(name, arguments or {}, **more)
        schema = self.schemas[name]
        if schema is not None:
            Draft202012Validator(schema).validate(result.structured_content)
        assert isinstance(result.structured_content, dict)
        for run in result.structured_content.get("runs", [result.structured_content]):
            if "status" in run and "run_id" in run and "mandate_id" not in run:
                Draft202012Validator(RESULT_SCHEMA).validate(run)
        json.dumps(result.structured_content, allow_nan=False)
        (block,) = result.content
        assert len(block.text.splitlines()) <= 13  # 12, and the waiting items in one more
        return result

    async def ask(self, name: str, arguments: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
        result = await self.call(name, arguments, **more)
        assert not result.is_error, result.structured_content
        return result.structured_content

    async def expect_error(self, name: str, arguments: dict[str, Any] | None) -> dict[str, Any]:
        """The error of a call; the call after it shows that the server still answers."""
        result = await self.call(name, arguments)
        assert result.is_error, result.structured_content
        assert {"code", "message", "hint", "retryable"} <= set(result.structured_content)
        assert "runs" in await self.ask("run_status")
        return result.structured_content


def reaching(app: App) -> Callable[[], Awaitable[App]]:
    async def reach() -> App:
        return app

    return reach


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    folder.mkdir()
    (folder / "hello.txt").write_text("hello, world\n")
    return folder


@pytest.fixture
def settings(tmp_path: Path, workspace: Path) -> Settings:
    return load_settings(
        Flags(home=str(tmp_path / "home"), workspaces=(str(workspace),)), postgres.environ_of(tmp_path)
    )


@pytest.fixture
def script_settings(tmp_path: Path, workspace: Path) -> Callable[..., Settings]:
    """Settings with a script of the given lines."""

    def with_lines(*lines: dict[str, Any]) -> Settings:
        script = tmp_path / "script.jsonl"
        script.write_text("".join(json.dumps(line) + "\n" for line in lines))
        flags = Flags(home=str(tmp_path / "home"), workspaces=(str(workspace),))
        return load_settings(flags, {"KAIROS_SCRIPT": str(script)} | postgres.environ_of(tmp_path))

    return with_lines


@pytest.fixture(params=ERAS)
def era(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def connect(era: str) -> Callable[[Settings], AbstractAsyncContextManager[CheckingClient]]:
    @asynccontextmanager
    async def connect(settings: Settings) -> AsyncIterator[CheckingClient]:
        async with (
            App.open(settings, via="mcp") as app,
            Client(build_server(reaching(app), settings), mode=ERAS[era]) as client,
        ):
            assert client.protocol_version == era
            tools = (await client.list_tools()).tools
            yield CheckingClient(client, {tool.name: tool.output_schema for tool in tools})

    return connect
