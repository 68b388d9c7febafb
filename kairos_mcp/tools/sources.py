"""Collects tools from outside this package: of configured servers, installed packages, and registrations."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from kairos_mcp.core.env_files import is_env_file
from kairos_mcp.core.errors import KairosError, ToolNotOffered
from kairos_mcp.core.messages import JsonObject, ToolResult
from kairos_mcp.core.redaction import Redactor
from kairos_mcp.core.tool import Tool, ToolContext
from kairos_mcp.settings.file_ownership import SERVER_CACHES
from kairos_mcp.settings.settings import Settings
from kairos_mcp.settings.table_values import ServerSetting
from kairos_mcp.store.database import Store
from kairos_mcp.store.page_files import find_page_ports
from kairos_mcp.store.tool_pins import DefinitionRow, list_registered
from kairos_mcp.tools.commands.protected_paths import IsUnreadable, ProtectionRules
from kairos_mcp.tools.files.workspace_scopes import build_scopes
from kairos_mcp.tools.registry import StartingSource, ToolSource
from kairos_mcp.tools.tool import ENTRY_POINT_GROUP

if TYPE_CHECKING:
    from opentelemetry.context import Context

    from kairos_mcp.settings.http_definition import HttpDefinition
    from kairos_mcp.settings.table_values import ServerSetting
    from kairos_mcp.tools.entry_points import EntryPointSource
    from kairos_mcp.tools.mcp_servers import McpServerSource, ServerResources
    from kairos_mcp.tools.mcp_servers.server_sandbox import SandboxLimits
    from kairos_mcp.tools.mcp_servers.source import ServerTrial


class RegisteredSource:
    """The tools and servers that were registered at run time, for runs in one workspace; `update` gives it the rows.

    `is_approved`: whether a registration is approved at this moment.
    """

    name = "registered"

    def __init__(
        self,
        make_tool: Callable[[HttpDefinition], Tool],
        make_server: Callable[[ServerSetting], McpServerSource],
        is_approved: Callable[[DefinitionRow], bool],
    ) -> None:
        self._make_tool, self._make_server, self._is_approved = make_tool, make_server, is_approved
        self._rows: tuple[DefinitionRow, ...] = ()
        self._tools: dict[str, Tool] = {}
        self._servers: dict[str, tuple[DefinitionRow, McpServerSource]] = {}
        self._withheld: dict[str, str] = {}
        self._problems: tuple[str, ...] = ()
        self._changes = 0
        self._guarded: dict[int, tuple[Tool, Tool]] = {}

    def update(self, rows: Sequence[DefinitionRow]) -> None:
        """Offer exactly what these rows approve; end a server that no row approves any more."""
        if tuple(rows) == self._rows:
            return
        self._rows = tuple(rows)
        approved = {row.name: row for row in rows if row.state == "approved"}
        for name, (row, server) in list(self._servers.items()):
            if approved.get(name) != row:
                del self._servers[name]
                self._changes += server.version  # `version` must never return to an earlier value
                server.close()
        self._tools, self._guarded = {}, {}
        self._withheld, problems = _withheld_names(rows), []
        for name, row in approved.items():
            try:
                self._add_registration(row)
            except KairosError as error:
                problems.append(f"{name}, which was registered, can't be used: {error.message}")
        self._problems = tuple(problems)
        self._changes += 1

    @property
    def version(self) -> int:
        if not self._servers:
            return self._changes
        return self._changes + sum(server.version for _, server in tuple(self._servers.values()))

    def tools(self) -> tuple[Tool, ...]:
        # A copy, since a worker thread may call this while the event loop updates the rows.
        servers = tuple(self._servers.values())
        server_tools = [self._guard_tool(row, tool) for row, server in servers for tool in server.tools()]
        return (*self._tools.values(), *server_tools)

    def why_withheld(self, name: str) -> str | None:
        reasons = (server.why_withheld(name) for _, server in tuple(self._servers.values()))
        own_reason = self._withheld.get(name) or self._withheld.get(name.partition("__")[0])
        return next((reason for reason in reasons if reason), None) or own_reason

    def may_match(self, globs: Sequence[str] | None) -> bool:
        return bool(self._problems) or any(server.may_match(globs) for server in self.starting())

    def starting(self) -> Sequence[StartingSource]:
        return self.servers()

    def servers(self) -> Sequence[McpServerSource]:
        return [server for _, server in tuple(self._servers.values())]

    def notes(self) -> tuple[str, ...]:
        return self._problems  # its servers have notes of their own

    def _add_registration(self, row: DefinitionRow) -> None:
        """Add what a row registers. Raises ConfigError for a row that another version wrote or somebody changed."""
        from kairos_mcp.settings.proposal import load_proposal

        proposed = load_proposal(row.body)
        if proposed.kind == "http_tool":
            self._tools[row.name] = self._guard_tool(row, self._make_tool(proposed.tool))
        elif row.name not in self._servers:
            self._servers[row.name] = row, self._make_server(proposed.server)

    def _guard_tool(self, row: DefinitionRow, tool: Tool) -> Tool:
        """Return the tool with a check in each call that its registration is still approved.

        A person may remove it, in this process or another, while a run that was offered it continues. Made once for
        each tool, since its compiled schema is cached on it.
        """
        known = self._guarded.get(id(tool))
        if known is not None and known[0] is tool:
            return known[1]
        is_approved = self._is_approved

        def run(arguments: JsonObject, ctx: ToolContext) -> ToolResult:
            if not is_approved(row):
                raise ToolNotOffered(f"{tool.spec.name} was removed by a person.", "Go on without it.")
            return tool.run(arguments, ctx)

        guarded = replace(tool, run=run, at_once=None)
        self._guarded[id(tool)] = tool, guarded
        return guarded


def _withheld_names(rows: Sequence[DefinitionRow]) -> dict[str, str]:
    """Return why names are not offered: a proposal waits for approval, or was removed."""
    reasons: dict[str, str] = {}
    for row in rows:
        if row.state == "pending":
            reasons[row.name] = f"{row.name} waits for a person's approval (`kairos-mcp tools list`)."
        elif row.state == "removed":
            reasons.setdefault(row.name, f"{row.name} was removed by a person.")
    return reasons


PACKAGES_WAIT_S = 2  # for importing packages at the first use of a registry; what takes longer appears later


class ToolSources:
    """All external tools of one server. Making it starts and imports nothing; `close` waits until every downstream
    server has ended."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        resolve_secret: Callable[[str], str],
        redactor: Redactor,
        trace_of: Callable[[str, str], Context | None] | None = None,
        unreadable_test: Callable[[str], IsUnreadable] = lambda workspace: is_env_file,
    ) -> None:
        self._trace_of = trace_of
        self._unreadable_test = unreadable_test
        self._settings = settings
        self._store = store
        self._resolve_secret = resolve_secret
        self._redactor = redactor
        self._server_resources: ServerResources | None = None
        self._installed: EntryPointSource | None = None
        self._registered: list[RegisteredSource] = []
        self._configured: dict[tuple[str | None, str], McpServerSource] = {}

    def find_server(self, workspace: str | None, name: str) -> McpServerSource | None:
        """Return the source of a configured server for a workspace whose sources were made; None if it has none."""
        return self._configured.get((workspace, name))

    def sources(self, workspace: str | None) -> list[ToolSource]:
        """Return the sources for runs in this workspace, servers ordered by name. Starts no server."""
        folder = Path(workspace) if workspace is not None else None
        servers = [self._server_source(setting, folder) for setting in self._settings.servers]
        self._configured |= {(workspace, server.name): server for server in servers}
        return [*servers, *self._package_sources(), self._registered_source(folder)]

    def try_servers(self, workspace: str | None, within_s: float) -> list[ServerTrial]:
        """Start each approved server once more, side by side, to see whether it lists its tools; blocks. Those that
        were registered are known after `refresh`."""
        folder = Path(workspace) if workspace is not None else None
        servers = [self._server_source(setting, folder) for setting in self._settings.servers]
        registered = {server.name: server for source in self._registered for server in source.servers()}
        servers += registered.values()
        if not servers:
            return []
        deadline = time.monotonic() + within_s
        with ThreadPoolExecutor(len(servers)) as threads:
            return list(threads.map(lambda server: server.try_start(deadline), servers))

    async def refresh(self) -> None:
        """Update all sources with what any process registered, approved or removed; reads the state file once, if it
        exists."""
        if self._registered and self._store.exists:
            rows = await self._store.read(list_registered)
            for source in self._registered:
                source.update(rows)

    def close(self) -> None:
        if self._server_resources is not None:
            self._server_resources.loop.close()

    def _server_source(self, setting: ServerSetting, workspace: Path | None) -> McpServerSource:
        from kairos_mcp.store.tool_pins import DefinitionTable
        from kairos_mcp.tools.mcp_servers import BackgroundLoop, McpServerSource, ServerResources

        if self._server_resources is None:
            definitions = DefinitionTable(self._store)
            self._server_resources = ServerResources(
                BackgroundLoop(),
                definitions,
                self._resolve_secret,
                os.environ,
                _now,
                self._sandbox_limits,
                lambda listed: self._redactor.redact_json(listed)[0],
                self._trace_of,
            )
        return McpServerSource(setting, workspace, self._server_resources)

    def _sandbox_limits(self, workspace: Path | None) -> SandboxLimits:
        from kairos_mcp.tools.mcp_servers.server_sandbox import SandboxLimits

        settings = self._settings
        caches = settings.home / SERVER_CACHES
        hidden = (settings.home, *((settings.config_file,) if settings.config_file is not None else ()))
        if workspace is None:
            return SandboxLimits(hidden, reads=settings.command_reads, caches=caches)
        rules = ProtectionRules.from_scopes(build_scopes(workspace, settings), settings.command_writes)
        return SandboxLimits(hidden, rules, settings.command_reads, self._unreadable_test(str(workspace)), caches)

    def _registered_source(self, workspace: Path | None) -> RegisteredSource:
        def tool(definition: HttpDefinition) -> Tool:
            from kairos_mcp.tools.http.client import HttpClient
            from kairos_mcp.tools.http.http_tool import http_tool

            settings = self._settings
            ports = partial(find_page_ports, settings.home)
            client = HttpClient(settings.http_hosts, settings.private_hosts, page_ports=ports)
            return http_tool(definition, client, self._resolve_secret)

        def counts(row: DefinitionRow) -> bool:
            from kairos_mcp.store.tool_pins import DefinitionTable

            return DefinitionTable(self._store).is_approved(row.source, row.name, row.hash)

        source = RegisteredSource(tool, lambda setting: self._server_source(setting, workspace), counts)
        self._registered.append(source)
        return source

    def _package_sources(self) -> list[ToolSource]:
        if self._installed is None:
            from importlib.metadata import entry_points

            if not entry_points(group=ENTRY_POINT_GROUP):
                return []
            from kairos_mcp.tools.entry_points import EntryPointSource

            self._installed = EntryPointSource()
            self._installed.wait_ready(time.monotonic() + PACKAGES_WAIT_S)
        return [self._installed]


def _now() -> int:
    return time.time_ns() // 1_000_000
