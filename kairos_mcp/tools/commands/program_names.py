"""Finds what the program of a call is called, for rules about commands.

A program outside the workspace may be allowed by its bare name, but only if that name finds this very file: no run can
write there. One in the workspace may be allowed by its path alone, since a run may have written it. A deny rule counts
for every name: as it was called, the last part of any path, and where links lead.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from kairos_mcp.core.command_patterns import ProgramNames
from kairos_mcp.core.errors import KairosError
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.paths import plain_path
from kairos_mcp.tools.commands.sandbox import Sandbox, build_search_path

FindProgram = Callable[[JsonObject], ProgramNames]
"""The names of the program in the arguments of a run_command call, as the file system has it now."""


def program_finder(workspace: Path, sandbox: Sandbox | None, environ: Mapping[str, str]) -> FindProgram:
    """Make a finder for programs that are started in this workspace, in a sandbox or (None) without one."""
    root = os.path.realpath(workspace)

    def find(arguments: JsonObject) -> ProgramNames:
        name: str = arguments["argv"][0]
        try:
            search_path = build_search_path(environ, [Path(root)], sandbox)
            located = _locate(name, root, plain_path(arguments.get("cwd") or "."), search_path)
            real = None if located is None else os.path.realpath(located)
        except (KairosError, OSError, ValueError):
            located = real = None
        if located is None or real is None:
            return ProgramNames((), _all_forms([name]))
        paths = [located, real, *(path for full in (located, real) if (path := _inner_path(full, root)) is not None)]
        return ProgramNames(tuple(_safe_names(located, real, root, search_path)), _all_forms([name, *paths]))

    return find


def _safe_names(located: str, real: str, root: str, search_path: str) -> Iterator[str]:
    if located != os.path.normpath(located):
        return  # `..` may lead elsewhere than it seems to
    inner = _inner_path(located, root)
    if inner is not None:
        yield inner
        yield located
    elif _inner_path(real, root) is None:
        name = os.path.basename(located)
        if shutil.which(name, path=search_path) == located:
            yield name
        yield located


def _locate(name: str, root: str, cwd: str, search_path: str) -> str | None:
    if "/" not in name:
        return shutil.which(name, path=search_path)
    return name if name.startswith("/") else f"{root}/{plain_path(f'{cwd}/{name}')}"


def _inner_path(path: str, root: str) -> str | None:
    return f"./{path[len(root) + 1 :]}" if path.startswith(f"{root}/") else None


def _all_forms(names: list[str]) -> tuple[str, ...]:
    forms = [*names, *(os.path.basename(name) for name in names)]
    return tuple(dict.fromkeys([*forms, *(form.casefold() for form in forms)]))
