"""`install`: the entry with which an MCP host starts this server, printed or written into the host's file."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from kairos_mcp.cli.exit_codes import COMPLETED
from kairos_mcp.cli.hostfile import HostFile
from kairos_mcp.cli.options import AllFlags
from kairos_mcp.cli.settings import read_settings
from kairos_mcp.cli.terminal import print_line, print_note
from kairos_mcp.core.errors import BadArguments, ConfigError
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.settings.settings import Flags, current_folder, user_home

ENTRY = "kairos"
HostName = Literal["claude-desktop", "claude-code", "vscode", "cursor"]


@dataclass(frozen=True, slots=True)
class HostConfig:
    """Where a host lists its MCP servers: the object `section` of `file`. `has_type`: an entry names its transport.
    `then`: what a person does after the file was changed."""

    file: Path
    section: str
    has_type: bool
    then: str


def install(
    host: Annotated[HostName, typer.Argument(metavar="HOST", help="claude-desktop, claude-code, vscode or cursor.")],
    *,
    write: Annotated[bool, typer.Option("--write", help="Edit the host's file; a copy of it is kept.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an entry that differs.")] = False,
    project: Annotated[
        bool, typer.Option("--project", help="The file of the project in this folder, not the user's.")
    ] = False,
    flags: AllFlags,
) -> int:
    """Make a host start this server: print the entry for its file, or write it."""
    config = find_host_config(host, os.environ, project=project)
    if project and not flags.workspaces:
        flags = Flags(flags.home, (str(current_folder()),), flags.config)
    settings = read_settings(flags)  # an entry that could not start is not installed
    entry = server_entry(config, flags)
    if settings.origins["workspaces"] not in ("flag", "file"):  # the host has another environment
        print_note("No --workspace is given: this entry has no file tools.")
    if write:
        _write_entry(config, entry, force=force)
    else:
        print_line(json.dumps({config.section: {ENTRY: entry}}, indent=2, ensure_ascii=False))
        print_note(f"This belongs into {config.file}; --write puts it there.")
    return COMPLETED


def find_host_config(host: HostName, environ: Mapping[str, str], *, project: bool) -> HostConfig:
    """The file of a host: the user's, or with `project` that of the current folder. Raises BadArguments."""
    home, here = user_home(), current_folder()
    match host, project:
        case "claude-desktop", True:
            raise BadArguments("claude-desktop has no file for a project.", "Leave out --project.")
        case "claude-desktop", _:
            file = _application_folder(environ, home) / "Claude" / "claude_desktop_config.json"
            return HostConfig(file, "mcpServers", has_type=False, then="Restart Claude Desktop.")
        case "claude-code", _:
            users = Path(environ.get("CLAUDE_CONFIG_DIR") or home) / ".claude.json"
            file = here / ".mcp.json" if project else users
            return HostConfig(file, "mcpServers", has_type=True, then="Start a new session; /mcp shows it.")
        case "vscode", _:
            users = _application_folder(environ, home) / "Code" / "User" / "mcp.json"
            file = here / ".vscode" / "mcp.json" if project else users
            return HostConfig(file, "servers", has_type=True, then="Run `MCP: List Servers` and start it.")
        case "cursor", _:
            file = (here if project else home) / ".cursor" / "mcp.json"
            return HostConfig(file, "mcpServers", has_type=False, then="Turn it on in the settings under MCP.")


def server_entry(config: HostConfig, flags: Flags) -> JsonObject:
    """The command that starts this server, with absolute paths: a host has a folder and a PATH of its own."""
    words = [*_program(), "serve"]
    if flags.home is not None:
        words += ["--home", os.path.abspath(os.path.expanduser(flags.home))]
    for folder in flags.workspaces:
        words += ["--workspace", os.path.abspath(os.path.expanduser(folder))]
    if flags.config is not None:
        words += ["--config", os.path.abspath(os.path.expanduser(flags.config))]
    entry: JsonObject = {"command": words[0], "args": words[1:]}
    return {"type": "stdio", **entry} if config.has_type else entry


def _write_entry(config: HostConfig, entry: JsonObject, *, force: bool) -> None:
    """Write the entry, never over another one of the same name without `force`. Raises ConfigError."""
    file = HostFile.read(config.file)
    before = file.entry(config.section, ENTRY)
    if before == entry:
        print_line(f"{config.file} has this entry already.")
        return
    if before is not None and not force:
        raise ConfigError(
            f"{config.file} has another entry {ENTRY!r} under {config.section!r}.",
            "Nothing was changed; --force replaces it and keeps a copy of the file.",
        )
    copy = file.write(config.section, ENTRY, entry)
    print_line(f"Written: {config.file}")
    if copy is not None:
        print_line(f"As it was before: {copy}")
    print_note(config.then)


def _program() -> list[str]:
    """The script beside this Python, else the module. Links are not resolved: a virtual environment needs them."""
    folder = Path(os.path.abspath(sys.executable)).parent
    script = folder / ("kairos-mcp.exe" if os.name == "nt" else "kairos-mcp")
    if script.is_file() and os.access(script, os.X_OK):
        return [str(script)]
    return [os.path.abspath(sys.executable), "-m", "kairos_mcp"]


def _application_folder(environ: Mapping[str, str], home: Path) -> Path:
    """Where programs of this system keep their settings."""
    if sys.platform == "darwin":
        return home / "Library" / "Application Support"
    if os.name == "nt":
        return Path(environ.get("APPDATA") or home / "AppData" / "Roaming")
    return Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
