"""Tools over one workspace, called as a run calls them."""

from __future__ import annotations

import ctypes
import errno
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kairos_mcp.core.messages import ToolResult
from kairos_mcp.core.tool import Preview, ProbeResult, Tool, ToolContext, ToolMemory
from kairos_mcp.tools.registry import ToolRegistry
from kairos_mcp.tools.tool import call_tool, call_tool_at_once

READ_BYTES = 2 << 20


@dataclass
class WorkspaceTools:
    """Tools over one workspace; `kept` is what read_result finds, `memory` what tools keep for the run."""

    workspace: Path
    registry: ToolRegistry
    kept: dict[str, str] = field(default_factory=dict)
    memory: ToolMemory = field(default_factory=ToolMemory.in_process)
    calls: int = 0

    def call(self, tool: str, /, *, seconds: float = 60, **arguments: Any) -> ToolResult:
        """The result; where the tool answers at once as well, both ways say the same."""
        found = self.tool(tool)
        at_once = call_tool_at_once(found, arguments, self.context(seconds))
        result = call_tool(found, arguments, self.context(seconds))
        assert at_once in (None, result)
        return result

    def tool(self, name: str) -> Tool:
        found = self.registry.find(name)
        assert found is not None
        return found

    def context(self, seconds: float = 60, *, step: str | None = None, shown: Preview | None = None) -> ToolContext:
        """The context of the next call; its step is a new one unless named. `shown`: what an approval was shown."""
        self.calls += 1
        base = shown.base_hashes if shown is not None else {}
        until = time.monotonic() + seconds
        return ToolContext("run-1", until, self.kept.get, step or f"call-{self.calls}", self.memory, base)

    def preview(self, tool: str, /, **arguments: Any) -> Preview:
        """What a person would be shown; raises as the tool would."""
        shows = self.tool(tool).preview
        assert shows is not None
        found = shows(arguments, self.context())
        if found.failure is not None:
            raise found.failure
        return found

    def call_approved(self, tool: str, shown: Preview, /, **arguments: Any) -> ToolResult:
        """Make the call after an approval of what was shown."""
        return call_tool(self.tool(tool), arguments, self.context(shown=shown))

    def probe(self, tool: str, step: str, /, **arguments: Any) -> ProbeResult:
        """The look after a crash at a step."""
        looks = self.tool(tool).probe
        assert looks is not None
        return looks(arguments, self.context(step=step))

    def content(self) -> dict[str, str]:
        """Every regular file of the workspace by its path, leftovers included."""
        files = (path for path in self.workspace.rglob("*") if path.is_file() and not path.is_symlink())
        return {path.relative_to(self.workspace).as_posix(): path.read_bytes().decode() for path in files}

    def write(self, files: dict[str, str | bytes]) -> None:
        for path, content in files.items():
            where = self.workspace / path
            where.parent.mkdir(parents=True, exist_ok=True)
            where.write_bytes(content.encode() if isinstance(content, str) else content)

    def lines(self, result: ToolResult) -> list[str]:
        """What a listing or a search shows, without its bracketed notes."""
        return [line for line in result.content.splitlines() if not line.startswith("[")]


def can_tell_what_is_in_memory(folder: Path) -> bool:
    """Whether the kernel can say of a file below this folder that to open and to read it would wait for a disk: asked
    without what is tested."""
    if not has_resolve_cached():
        return False
    mounts = [line.split()[1:3] for line in Path("/proc/self/mounts").read_text().splitlines()]
    above = [(len(place), kind) for place, kind in mounts if folder.resolve().is_relative_to(place)]
    return max(above)[1] in ("ext3", "ext4", "xfs", "btrfs", "f2fs")


def has_resolve_cached() -> bool:
    """Whether this kernel's openat2 can be told not to wait for a disk; asked likewise."""
    if not has_openat2():
        return False
    how = (ctypes.c_uint64 * 3)(0, 0, 0x20)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall(437, -1, b"none", how, 24)  # EBADF; EINVAL before Linux 5.12
    return ctypes.get_errno() == errno.EBADF


def has_openat2() -> bool:
    """Whether this kernel has openat2 and lets us call it: asked without what is tested, and with nothing to open."""
    if not sys.platform.startswith("linux"):
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall(437, -1, None, None, 0)  # EINVAL: a struct of no size
    return ctypes.get_errno() not in (errno.ENOSYS, errno.EPERM, errno.EACCES)
