"""Downstream servers for tests: a store, a workspace, a background loop, and calls as a run makes them."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kairos_mcp.core.messages import ToolResult
from kairos_mcp.core.tool import StopSignal, ToolContext, ToolMemory
from kairos_mcp.settings.secret_refs import read_secret
from kairos_mcp.settings.table_values import ServerSetting
from kairos_mcp.store.database import Store
from kairos_mcp.store.tool_pins import DefinitionTable
from kairos_mcp.tools.mcp_servers import BackgroundLoop, McpServerSource, ServerResources
from kairos_mcp.tools.mcp_servers.resources import default_limits
from kairos_mcp.tools.mcp_servers.server_sandbox import SandboxLimits
from kairos_mcp.tools.registry import ToolRegistry
from kairos_mcp.tools.tool import call_tool
from support import sandboxed
from support.app import Place
from support.waiting import wait_until

PEER = Path(__file__).parent.parent / "downstream" / "peer.py"
WITHIN_S = 20.0


@dataclass
class DownstreamServers:
    """Servers on one state folder; `environ` is what this process would have."""

    root: Path
    store: Store
    loop: BackgroundLoop
    environ: dict[str, str] = field(default_factory=lambda: dict(os.environ))
    reads: tuple[Path, ...] = ()
    servers: list[McpServerSource] = field(default_factory=list)

    @property
    def workspace(self) -> Path:
        return self.root / "workspace"

    @property
    def log(self) -> Path:
        return self.root / "log"

    @property
    def definitions(self) -> DefinitionTable:
        return DefinitionTable(self.store)

    def log_lines(self, word: str) -> list[str]:
        """The lines of the peer's log that begin with the word."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [line for line in lines if line.startswith(word)]

    def peer(self, *how: str, name: str = "x", **more: Any) -> McpServerSource:
        """The server by hand, behaving as said."""
        return self.server(name, (sys.executable, str(PEER), f"log={self.log}", *how), **more)

    def server(
        self, name: str, command: tuple[str, ...] = (), *, workspace: Path | None = None, **more: Any
    ) -> McpServerSource:
        setting = ServerSetting(name, command, **{"sandbox": False, **more})
        if command and setting.sandbox:
            sandboxed.skip_if_missing()

        def resolve(reference: str) -> str:
            return read_secret(reference, self.environ)

        def limits(folder: Path | None) -> SandboxLimits:
            return replace(
                default_limits(folder),
                hidden=(self.root / "home",),
                reads=self.reads,
                caches=self.root / "home/server-caches",
            )

        shared = ServerResources(
            self.loop, self.definitions, resolve, self.environ, lambda: time.time_ns() // 10**6, limits
        )
        server = McpServerSource(setting, workspace or self.workspace, shared)
        self.servers.append(server)
        return server

    def ready_peer(self, *how: str, **more: Any) -> McpServerSource:
        """Return a server by hand that was asked what it has."""
        server = self.peer(*how, **more)
        server.wait_ready(time.monotonic() + WITHIN_S)
        return server

    def lists(self, *tools: dict[str, Any]) -> str:
        """Have the peer list these tools from now on; gives the argument that makes it."""
        file = self.root / "listing.json"
        file.write_text(json.dumps([{"inputSchema": {"type": "object"}, **tool} for tool in tools]))
        return f"listing={file}"


def names(server: McpServerSource) -> list[str]:
    return [tool.spec.name for tool in server.tools()]


def call_server(
    server: McpServerSource,
    tool: str,
    /,
    *,
    seconds: float = WITHIN_S,
    stop: StopSignal | None = None,
    memory: ToolMemory | None = None,
    **arguments: Any,
) -> ToolResult:
    """Call a tool of the server as a run does; what the run gets."""
    found = ToolRegistry([], [server]).find(f"{server.name}__{tool}")
    assert found is not None, (names(server), server.notes())
    kept = memory or ToolMemory.in_process()
    ctx = ToolContext("run-1", time.monotonic() + seconds, lambda _ref: None, memory=kept, stop=stop or StopSignal())
    return call_tool(found, arguments, ctx)


def has_exited(pid: int) -> bool:
    """Whether the process ends within the time that a test may take; a zombie has ended."""

    def has_ended() -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
        except FileNotFoundError:
            return True

    return wait_until(has_ended, WITHIN_S)


@contextmanager
def open_downstream(root: Path) -> Iterator[DownstreamServers]:
    (root / "workspace").mkdir(parents=True)
    store = Place(root).store()
    loop = BackgroundLoop()
    try:
        yield DownstreamServers(root, store, loop)
    finally:
        loop.close()
        asyncio.run(store.close())
