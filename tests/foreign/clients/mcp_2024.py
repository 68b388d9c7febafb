"""A client of 2024-11-05 (the SDK's 1.6): knows neither structured content nor sampling with tools."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

from mcp import ClientSession, StdioServerParameters, types
from mcp.client.sse import sse_client
from mcp.client.stdio import stdio_client
from mind import GOAL, by_caller, job, tell, turn, written
from retold import read

JOB = job()
asked: list[str] = []


async def sample(_context: Any, params: types.CreateMessageRequestParams) -> types.CreateMessageResult:
    asked.append("plain")
    said = turn(params.model_dump(mode="json"), sum(message.role == "assistant" for message in params.messages))
    text = types.TextContent(type="text", text=written(said))
    return types.CreateMessageResult(role="assistant", content=text, model="mind", stopReason="endTurn")


def transport() -> Any:
    if JOB["transport"] == "sse":
        return sse_client(JOB["url"])
    command, *words = JOB["command"]
    return stdio_client(StdioServerParameters(command=command, args=words))


async def main() -> None:
    async with AsyncExitStack() as stack:
        reads, writes = await stack.enter_async_context(transport())
        sampling = {"sampling_callback": sample} if JOB["way"] == "text" else {}
        session = await stack.enter_async_context(ClientSession(reads, writes, **sampling))
        hello = await session.initialize()

        async def call(name: str, arguments: dict[str, Any]) -> Any:
            return read((await session.call_tool(name, arguments)).content[0].text)

        await session.list_tools()
        result = await (by_caller(call) if JOB["way"] == "caller" else call("planner_run", {"goal": GOAL}))
        tell(result, protocol=hello.protocolVersion, asked=asked)


asyncio.run(main())
