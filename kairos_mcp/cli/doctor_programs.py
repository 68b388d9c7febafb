"""Check what starts programs: the interpreters of each workspace in the sandbox, and the configured MCP servers."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

from kairos_mcp.cli.doctor_checks import Finding
from kairos_mcp.core.errors import KairosError
from kairos_mcp.settings.settings import Settings

TRY_S = 20.0
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
