"""A downstream server of the newer protocol, with the library, on stdio (`stdio`) or HTTP (`FILE` for its port)."""

from __future__ import annotations

import json
import os
import socket
import sys
from typing import Any

import anyio
import mcp_types as wire
from mcp.server import Server
from mcp.server.context import ServerRequestContext
from mcp.server.stdio import stdio_server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ToolsListChanged

BUS = InMemorySubscriptionBus()
TOOLS = ["echo", "grow", "want", "headers", "quit", "structured", "picture", "huge", "values"]
EXTRA: list[str] = []
PNG = "iVBORw0KGgo="


async def list_tools(_ctx: Any, _params: Any) -> wire.ListToolsResult:
    schema = {"type": "object", "properties": {"text": {"type": "string"}}}
    return wire.ListToolsResult(
        tools=[wire.Tool(name=name, description=name, input_schema=schema) for name in (*TOOLS, *EXTRA)]
    )


async def call_tool(ctx: ServerRequestContext, params: wire.CallToolRequestParams) -> Any:
    said = (params.arguments or {}).get("text", "")
    match params.name:
        case "grow":
            EXTRA.append("grown")
            await BUS.publish(ToolsListChanged())
        case "want":
            asked = wire.ElicitRequest(
                params=wire.ElicitRequestFormParams(
                    message="Your API key?", requested_schema={"type": "object", "properties": {}}
                )
            )
            return wire.InputRequiredResult(input_requests={"key": asked}, request_state="s")
        case "headers":
            said = (
                json.dumps({k.decode(): v.decode() for k, v in ctx.request.scope["headers"]}) if ctx.request else "{}"
            )
        case "huge":
            said = "x" * (9 * 1024 * 1024)
        case "values":
            return wire.CallToolResult(content=[], structured_content={"of": [{}] * 60_000})
        case "quit":
            os._exit(5)
        case "structured":
            return wire.CallToolResult(content=[], structured_content={"n": 3, "of": [1, 2]})
        case "picture":
            blocks = [
                wire.ImageContent(data=PNG, mime_type="image/png"),
                wire.EmbeddedResource(resource=wire.TextResourceContents(uri="file:///notes", text="read me")),
                wire.EmbeddedResource(resource=wire.BlobResourceContents(uri="file:///blob", blob=PNG)),
                wire.ResourceLink(uri="file:///far", name="far"),
            ]
            return wire.CallToolResult(content=blocks, structured_content=None)
    return wire.CallToolResult(content=[wire.TextContent(text=said)])


server: Server[Any] = Server(
    "modern", on_list_tools=list_tools, on_call_tool=call_tool, on_subscriptions_listen=ListenHandler(BUS)
)


async def over_stdio() -> None:
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


def over_http(port_file: str) -> None:
    import uvicorn

    app = server.streamable_http_app()
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind(("127.0.0.1", int(sys.argv[2]) if len(sys.argv) > 2 else 0))
    listening.listen()
    with open(f"{port_file}.new", "w", encoding="utf-8") as file:
        file.write(str(listening.getsockname()[1]))
    os.replace(f"{port_file}.new", port_file)
    uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[listening])


if __name__ == "__main__":
    if sys.argv[1] == "stdio":
        anyio.run(over_stdio)
    else:
        over_http(sys.argv[1])
