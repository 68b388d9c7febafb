"""The servers that tools/call is compared on: the bare low-level SDK's, fastmcp's, and ours; each over each transport.

`python -m benchmarks.served WHO TRANSPORT PORT FOLDER`; fastmcp's runs in an environment of its own, so nothing
here imports more than its part.
"""

from __future__ import annotations

import sys
from typing import Any

RESULT = {"runs": [], "next": None}  # what our run_status says where there is no run yet
TEXT = "No runs yet."


def bare(transport: str, port: int, _folder: str) -> None:
    import anyio
    import mcp_types as wire
    from mcp.server.lowlevel import Server

    tool = wire.Tool(name="run_status", input_schema={"type": "object"}, output_schema={"type": "object"})
    block = wire.TextContent(type="text", text=TEXT)

    async def listed(_ctx: object, _params: object) -> wire.ListToolsResult:
        return wire.ListToolsResult(tools=[tool])

    async def called(_ctx: object, _params: object) -> wire.CallToolResult:
        return wire.CallToolResult(content=[block], structured_content=RESULT)

    server = Server("bare", version="1", on_list_tools=listed, on_call_tool=called)
    if transport == "stdio":
        from mcp.server.stdio import stdio_server

        async def main() -> None:
            async with stdio_server() as (source, target):
                await server.run(source, target, server.create_initialization_options())

        anyio.run(main)
    else:
        import uvicorn

        app = server.streamable_http_app() if transport == "http" else _sse_app(server)
        uvicorn.run(app, port=port, log_config=None)


def asks(_transport: str, _port: int, _folder: str) -> None:
    """Over stdio alone: one tool that asks the client's model so many times, as its era has it."""
    import anyio
    import mcp_types as wire
    from mcp.server.lowlevel import Server
    from mcp.server.stdio import stdio_server

    tool = wire.Tool(name="ask", input_schema={"type": "object"})
    said = wire.TextContent(text="x" * 160)  # about what a turn of our text dialect is long
    system = "x" * 1_800

    def conversation(ask: int) -> list[wire.SamplingMessage]:
        return [wire.SamplingMessage(role=("user", "assistant")[n % 2], content=said) for n in range(2 * ask + 1)]

    done = wire.CallToolResult(content=[wire.TextContent(type="text", text="done")])

    async def listed(_ctx: object, _params: object) -> wire.ListToolsResult:
        return wire.ListToolsResult(tools=[tool])

    async def called(ctx: Any, params: wire.CallToolRequestParams) -> wire.CallToolResult | wire.InputRequiredResult:
        times = int((params.arguments or {})["times"])
        if ctx.session.protocol_version < "2026-07-28":
            for ask in range(times):
                await ctx.session.create_message(conversation(ask), max_tokens=4096, system_prompt=system)
            return done
        before = int(params.request_state or 0)
        if before == times:
            return done
        asked = wire.CreateMessageRequestParams(messages=conversation(before), max_tokens=4096, system_prompt=system)
        return wire.InputRequiredResult(
            input_requests={"ask": wire.CreateMessageRequest(params=asked)}, request_state=str(before + 1)
        )

    server = Server("asks", version="1", on_list_tools=listed, on_call_tool=called)

    async def main() -> None:
        async with stdio_server() as (source, target):
            await server.run(source, target, server.create_initialization_options())

    anyio.run(main)


def _sse_app(server: Any) -> Any:
    from mcp.server.sse import SseServerTransport
    from starlette.applications import Starlette
    from starlette.routing import Mount, Route

    streams = SseServerTransport("/messages/")

    class Stream:
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            async with streams.connect_sse(scope, receive, send) as (source, target):
                await server.run(source, target, server.create_initialization_options())

    routes = [Route("/sse", endpoint=Stream()), Mount("/messages/", app=streams.handle_post_message)]
    return Starlette(routes=routes)


def fastmcp(transport: str, port: int, _folder: str) -> None:
    from fastmcp import FastMCP

    server = FastMCP("fast")

    @server.tool
    def run_status() -> dict[str, Any]:
        return RESULT

    if transport == "stdio":
        server.run(show_banner=False)
    else:
        server.run(transport=transport, port=port, show_banner=False, log_level="error")


def kairos(transport: str, port: int, folder: str) -> None:
    from kairos_mcp.server.http import ListenOptions, serve
    from kairos_mcp.server.http_bounds import RequestBounds
    from kairos_mcp.server.stdio import serve as serve_stdio
    from kairos_mcp.settings.load import load_settings
    from kairos_mcp.settings.settings import Flags

    settings = load_settings(Flags(home=folder), {})  # which reads the folder's kairos.toml, if there is one
    if transport == "stdio":
        serve_stdio(settings)
    else:  # no rate: one client of a benchmark asks as often as it can
        serve(settings, ListenOptions("http", port=port), RequestBounds(calls_per_s=1e9, burst=10**9))


if __name__ == "__main__":
    who, transport, port, folder = sys.argv[1:]
    {"asks": asks, "bare": bare, "fastmcp": fastmcp, "kairos": kairos}[who](transport, int(port), folder)
