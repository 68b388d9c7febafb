"""The sources of tools that are not ours: servers, for each workspace, installed packages, and what was registered."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.redaction import Redactor
from kairos_mcp.settings.settings import Settings
from kairos_mcp.store.database import Store
from kairos_mcp.store.tool_pins import DefinitionRow, registered
from kairos_mcp.tools.commands.protected_paths import ProtectionRules
from kairos_mcp.tools.files.scopes import scopes_of
from kairos_mcp.tools.registered import RegisteredSource, RegistrationFactory
from kairos_mcp.tools.registry import ToolSource
from kairos_mcp.tools.stating import GROUP
from kairos_mcp.tools.tool import Tool

if TYPE_CHECKING:
    from kairos_mcp.settings.http_tool import HttpDefinition
    from kairos_mcp.settings.settings import ServerSetting
    from kairos_mcp.tools.entry_points import EntryPointSource
    from kairos_mcp.tools.mcp_servers import McpServerSource, ServerResources

PACKAGES_S = 2  # to import what packages bring, at the first use of a registry; what takes longer is there later


class ToolSources:
    """All of one house. Making it starts and imports nothing; `close` blocks until every server has ended."""

    def __init__(self, settings: Settings, store: Store, secret: Callable[[str], str], mask: Redactor) -> None:
        self._settings = settings
        self._store = store
        self._secret = secret
        self._mask = mask
        self._shared: ServerResources | None = None
        self._installed: EntryPointSource | None = None
        self._registered: list[RegisteredSource] = []

    def sources(self, workspace: str | None) -> list[ToolSource]:
        """The sources for runs in this workspace, in the order of the servers' names; no server is started."""
        folder = Path(workspace) if workspace is not None else None
        return [*self._servers(folder), *self._packages(), self._registrations(folder)]

    def look(self) -> None:
        """Take note of what was registered, approved and removed meanwhile, by whatever process; one short reading of
        the state file, where there is one."""
        if self._registered and self._store.exists:
            rows = registered(self._store.reader)
            for each in self._registered:
                each.take(rows)

    def close(self) -> None:
        if self._shared is not None:
            self._shared.backstage.close()

    def _servers(self, workspace: Path | None) -> list[ToolSource]:
        if not self._settings.servers:
            return []
        return [self._downstream(setting, workspace) for setting in self._settings.servers]

    def _downstream(self, setting: ServerSetting, workspace: Path | None) -> McpServerSource:
        from kairos_mcp.store.tool_pins import DefinitionTable
        from kairos_mcp.tools.mcp_servers import BackgroundLoop, McpServerSource, ServerResources

        if self._shared is None:
            file = self._settings.config_file
            hidden = (self._settings.home, *((file,) if file is not None else ()))
            definitions = DefinitionTable(self._store)
            self._shared = ServerResources(
                BackgroundLoop(),
                definitions,
                self._secret,
                os.environ,
                _now,
                hidden,
                self._rules,
                self._without_secrets,
            )
        return McpServerSource(setting, workspace, self._shared)

    def _rules(self, workspace: Path) -> ProtectionRules:
        return ProtectionRules.of(scopes_of(workspace, self._settings), self._settings.command_writes, lasting=True)

    def _without_secrets(self, listed: JsonObject) -> JsonObject:
        plain: JsonObject = self._mask.json(listed)[0]
        return plain

    def _registrations(self, workspace: Path | None) -> RegisteredSource:
        def tool(definition: HttpDefinition) -> Tool:
            from kairos_mcp.tools.http.client import HttpClient
            from kairos_mcp.tools.http.http_tool import http_tool

            return http_tool(
                definition, HttpClient(self._settings.http_hosts, self._settings.private_hosts), self._secret
            )

        def counts(row: DefinitionRow) -> bool:
            from kairos_mcp.store.tool_pins import DefinitionTable

            return DefinitionTable(self._store).counts(row.source, row.name, row.hash)

        made = RegisteredSource(RegistrationFactory(tool, lambda setting: self._downstream(setting, workspace), counts))
        self._registered.append(made)
        return made

    def _packages(self) -> list[ToolSource]:
        if self._installed is None:
            from importlib.metadata import entry_points

            if not entry_points(group=GROUP):
                return []
            from kairos_mcp.tools.entry_points import EntryPointSource

            self._installed = EntryPointSource()
            self._installed.ready(time.monotonic() + PACKAGES_S)
        return [self._installed]


def _now() -> int:
    return time.time_ns() // 1_000_000
