"""A desk at which tools are called as a run calls them."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kairos_mcp.messages import ToolResult
from kairos_mcp.tools.around import Surroundings
from kairos_mcp.tools.registry import Registry, call

READ_BYTES = 2 << 20


@dataclass
class Desk:
    """Tools over one workspace; `kept` is what read_result finds."""

    workspace: Path
    registry: Registry
    kept: dict[str, str] = field(default_factory=dict)

    def call(self, tool: str, /, *, seconds: float = 60, **arguments: Any) -> ToolResult:
        found = self.registry.find(tool)
        assert found is not None
        return call(found, arguments, Surroundings("run-1", time.monotonic() + seconds, self.kept.get))

    def write(self, files: dict[str, str | bytes]) -> None:
        for path, content in files.items():
            where = self.workspace / path
            where.parent.mkdir(parents=True, exist_ok=True)
            where.write_bytes(content.encode() if isinstance(content, str) else content)

    def lines(self, result: ToolResult) -> list[str]:
        """What a listing or a search shows, without its bracketed notes."""
        return [line for line in result.content.splitlines() if not line.startswith("[")]
