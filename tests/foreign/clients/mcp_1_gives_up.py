"""The SDK's client of 2025 (mcp 1.x) with a model that is slower than it waits for a call: it calls again until the run
has ended, as hosts do that give up on a call."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

from mcp import ClientSession, McpError, StdioServerParameters, types
from mcp.client.sse import sse_client
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamablehttp_client
from scripted_model import GOAL, job, next_answer, report, write_in_dialect

JOB = job()
asked: list[float] = []
gave_up: list[str] = []


async def sample(_context: Any, params: types.CreateMessageRequestParams) -> types.CreateMessageResult:
    asked.append(JOB["model_s"])
    await asyncio.sleep(JOB["model_s"])
    turns = sum(message.role == "assistant" for message in params.messages)
    answer = next_answer(params.model_dump(mode="json"), turns)
    text = types.TextContent(type="text", text=write_in_dialect(answer))
    return types.CreateMessageResult(role="assistant", content=text, model="scripted", stopReason="endTurn")


def transport() -> Any:
    match JOB["transport"]:
        case "stdio":
            command, *words = JOB["command"]
            return stdio_client(StdioServerParameters(command=command, args=words))
        case "sse":
            return sse_client(JOB["url"])
        case _:
            return streamablehttp_client(JOB["url"])


async def main() -> None:
    async with AsyncExitStack() as stack:
        reads, writes, *_ = await stack.enter_async_context(transport())
        session = await stack.enter_async_context(ClientSession(reads, writes, sampling_callback=sample))
        hello = await session.initialize()
        patience = timedelta(seconds=JOB["call_s"])
        name, arguments = "planner_run", {"goal": GOAL, **JOB["more"]}
        result: dict[str, Any] = {"status": ""}
        while result["status"] not in ("completed", "stopped", "failed"):
            try:
                called = await session.call_tool(name, arguments, read_timeout_seconds=patience)
                result = called.structuredContent or {}
            except McpError as error:
                gave_up.append(str(error))
                runs = (await session.call_tool("run_status", {"view": "full"})).structuredContent
                result = runs["runs"][0] if runs and runs["runs"] else {"status": ""}
            if result.get("run_id"):
                name, arguments = "run_continue", {"run_id": result["run_id"]}
        report(result, protocol=hello.protocolVersion, asked=len(asked), gave_up=len(gave_up))


asyncio.run(main())
