"""A program in the sandbox sees no processes but its own. What is tried here harms nobody where it is not."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from kairos_mcp.core.tool import StopSignal, ToolContext
from kairos_mcp.tools.commands.run_command import CommandSettings, command_tools
from kairos_mcp.tools.files.workspace import Workspace
from kairos_mcp.tools.tool import call_tool

pytestmark = pytest.mark.sandbox


def test_a_program_has_numbers_of_its_own_and_sees_no_process_outside(tmp_path: Path) -> None:
    (workspace := tmp_path / "W").mkdir()
    with Workspace(workspace) as open_workspace:
        (tool,) = command_tools(open_workspace, CommandSettings(environ={"PATH": os.environ["PATH"]}))
        ctx = ToolContext("run-1", time.monotonic() + 60, lambda _: None, stop=StopSignal())
        result = call_tool(tool, {"argv": ["sh", "-c", "echo $$; ls /proc"]}, ctx)
    assert not result.is_error, result.content
    own, *there = result.content.partition("bytes]\n")[2].split()
    assert int(own) < 100
    assert 1 <= len([name for name in there if name.isdecimal()]) < 20
