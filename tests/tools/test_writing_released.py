"""A change of several files whose run goes to another server in the middle: who had it touches nothing more of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
from support.interruptions import memory_in
from support.tools import READ_BYTES, WorkspaceTools

from kairos_mcp.core.errors import FenceLost
from kairos_mcp.tools import Workspace, builtin_tools
from kairos_mcp.tools.registry import ToolRegistry
from kairos_mcp.tools.tool import ToolMemory, call_tool

STEP = "round-1/call-1"
EDITS = [{"path": path, "old_string": "old", "new_string": "new"} for path in ("a.txt", "b.txt", "c.txt")]


@pytest.fixture
def tools(tmp_path: Path) -> Iterator[WorkspaceTools]:
    (tmp_path / "W").mkdir()
    with Workspace(tmp_path / "W") as open_workspace:
        tools = WorkspaceTools(tmp_path / "W", ToolRegistry(builtin_tools(open_workspace, read_bytes=READ_BYTES)))
        tools.memory = memory_in(tmp_path / "memory")
        tools.write(dict.fromkeys(("a.txt", "b.txt", "c.txt"), "old\n"))
        yield tools


def lost_at(kept: ToolMemory, look: int) -> ToolMemory:
    """The same memory; from this look on, counted from 1, the run belongs to another."""
    looks = count(1)

    def check() -> None:
        if next(looks) >= look:
            raise FenceLost("run-1")

    return replace(kept, check_owner=check)


@pytest.mark.parametrize("look", [1, 2])
def test_no_further_file_is_changed_and_the_next_server_brings_it_to_its_end(tools: WorkspaceTools, look: int) -> None:
    kept = tools.memory
    tools.memory = lost_at(kept, look)
    assert call_tool(tools.tool("apply_edits"), {"edits": EDITS}, tools.context(step=STEP)).is_error
    held = [(tools.workspace / path).read_text() for path in ("a.txt", "b.txt", "c.txt")]
    assert held == ["new\n"] * look + ["old\n"] * (3 - look)
    tools.memory = kept
    assert tools.probe("apply_edits", STEP, edits=EDITS).state == "done"
    assert {(tools.workspace / edit["path"]).read_text() for edit in EDITS} == {"new\n"}


def test_what_the_next_server_has_finished_is_not_taken_back(tools: WorkspaceTools) -> None:
    """It finds a file that is not as it was planned on, since the other one has changed it."""
    kept = tools.memory
    looks = iter((False, True))

    def check() -> None:
        if next(looks):
            raise FenceLost("run-1")
        tools.write({"b.txt": "new\n", "c.txt": "new\n"})  # the other server is quicker

    tools.memory = replace(kept, check_owner=check)
    assert call_tool(tools.tool("apply_edits"), {"edits": EDITS}, tools.context(step=STEP)).is_error
    assert {(tools.workspace / edit["path"]).read_text() for edit in EDITS} == {"new\n"}
