"""The hosts that `install` knows: where each lists its MCP servers, and what an entry looks like there."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from kairos_mcp.cli.host_formats import JSON, TOML, YAML, HostFormat
from kairos_mcp.core.errors import BadArguments, ConfigError
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.text import nearest_names
from kairos_mcp.settings.folders import current_folder, user_home

HostName = Literal["claude-desktop", "claude-code", "vscode", "cursor", "codex", "gemini", "zed", "goose"]

GOOSE_TIMEOUT_S = 600  # of one call: a call of ours may wait so long


@dataclass(frozen=True, slots=True)
class Host:
    """One host.

    `name`: as its makers write it. `users_file` and `projects_file`: where it lists servers for all projects, and for
    the one in the current folder (None: it has no such file). `section`: under which key. `open_folder`: how an entry
    for all projects names the folder that is open; None if it can't. `then`: what a person does after the entry was
    added.
    """

    name: str
    users_file: Callable[[Mapping[str, str], Path], Path]
    projects_file: str | None
    section: str
    then: str
    open_folder: str | None = None
    written_as: HostFormat = JSON
    make_entry: Callable[[Sequence[str]], JsonObject] = lambda words: {"command": words[0], "args": list(words[1:])}

    def file(self, environ: Mapping[str, str], *, project: bool) -> Path:
        """Where the entry belongs. Raises BadArguments where the host has no file for a project, ConfigError where that
        file leads out of the project: a repository may bring a link to a file of the user."""
        if not project:
            return self.users_file(environ, user_home())
        if self.projects_file is None:
            raise BadArguments("This host has no file for a project.", "Leave out --project.")
        file = current_folder() / self.projects_file
        if not file.resolve().is_relative_to(current_folder().resolve()):
            raise ConfigError(f"{file} leads out of the project.", "Put a file in its place, or leave out --project.")
        return file


def _typed_entry(words: Sequence[str]) -> JsonObject:
    return {"type": "stdio", "command": words[0], "args": list(words[1:])}


def _goose_entry(words: Sequence[str]) -> JsonObject:
    return {
        "name": "kairos",
        "description": "The agent loop: planned, bounded, crash-safe",
        "type": "stdio",
        "enabled": True,
        "cmd": words[0],
        "args": list(words[1:]),
        "timeout": GOOSE_TIMEOUT_S,
    }


def _application_folder(environ: Mapping[str, str], home: Path) -> Path:
    """Where programs of this system keep their settings."""
    if sys.platform == "darwin":
        return home / "Library" / "Application Support"
    if os.name == "nt":
        return Path(environ.get("APPDATA") or home / "AppData" / "Roaming")
    return _config_folder(environ, home)


def _config_folder(environ: Mapping[str, str], home: Path) -> Path:
    return Path(environ.get("XDG_CONFIG_HOME") or home / ".config")


HOSTS: dict[HostName, Host] = {
    "claude-desktop": Host(
        "Claude Desktop",
        lambda environ, home: _application_folder(environ, home) / "Claude" / "claude_desktop_config.json",
        None,
        "mcpServers",
        "Restart Claude Desktop.",
    ),
    "claude-code": Host(
        "Claude Code",
        lambda environ, home: Path(environ.get("CLAUDE_CONFIG_DIR") or home) / ".claude.json",
        ".mcp.json",
        "mcpServers",
        "Restart Claude Code; /mcp shows it.",
        open_folder=".",
        make_entry=_typed_entry,
    ),
    "vscode": Host(
        "VS Code",
        lambda environ, home: _application_folder(environ, home) / "Code" / "User" / "mcp.json",
        ".vscode/mcp.json",
        "servers",
        "Run `MCP: List Servers` and start it.",
        open_folder="${workspaceFolder}",
        make_entry=_typed_entry,
    ),
    "cursor": Host(
        "Cursor",
        lambda _environ, home: home / ".cursor" / "mcp.json",
        ".cursor/mcp.json",
        "mcpServers",
        "Turn it on in the settings under MCP.",
        open_folder="${workspaceFolder}",
    ),
    "codex": Host(
        "Codex",
        lambda environ, home: Path(environ.get("CODEX_HOME") or home / ".codex") / "config.toml",
        ".codex/config.toml",  # read in projects that the user trusts
        "mcp_servers",
        "Restart Codex; /mcp shows it.",
        open_folder=".",
        written_as=TOML,
    ),
    "gemini": Host(
        "Gemini CLI",
        lambda _environ, home: home / ".gemini" / "settings.json",
        ".gemini/settings.json",
        "mcpServers",
        "Restart Gemini CLI; /mcp shows it.",
        open_folder=".",
    ),
    "zed": Host(
        "Zed",
        lambda environ, home: _config_folder(environ, home) / "zed" / "settings.json",
        ".zed/settings.json",
        "context_servers",
        "The agent panel's settings show it.",
    ),
    "goose": Host(
        "goose",
        lambda environ, home: _config_folder(environ, home) / "goose" / "config.yaml",
        None,
        "extensions",
        "Start goose anew.",
        written_as=YAML,
        make_entry=_goose_entry,
    ),
}


def find_host(name: str) -> HostName:
    """Return the name of a host as it is listed. Raises BadArguments with the nearest and all of them."""
    for host in HOSTS:
        if host == name:
            return host
    near = nearest_names(name, list(HOSTS))[0]
    raise BadArguments(f"There is no host {name[:40]!r}. Did you mean {near}?", f"Hosts: {', '.join(HOSTS)}.")
