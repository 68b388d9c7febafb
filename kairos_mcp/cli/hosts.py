"""Where each host keeps its list of MCP servers, and in what words: one row a host."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kairos_mcp.core.errors import BadArguments
from kairos_mcp.settings.settings import standing_in, users_home

HostName = Literal["claude-desktop", "claude-code", "vscode", "cursor"]


@dataclass(frozen=True, slots=True)
class HostConfigPlace:
    """`section` is the object in `file` that holds the servers; `typed`: an entry states its transport."""

    file: Path
    section: str
    typed: bool
    afterwards: str


def place_of(host: HostName, environ: Mapping[str, str], *, project: bool) -> HostConfigPlace:
    """The file of a host: the user's, or that of the project in this folder."""
    home, here = users_home(), standing_in()
    match host, project:
        case "claude-desktop", True:
            raise BadArguments("claude-desktop has no file for a project.", "Leave out --project.")
        case "claude-desktop", _:
            file = _applications(environ, home) / "Claude" / "claude_desktop_config.json"
            return HostConfigPlace(file, "mcpServers", typed=False, afterwards="Restart Claude Desktop.")
        case "claude-code", _:
            users = Path(environ.get("CLAUDE_CONFIG_DIR") or home) / ".claude.json"
            file = here / ".mcp.json" if project else users
            return HostConfigPlace(file, "mcpServers", typed=True, afterwards="Start a new session; /mcp shows it.")
        case "vscode", _:
            users = _applications(environ, home) / "Code" / "User" / "mcp.json"
            file = here / ".vscode" / "mcp.json" if project else users
            return HostConfigPlace(file, "servers", typed=True, afterwards="Run `MCP: List Servers` and start it.")
        case "cursor", _:
            file = (here if project else home) / ".cursor" / "mcp.json"
            return HostConfigPlace(file, "mcpServers", typed=False, afterwards="Turn it on in the settings under MCP.")


def _applications(environ: Mapping[str, str], home: Path) -> Path:
    """Where this system's programs keep what is theirs."""
    if sys.platform == "darwin":
        return home / "Library" / "Application Support"
    if os.name == "nt":
        return Path(environ.get("APPDATA") or home / "AppData" / "Roaming")
    return Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
