"""A low-level MCP server that lists the tools of a file and does nothing else: what any server on this SDK costs."""

import json
import sys
from pathlib import Path

import anyio
import mcp_types as wire
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

tools = wire.ListToolsResult.model_validate(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))


async def listed(_ctx: object, _params: object) -> wire.ListToolsResult:
    return tools


async def main() -> None:
    server = Server("bare", version="1", on_list_tools=listed)
    async with stdio_server() as (source, target):
        await server.run(source, target, server.create_initialization_options())


anyio.run(main)
