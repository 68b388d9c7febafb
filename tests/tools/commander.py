"""A server of one tool, as a process of its own: it runs one program in a workspace and prints the result as JSON.

python commander.py '{"workspace": DIR, "arguments": {...}, "mode": "sandboxed" | "bare"}'
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from kairos_mcp.core.tool import ToolContext
from kairos_mcp.tools.commands.run_command import CommandSettings, command_tools
from kairos_mcp.tools.files.workspace import Workspace
from kairos_mcp.tools.tool import call_tool


def main() -> None:
    asked = json.loads(sys.argv[1])
    with Workspace(Path(asked["workspace"])) as open_workspace:
        commands = CommandSettings(asked.get("mode", "sandboxed"), environ=dict(os.environ))
        (tool,) = command_tools(open_workspace, commands)
        ctx = ToolContext("run-1", time.monotonic() + 60, lambda _: None)
        result = call_tool(tool, asked["arguments"], ctx)
    print(json.dumps({"content": result.content, "is_error": result.is_error, "code": result.code}))


if __name__ == "__main__":
    main()
