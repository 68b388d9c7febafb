"""The servers that tools/call is compared on: the bare low-level SDK's, fastmcp's, and ours; each over each transport.

`python -m benchmarks.served WHO TRANSPORT PORT FOLDER`; fastmcp's runs in an environment of its own, so nothing
here imports more than its part.
"""

from __future__ import annotations

import sys
from typing import Any

RESULT = {"runs": [], "next": None}  # what our run_status says where there is no run yet
TEXT = "No runs yet."
TASKS = "io.modelcontextprotocol/tasks"


def bare(transport: str, port: int, _folder: str) -> None:
    import anyio
    import mcp_types as wire
    from mcp.server.lowlevel import Server

    form = {"type": "object"}
    tools = [wire.Tool(name=name, input_schema=form, output_schema=form) for name in ("run_status", "planner_run")]
    block = wire.TextContent(type="text", text=TEXT)

    async def listed(_ctx: object, _params: object) -> wire.ListToolsResult:
        return wire.ListToolsResult(tools=tools)

    result = wire.CallToolResult(content=[block], structured_content=RESULT)
    finished = wire.CallToolResult(content=[block], structured_content={"status": "completed"})
    ended = {"taskId": "task", "status": "completed", "ttlMs": None, "pollIntervalMs": 1000}
    ended |= {"createdAt": "2026-01-01T00:00:00Z", "lastUpdatedAt": "2026-01-01T00:00:00Z"}

    async def called(ctx: Any, params: wire.CallToolRequestParams) -> Any:
        declared = ctx.session.client_capabilities
        if declared is not None and TASKS in (declared.extensions or {}):
            return {"resultType": "task", **ended, "status": "working"}
        return result if params.name == "run_status" else finished

    async def fetched(_ctx: object, _params: object) -> dict[str, Any]:
        return {"resultType": "complete", **ended, "result": finished.model_dump(by_alias=True, mode="json")}

    async def read(_ctx: object, params: wire.ReadResourceRequestParams) -> wire.ReadResourceResult:
        return wire.ReadResourceResult(contents=[wire.TextResourceContents(uri=params.uri, text=TEXT)])

    server = Server("bare", version="1", on_list_tools=listed, on_call_tool=called, on_read_resource=read)
    server.extensions[TASKS] = {}
    server.add_request_handler("tasks/get", wire.RequestParams, fetched)
    if transport == "stdio":
        from mcp.server.stdio import stdio_server

        async def main() -> None:
            async with stdio_server() as (source, target):
                await server.run(source, target, server.create_initialization_options())

        anyio.run(main)
    else:
        import uvicorn

        app = server.streamable_http_app() if transport.startswith("http") else _sse_app(server)
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

    @server.tool
    def planner_run(goal: str) -> dict[str, Any]:
        return {"status": "completed"}

    @server.resource("kairos://budget")
    def budget() -> str:
        return TEXT

    if transport == "stdio":
        server.run(show_banner=False)
    else:
        server.run(transport=transport.partition("_")[0], port=port, show_banner=False, log_level="error")


def kairos(transport: str, port: int, folder: str) -> None:
    from dataclasses import replace
    from functools import partial

    from kairos_mcp.server.call import DEFAULT_WAIT_POLICY
    from kairos_mcp.server.http import ListenOptions, serve
    from kairos_mcp.server.http_bounds import RequestBounds
    from kairos_mcp.server.mcp_server import build_server
    from kairos_mcp.server.stdio import serve as serve_stdio
    from kairos_mcp.settings.load import load_settings
    from kairos_mcp.settings.settings import Flags

    build = partial(build_server, policy=replace(DEFAULT_WAIT_POLICY, task_s=0.0))  # the shortest run is a task too
    settings = load_settings(Flags(home=folder), {})  # which reads the folder's kairos.toml, if there is one
    if transport == "stdio":
        serve_stdio(settings)
    else:  # no rate: one client of a benchmark asks as often as it can
        bounds = RequestBounds(calls_per_s=1e9, burst=10**9)
        serve(
            settings,
            ListenOptions("http", port=port, no_auth=True),
            bounds,
            build if transport == "http_tasks" else build_server,
        )


if __name__ == "__main__":
    who, transport, port, folder = sys.argv[1:]
    {"asks": asks, "bare": bare, "fastmcp": fastmcp, "kairos": kairos}[who](transport, int(port), folder)
