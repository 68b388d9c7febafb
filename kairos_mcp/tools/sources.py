"""Tools from outside this package: configured servers, installed packages, and what was registered at run time."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from kairos_mcp.core.errors import KairosError, ToolNotOffered
from kairos_mcp.core.messages import JsonObject, ToolResult
from kairos_mcp.core.redaction import Redactor
from kairos_mcp.settings.settings import ServerSetting, Settings
from kairos_mcp.store.database import Store
from kairos_mcp.store.tool_pins import DefinitionRow, list_registered
from kairos_mcp.tools.commands.protected_paths import ProtectionRules
from kairos_mcp.tools.files.scopes import scopes_of
from kairos_mcp.tools.registry import StartingSource, ToolSource
from kairos_mcp.tools.tool import ENTRY_POINT_GROUP, Tool, ToolContext

if TYPE_CHECKING:
    from kairos_mcp.settings.http_tool import HttpDefinition
    from kairos_mcp.settings.settings import ServerSetting
    from kairos_mcp.tools.entry_points import EntryPointSource
    from kairos_mcp.tools.mcp_servers import McpServerSource, ServerResources


@dataclass(frozen=True, slots=True)
class RegistrationFactory:
    """How what was approved becomes usable, and whether a definition is approved at this moment."""

    make_tool: Callable[[HttpDefinition], Tool]
    make_server: Callable[[ServerSetting], McpServerSource]
    is_approved: Callable[[DefinitionRow], bool]


class RegisteredSource:
    """The registrations of a state folder, for runs in one workspace. `take` gives it the rows as they are now."""

    name = "registered"

    def __init__(self, making: RegistrationFactory) -> None:
        self._factory = making
        self._rows: tuple[DefinitionRow, ...] = ()
        self._tools: dict[str, Tool] = {}
        self._servers: dict[str, tuple[DefinitionRow, McpServerSource]] = {}
        self._withheld: dict[str, str] = {}
        self._problems: tuple[str, ...] = ()
        self._changes = 0
        self._guarded: dict[int, tuple[Tool, Tool]] = {}

    def update(self, rows: Sequence[DefinitionRow]) -> None:
        """Offer what these rows approve, and nothing else; a server that no row approves any more is ended."""
        if tuple(rows) == self._rows:
            return
        self._rows = tuple(rows)
        approved = {row.name: row for row in rows if row.state == "approved"}
        for name, (row, server) in list(self._servers.items()):
            if approved.get(name) != row:
                del self._servers[name]
                self._changes += server.version  # `version` must not be one that it has been
                server.close()
        self._tools, self._guarded = {}, {}
        self._withheld, troubles = _withheld_names(rows), []
        for name, row in approved.items():
            try:
                self._add_registration(row)
            except KairosError as error:
                troubles.append(f"{name}, which was registered, can't be used: {error.message}")
        self._problems = tuple(troubles)
        self._changes += 1

    @property
    def version(self) -> int:
        return self._changes + sum(server.version for _, server in tuple(self._servers.values()))

    def tools(self) -> tuple[Tool, ...]:
        servers = tuple(self._servers.values())  # a worker thread may look while the event loop takes rows
        theirs = [self._guard_tool(row, tool) for row, server in servers for tool in server.tools()]
        return (*self._tools.values(), *theirs)

    def why_withheld(self, name: str) -> str | None:
        whys = (server.why_withheld(name) for _, server in tuple(self._servers.values()))
        proposed = self._withheld.get(name) or self._withheld.get(name.partition("__")[0])
        return next((why for why in whys if why), None) or proposed

    def may_match(self, globs: Sequence[str] | None) -> bool:
        return bool(self._problems) or any(server.may_match(globs) for server in self.starting())

    def starting(self) -> Sequence[StartingSource]:
        return [server for _, server in tuple(self._servers.values())]

    def notes(self) -> tuple[str, ...]:
        return (*self._problems, *(note for _, server in tuple(self._servers.values()) for note in server.notes()))

    def _add_registration(self, row: DefinitionRow) -> None:
        """Raises ConfigError for a row that an older or newer program wrote, or somebody changed."""
        from kairos_mcp.settings.proposal import load_proposal

        proposed = load_proposal(row.body)
        if proposed.kind == "http_tool":
            self._tools[row.name] = self._guard_tool(row, self._factory.make_tool(proposed.tool))
        elif row.name not in self._servers:
            self._servers[row.name] = row, self._factory.make_server(proposed.server)

    def _guard_tool(self, row: DefinitionRow, tool: Tool) -> Tool:
        """The tool, which looks at each call whether its registration still counts: a person may have removed it while
        a run that was offered it goes on, in this process or another. Made once, since its schema is compiled on it."""
        known = self._guarded.get(id(tool))
        if known is not None and known[0] is tool:
            return known[1]
        counts = self._factory.is_approved

        def run(arguments: JsonObject, ctx: ToolContext) -> ToolResult:
            if not counts(row):
                raise ToolNotOffered(f"{tool.spec.name} was removed by a person.", "Go on without it.")
            return tool.run(arguments, ctx)

        guarded = replace(tool, run=run)
        self._guarded[id(tool)] = tool, guarded
        return guarded


def _withheld_names(rows: Sequence[DefinitionRow]) -> dict[str, str]:
    """Why a name is not offered: a proposal waits, or was removed."""
    reasons: dict[str, str] = {}
    for row in rows:
        if row.state == "pending":
            reasons[row.name] = f"{row.name} waits for a person's approval (`kairos-mcp tools list`)."
        elif row.state == "removed":
            reasons.setdefault(row.name, f"{row.name} was removed by a person.")
    return reasons


PACKAGES_WAIT_S = 2  # to import what packages bring, at the first use of a registry; what takes longer is there later


class ToolSources:
    """All of one house. Making it starts and imports nothing; `close` blocks until every server has ended."""

    def __init__(self, settings: Settings, store: Store, secret: Callable[[str], str], redactor: Redactor) -> None:
        self._settings = settings
        self._store = store
        self._secret = secret
        self._redactor = redactor
        self._server_resources: ServerResources | None = None
        self._installed: EntryPointSource | None = None
        self._registered: list[RegisteredSource] = []

    def sources(self, workspace: str | None) -> list[ToolSource]:
        """The sources for runs in this workspace, in the order of the servers' names; no server is started."""
        folder = Path(workspace) if workspace is not None else None
        return [*self._server_sources(folder), *self._package_sources(), self._registered_source(folder)]

    def refresh(self) -> None:
        """Take note of what was registered, approved and removed meanwhile, by whatever process; one short reading of
        the state file, where there is one."""
        if self._registered and self._store.exists:
            rows = list_registered(self._store.reader)
            for source in self._registered:
                source.update(rows)

    def close(self) -> None:
        if self._server_resources is not None:
            self._server_resources.loop.close()

    def _server_sources(self, workspace: Path | None) -> list[ToolSource]:
        if not self._settings.servers:
            return []
        return [self._server_source(setting, workspace) for setting in self._settings.servers]

    def _server_source(self, setting: ServerSetting, workspace: Path | None) -> McpServerSource:
        from kairos_mcp.store.tool_pins import DefinitionTable
        from kairos_mcp.tools.mcp_servers import BackgroundLoop, McpServerSource, ServerResources

        if self._server_resources is None:
            file = self._settings.config_file
            hidden = (self._settings.home, *((file,) if file is not None else ()))
            definitions = DefinitionTable(self._store)
            self._server_resources = ServerResources(
                BackgroundLoop(),
                definitions,
                self._secret,
                os.environ,
                _now,
                hidden,
                self._protection_rules,
                self._redact_listing,
            )
        return McpServerSource(setting, workspace, self._server_resources)

    def _protection_rules(self, workspace: Path) -> ProtectionRules:
        return ProtectionRules.from_scopes(
            scopes_of(workspace, self._settings), self._settings.command_writes, long_lived=True
        )

    def _redact_listing(self, listed: JsonObject) -> JsonObject:
        plain: JsonObject = self._redactor.redact_json(listed)[0]
        return plain

    def _registered_source(self, workspace: Path | None) -> RegisteredSource:
        def tool(definition: HttpDefinition) -> Tool:
            from kairos_mcp.tools.http.client import HttpClient
            from kairos_mcp.tools.http.http_tool import http_tool

            return http_tool(
                definition, HttpClient(self._settings.http_hosts, self._settings.private_hosts), self._secret
            )

        def counts(row: DefinitionRow) -> bool:
            from kairos_mcp.store.tool_pins import DefinitionTable

            return DefinitionTable(self._store).is_approved(row.source, row.name, row.hash)

        source = RegisteredSource(
            RegistrationFactory(tool, lambda setting: self._server_source(setting, workspace), counts)
        )
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
