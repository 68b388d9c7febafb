"""A program that was about to be started when its run went to another server: it is looked at once more, and is not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support.tools import WorkspaceTools

from kairos_mcp.core.errors import FenceLost
from kairos_mcp.settings.settings import CommandMode
from kairos_mcp.tools import Workspace
from kairos_mcp.tools.commands.run_command import CommandSettings, command_tools
from kairos_mcp.tools.registry import ToolRegistry


@pytest.mark.parametrize("mode", [pytest.param("sandboxed", marks=pytest.mark.sandbox), "bare"])
def test_a_program_is_not_started_where_its_run_is_anothers_by_then(tmp_path: Path, mode: CommandMode) -> None:
    (tmp_path / "W").mkdir()
    with Workspace(tmp_path / "W") as open_workspace:
        tools = WorkspaceTools(tmp_path / "W", ToolRegistry(command_tools(open_workspace, CommandSettings(mode))))
        assert not tools.call("run_command", argv=["touch", "first"]).is_error

        def raise_fence_lost() -> None:
            raise FenceLost("run-1")

        tools.memory = replace(tools.memory, check_owner=raise_fence_lost)
        with pytest.raises(FenceLost):
            tools.call("run_command", argv=["touch", "second"])
    assert sorted(path.name for path in tools.workspace.iterdir()) == ["first"]
