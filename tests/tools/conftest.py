"""A workspace with a secret beside it, and tools over it and over an empty one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.tools import READ_BYTES, WorkspaceTools, has_openat2

from kairos_mcp.tools import Workspace, builtin_tools
from kairos_mcp.tools.registry import ToolRegistry


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    inside, secret = tmp_path / "W", tmp_path / "W-secret"
    (inside / "real").mkdir(parents=True)
    (inside / "real" / "f").write_text("inside")
    secret.mkdir()
    (secret / "f").write_text("SECRET")
    os.symlink("../W-secret", inside / "lnd")
    os.symlink("real/f", inside / "inln")
    os.symlink("loop", inside / "loop")
    os.link(secret / "f", inside / "hard")
    os.mkfifo(inside / "fifo")
    return inside


@pytest.fixture(params=["kernel", "walk"])
def open_workspace(request: pytest.FixtureRequest, workspace: Path) -> Iterator[Workspace]:
    with Workspace(workspace, walk=request.param == "walk") as opened:
        if request.param == "kernel" and not has_openat2():
            pytest.skip("this kernel has no openat2, or a sandbox forbids it")
        assert opened.by_kernel == (request.param == "kernel")
        yield opened


@pytest.fixture
def trapped_tools(open_workspace: Workspace, workspace: Path) -> WorkspaceTools:
    """Tools over the workspace with traps in it, once for each way of opening."""
    return WorkspaceTools(workspace, ToolRegistry(builtin_tools(open_workspace, read_bytes=READ_BYTES)))


@pytest.fixture(params=["exchange", "walk", "compare"])
def writing_tools(request: pytest.FixtureRequest, workspace: Path) -> Iterator[WorkspaceTools]:
    """Tools over the workspace with traps in it, once for each way of writing."""
    ways = {"exchange": (False, True), "walk": (True, True), "compare": (False, False)}
    walk, exchange = ways[request.param]
    with Workspace(workspace, walk=walk, exchange=exchange) as opened:
        if exchange and not opened.by_exchange:
            pytest.skip("this system has no renameat2")
        yield WorkspaceTools(workspace, ToolRegistry(builtin_tools(opened, read_bytes=READ_BYTES)))


@pytest.fixture
def tools(tmp_path: Path) -> Iterator[WorkspaceTools]:
    """Tools over an empty workspace."""
    empty = tmp_path / "empty"
    empty.mkdir()
    with Workspace(empty) as opened:
        yield WorkspaceTools(empty, ToolRegistry(builtin_tools(opened, read_bytes=READ_BYTES)))
