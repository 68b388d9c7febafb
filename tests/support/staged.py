"""A stage over a workspace, its tools called as a run calls them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

from kairos_mcp.core.redaction import Redactor
from kairos_mcp.core.tool import ToolMemory
from kairos_mcp.tools import CommandSettings, Workspace
from kairos_mcp.tools.files.content_hash import plain_hash
from kairos_mcp.tools.files.edit_tools import EditRules
from kairos_mcp.tools.files.workspace_scopes import build_scopes
from kairos_mcp.tools.registry import ToolRegistry
from kairos_mcp.tools.stage.copies import WorkspaceCopy
from kairos_mcp.tools.stage.layers import Layer, wait_for_next_change_time
from kairos_mcp.tools.stage.mounts import Mounts
from kairos_mcp.tools.stage.overlay import Overlay
from kairos_mcp.tools.stage.probe import find_stage_way
from kairos_mcp.tools.stage.stage import Stage
from kairos_mcp.tools.stage.staged_tools import StagedTools
from support.tools import READ_BYTES, WorkspaceTools

MOST_BYTES = 64 << 20
Tree = dict[str, tuple[bytes, bool] | str]


@dataclass
class Staged(WorkspaceTools):
    """The tools of one stage. `home`: the state folder around it."""

    home: Path = field(default_factory=Path)
    made: StagedTools | None = None

    def tool(self, name):
        found = self.made.find(name)
        assert found is not None
        return found

    def write(self, files):
        """Write files as another program, long enough before the next call."""
        super().write(files)
        wait_for_next_change_time()

    @property
    def held(self) -> Stage:
        return self.made._stage

    @property
    def layer(self) -> Path:
        return self.held.layer.root

    def submit(self, **arguments):
        """Submit as a person approves it who was shown it."""
        return self.call_approved("submit_changes", self.preview("submit_changes", **arguments), **arguments)


@contextmanager
def staged_in(
    root: Path, memory: ToolMemory | None = None, run_id: str = "run-1", mode: str = "sandboxed", copied: bool = False
) -> Iterator[Staged]:
    """Open a stage over `root/workspace`, or in a copy of it; what it noted stays with `memory`."""
    workspace, home = root / "workspace", root / "home"
    workspace.mkdir(exist_ok=True)
    home.mkdir(exist_ok=True, mode=0o700)
    commands, mounts = CommandSettings(mode, hidden=(home,)), Mounts()
    with closing(mounts), Workspace(workspace, private=home) as opened:
        if not copied and (problem := _find_problem(root)) is not None:
            pytest.skip(f"no stage here: {problem}")
        rules = EditRules(opened, build_scopes(workspace), READ_BYTES, Redactor(), plain_hash)

        def find_layer(folder: Path) -> Layer:
            return WorkspaceCopy(folder, opened) if copied else Overlay(folder, opened, mounts)

        stage = Stage(home / "stages" / "run-1", opened, find_layer, run_id)
        tools = StagedTools(stage, rules, commands, MOST_BYTES)
        yield Staged(workspace, ToolRegistry([]), memory=memory or ToolMemory.in_process(), home=home, made=tools)


@cache
def _find_problem(root: Path) -> str | None:
    """Why there can be no stage in this folder, looked for once: those that are forked off know it."""
    with closing(Mounts()) as mounts:
        way = find_stage_way(root / "workspace", root / "home/stages", mounts, CommandSettings())
        return way.problem or way.no_layer


def tree(folder: Path) -> Tree:
    """Every file and link below a folder: contents with whether they are executable, targets of links."""
    found: Tree = {}
    for top, folders, files in os.walk(folder):
        for name in (*files, *folders):
            path = Path(top, name)
            if path.is_symlink():
                found[path.relative_to(folder).as_posix()] = os.readlink(path)
            elif path.is_file():
                found[path.relative_to(folder).as_posix()] = path.read_bytes(), bool(path.stat().st_mode & 0o100)
    return found
