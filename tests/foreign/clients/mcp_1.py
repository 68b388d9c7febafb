"""The SDK's client of 2025 (mcp 1.x), which answers pushes one after the other."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

from host_model import approve, drive_by_job, take_steps
from mcp import ClientSession, StdioServerParameters, types
from mcp.client.sse import sse_client
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamablehttp_client
from pydantic import AnyUrl
from scripted_model import job, next_answer, report, write_in_dialect

JOB = job()
asked: list[str] = []


async def sample(_context: Any, params: types.CreateMessageRequestParams) -> Any:
    asked.append("tools" if params.tools else "plain")
    turns = sum(message.role == "assistant" for message in params.messages)
    answer = next_answer(params.model_dump(mode="json"), turns)
    if JOB["way"] == "text":
        text = types.TextContent(type="text", text=write_in_dialect(answer))
        return types.CreateMessageResult(role="assistant", content=text, model="scripted", stopReason="endTurn")
    blocks: list[Any] = [
        types.ToolUseContent(type="tool_use", id=f"c{number}", name=call["name"], input=call["arguments"])
        for number, call in enumerate(answer.get("tool_calls", ()), 1)
    ]
    reason = "toolUse" if blocks else "endTurn"
    blocks = blocks or [types.TextContent(type="text", text=answer["content"])]
    return types.CreateMessageResultWithTools(role="assistant", content=blocks, model="scripted", stopReason=reason)


async def elicit(_context: Any, _params: Any) -> Any:
    return types.ElicitResult(action="accept", content=await approve())


def transport() -> Any:
    match JOB["transport"]:
        case "stdio":
            command, *words = JOB["command"]
            return stdio_client(StdioServerParameters(command=command, args=words))
        case "sse":
            return sse_client(JOB["url"])
        case _:
            return streamablehttp_client(JOB["url"])


def sampling_options() -> dict[str, Any]:
    match JOB["way"]:
        case "native":
            can = types.SamplingCapability(tools=types.SamplingToolsCapability())
            return {"sampling_callback": sample, "sampling_capabilities": can}
        case "text":
            return {"sampling_callback": sample}
        case "steps":
            return {"elicitation_callback": elicit}
        case _:
            return {}


async def main() -> None:
    async with AsyncExitStack() as stack:
        reads, writes, *_ = await stack.enter_async_context(transport())
        session = await stack.enter_async_context(ClientSession(reads, writes, **sampling_options()))
        hello = await session.initialize()

        async def call(name: str, arguments: dict[str, Any]) -> Any:
            return (await session.call_tool(name, arguments)).structuredContent

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
