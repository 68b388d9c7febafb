"""A change of several files whose run goes to another server in the middle: who had it touches nothing more of it.

The recovery after a crash is such a change as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from itertools import count
from pathlib import Path

import pytest
from support.interruptions import memory_in
from support.tools import READ_BYTES, WorkspaceTools

from kairos_mcp.core.errors import FenceLost
from kairos_mcp.core.messages import canonical_json
from kairos_mcp.core.tool import ToolMemory
from kairos_mcp.tools import Workspace, builtin_tools
from kairos_mcp.tools.files.staging import HALF, fresh_name
from kairos_mcp.tools.registry import ToolRegistry
from kairos_mcp.tools.tool import call_tool, probe_call

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
    with pytest.raises(FenceLost):
        call_tool(tools.tool("apply_edits"), {"edits": EDITS}, tools.context(step=STEP))
    held = [(tools.workspace / path).read_text() for path in ("a.txt", "b.txt", "c.txt")]
    assert held == ["new\n"] * look + ["old\n"] * (3 - look)
    tools.memory = kept
    assert tools.probe("apply_edits", STEP, edits=EDITS).state == "resolved"
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
    with pytest.raises(FenceLost):
        call_tool(tools.tool("apply_edits"), {"edits": EDITS}, tools.context(step=STEP))
    assert {(tools.workspace / edit["path"]).read_text() for edit in EDITS} == {"new\n"}


def interrupt(tools: WorkspaceTools) -> None:
    """Leave a call of which the first file is changed, as a crash would."""
    kept = tools.memory
    tools.memory = lost_at(kept, 1)
    with pytest.raises(FenceLost):
        call_tool(tools.tool("apply_edits"), {"edits": EDITS}, tools.context(step=STEP))
    tools.memory = kept


def recover_while_lost(tools: WorkspaceTools, look: int) -> None:
    """Have a server recover the call from which the run is taken before it looks for the `look`th time."""
    kept = tools.memory
    tools.memory = lost_at(kept, look)
    with pytest.raises(FenceLost):
        probe_call(tools.tool("apply_edits"), {"edits": EDITS}, tools.context(step=STEP))
    tools.memory = kept


@pytest.mark.parametrize("look", [1, 2, 3])
def test_a_recovery_changes_no_file_once_the_run_is_anothers(tools: WorkspaceTools, look: int) -> None:
    interrupt(tools)
    recover_while_lost(tools, look)
    held = [(tools.workspace / path).read_text() for path in ("a.txt", "b.txt", "c.txt")]
    changed = max(1, look - 1)
    assert held == ["new\n"] * changed + ["old\n"] * (3 - changed)
    assert tools.probe("apply_edits", STEP, edits=EDITS).state == "resolved"
    assert {(tools.workspace / edit["path"]).read_text() for edit in EDITS} == {"new\n"}


def test_a_recovery_takes_no_file_back_once_the_run_is_anothers(tools: WorkspaceTools) -> None:
    """Of a file that somebody changed meanwhile, all others would go back."""
    interrupt(tools)
    tools.write({"b.txt": "theirs\n"})
    recover_while_lost(tools, 2)
    assert tools.content() == {"a.txt": "new\n", "b.txt": "theirs\n", "c.txt": "old\n"}


def test_a_recovery_removes_no_staging_file_once_the_run_is_anothers(tools: WorkspaceTools) -> None:
    """The server that has the run now may be writing through it."""
    interrupt(tools)
    key = sha256(canonical_json(["run-1", STEP, "b.txt"]).encode()).hexdigest()[:16]
    staging_file = fresh_name(key, HALF)
    tools.write({staging_file: "new\n"})
    recover_while_lost(tools, 1)
    assert tools.content()[staging_file] == "new\n"
    assert tools.probe("apply_edits", STEP, edits=EDITS).state == "resolved"
    assert staging_file not in tools.content()


def test_a_file_that_can_not_be_changed_back_is_not_said_to_be_unchanged(tools: WorkspaceTools) -> None:
    ctx = tools.context(step=STEP)

    def end_in_the_middle() -> None:
        tools.write({"a.txt": "theirs\n"})
        ctx.stop.set()

    memory = replace(tools.memory, check_owner=end_in_the_middle)
    result = call_tool(tools.tool("apply_edits"), {"edits": EDITS}, replace(ctx, memory=memory))
    assert result.code == "stale_file"
    assert "a.txt had been changed already" in result.content
    assert "othing was changed" not in result.content
    assert tools.content() == {"a.txt": "theirs\n", "b.txt": "old\n", "c.txt": "old\n"}
