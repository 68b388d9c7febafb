"""Check what starts programs: the interpreters of each workspace in the sandbox, and the configured MCP servers."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from kairos_mcp.cli.doctor_checks import Finding
from kairos_mcp.cli.session import with_app
from kairos_mcp.core.errors import KairosError
from kairos_mcp.core.text import count_of
from kairos_mcp.settings.settings import Settings

if TYPE_CHECKING:
    from kairos_mcp.app.app import App
    from kairos_mcp.tools.mcp_servers.source import ServerTrial

TRY_S = 20.0
SERVERS_TRY_S = 15.0
STDERR_LINES = 5
_INTERPRETERS = (
    (".venv/bin/python", (".venv/bin/python", "--version")),
    ("node_modules/.bin", ("node", "--version")),
    ("rust-toolchain", ("cargo", "--version")),
    ("rust-toolchain.toml", ("cargo", "--version")),
)
"""What in a workspace says that it needs an interpreter, and the command that tries it."""


def check_interpreters(settings: Settings) -> Iterator[Finding]:
    """Try the interpreters that each workspace needs, as run_command starts them."""
    if settings.commands == "off":
        return
    for folder in settings.workspaces:
        tried = set[tuple[str, ...]]()
        for name, argv in _INTERPRETERS:
            if argv not in tried and os.path.lexists(folder / name):
                tried.add(argv)
                yield _try_interpreter(settings, folder, name, list(argv))


def check_servers(settings: Settings) -> Iterator[Finding]:
    """Start each configured MCP server; of one that does not list its tools say what it wrote last."""
    if not settings.servers:
        return

    async def try_servers(app: App) -> list[ServerTrial]:
        return await app.tools.try_servers(SERVERS_TRY_S)

    by_name = {server.name: server for server in settings.servers}
    for trial in with_app(settings, try_servers):
        if trial.problem is None:
            yield Finding("servers", "ok", f"{trial.name} lists {count_of(trial.tools, 'tool')}")
            continue
        last = [line.strip() for line in trial.stderr.splitlines() if line.strip()][-STDERR_LINES:]
        wrote = f" It wrote: {' | '.join(last)}" if last else " It wrote nothing to stderr."
        server = by_name[trial.name]
        command = shlex.join(server.command)
        cure = f"Try it in a terminal: `{command}`" if server.command else f"Look whether {server.url} answers"
        yield Finding("servers", "note", f"{trial.problem}{wrote}", f"{cure}; then correct [servers.{trial.name}].")


def _try_interpreter(settings: Settings, folder: Path, name: str, argv: list[str]) -> Finding:
    from kairos_mcp.tools.commands.run_command import CommandSettings, command_tools
    from kairos_mcp.tools.files.workspace import Workspace
    from kairos_mcp.tools.tool import ToolContext, call_tool

    try:
        with Workspace(folder) as workspace:
            (tool,) = command_tools(workspace, CommandSettings.from_settings(settings))
            context = ToolContext("doctor", time.monotonic() + TRY_S, lambda _: None)
            result = call_tool(tool, {"argv": argv, "timeout_s": TRY_S / 2}, context)
    except KairosError as error:
        return Finding("programs", "note", f"{folder}: {name} can't be tried: {error.message}", error.hint)
    last = result.content.strip().splitlines()[-1]
    if not result.is_error:
        return Finding("programs", "ok", f"{folder}: {name} runs ({last})")
    if result.code is None:
        return Finding("programs", "note", f"{folder}: {' '.join(argv)} fails: {last}", "Try it in a terminal.")
    problem, _, cure = result.content.partition(". ")
    return Finding("programs", "note", f"{folder}: {name}: {problem}", cure)
