"""The SDK's client of 2025 (mcp 1.x), which answers pushes one after the other."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

from mcp import ClientSession, StdioServerParameters, types
from mcp.client.sse import sse_client
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamablehttp_client
from mind import GOAL, by_caller, job, tell, turn, written

JOB = job()
asked: list[str] = []


async def sample(_context: Any, params: types.CreateMessageRequestParams) -> Any:
    asked.append("tools" if params.tools else "plain")
    said = turn(params.model_dump(mode="json"), sum(message.role == "assistant" for message in params.messages))
    if JOB["way"] == "text":
        text = types.TextContent(type="text", text=written(said))
        return types.CreateMessageResult(role="assistant", content=text, model="mind", stopReason="endTurn")
    blocks: list[Any] = [
        types.ToolUseContent(type="tool_use", id=call["id"], name=call["name"], input=call["arguments"])
        for call in said.get("tool_calls", ())
    ]
    reason = "toolUse" if blocks else "endTurn"
    blocks = blocks or [types.TextContent(type="text", text=said["content"])]
    return types.CreateMessageResultWithTools(role="assistant", content=blocks, model="mind", stopReason=reason)


def transport() -> Any:
    match JOB["transport"]:
        case "stdio":
            command, *words = JOB["command"]
            return stdio_client(StdioServerParameters(command=command, args=words))
        case "sse":
            return sse_client(JOB["url"])
        case _:
            return streamablehttp_client(JOB["url"])


def declared() -> dict[str, Any]:
    match JOB["way"]:
        case "native":
            can = types.SamplingCapability(tools=types.SamplingToolsCapability())
            return {"sampling_callback": sample, "sampling_capabilities": can}
        case "text":
            return {"sampling_callback": sample}
        case _:
            return {}


async def main() -> None:
    async with AsyncExitStack() as stack:
        reads, writes, *_ = await stack.enter_async_context(transport())
        session = await stack.enter_async_context(ClientSession(reads, writes, **declared()))
        hello = await session.initialize()

        async def call(name: str, arguments: dict[str, Any]) -> Any:
            return (await session.call_tool(name, arguments)).structuredContent

        await session.list_tools()
        result = await (by_caller(call) if JOB["way"] == "caller" else call("planner_run", {"goal": GOAL}))
        tell(result, protocol=hello.protocolVersion, asked=asked)


asyncio.run(main())
