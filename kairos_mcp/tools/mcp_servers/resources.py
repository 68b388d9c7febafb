"""What all downstream servers of a house share: a thread, the pins, the way to secrets, what is hidden from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from kairos_mcp.core.messages import JsonObject
from kairos_mcp.store.tool_pins import DefinitionTable
from kairos_mcp.tools.commands.protected_paths import ProtectionRules
from kairos_mcp.tools.files.scopes import scopes_of
from kairos_mcp.tools.mcp_servers.event_loop import BackgroundLoop

BASICS = ("HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "TMPDIR", "TZ", "USER")  # what a child has of our environment


@dataclass(frozen=True, slots=True)
class ServerResources:
    """What all servers of a house share. `secret` resolves `env:NAME` and `file:PATH`, raising ConfigError; `clock`
    gives milliseconds since 1970; `environ` is this process's environment; `hidden`: what no sandbox shows (the state
    folder, the configuration); `rules` says what of a workspace no server in a sandbox writes."""

    backstage: BackgroundLoop
    definitions: DefinitionTable
    secret: Callable[[str], str]
    environ: Mapping[str, str]
    clock: Callable[[], int]
    hidden: tuple[Path, ...] = ()
    rules: Callable[[Path], ProtectionRules] = lambda workspace: ProtectionRules.of(scopes_of(workspace), lasting=True)
    hide: Callable[[JsonObject], JsonObject] = lambda listed: listed  # takes the secrets out of what a server lists
