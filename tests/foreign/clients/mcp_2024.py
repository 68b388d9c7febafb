"""A client of 2024-11-05 (the SDK's 1.6): knows neither structured content nor sampling with tools."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

from host_model import drive_by_job, take_steps
from mcp import ClientSession, StdioServerParameters, types
from mcp.client.sse import sse_client
from mcp.client.stdio import stdio_client
from pydantic import AnyUrl
from result_text import parse_text
from scripted_model import job, next_answer, report, write_in_dialect

JOB = job()
asked: list[str] = []


async def sample(_context: Any, params: types.CreateMessageRequestParams) -> types.CreateMessageResult:
    asked.append("plain")
    turns = sum(message.role == "assistant" for message in params.messages)
    answer = next_answer(params.model_dump(mode="json"), turns)
    text = types.TextContent(type="text", text=write_in_dialect(answer))
    return types.CreateMessageResult(role="assistant", content=text, model="scripted", stopReason="endTurn")


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
            return parse_text((await session.call_tool(name, arguments)).content[0].text)

        async def read(uri: str) -> Any:
            return (await session.read_resource(AnyUrl(uri))).contents[0].text

        async def prompt(name: str, arguments: dict[str, str]) -> Any:
            return (await session.get_prompt(name, arguments)).messages[0].content.text

        async def complete(name: str, argument: str, value: str) -> Any:
            about = types.PromptReference(type="ref/prompt", name=name)
            return (await session.complete(about, {"name": argument, "value": value})).completion.values

        await session.list_tools()
        if JOB["way"] == "steps":
            steps = await take_steps(call, read=read, prompt=prompt, complete=complete)
            report({"steps": steps}, protocol=hello.protocolVersion)
            return
        report(await drive_by_job(call), protocol=hello.protocolVersion, asked=asked)


asyncio.run(main())
