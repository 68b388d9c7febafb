"""pydantic-ai as host: an agent whose own model calls our tool, and whose sampling model we are lent."""

from __future__ import annotations

import asyncio
import dataclasses
import warnings
from typing import Any

from fastmcp.client.transports import SSETransport, StdioTransport, StreamableHttpTransport
from mind import GOAL, job, tell, turn, written
from pydantic_ai import Agent
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

JOB = job()
asked: list[str] = []
results: list[Any] = []


def transport() -> Any:
    match JOB["transport"]:
        case "stdio":
            command, *words = JOB["command"]
            return StdioTransport(command=command, args=words, keep_alive=False)
        case "sse":
            return SSETransport(JOB["url"])
        case _:
            return StreamableHttpTransport(JOB["url"])


def lent(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    asked.append("tools" if info.function_tools else "plain")
    turns = sum(isinstance(message, ModelResponse) for message in messages)
    return ModelResponse(parts=[TextPart(written(turn([dataclasses.asdict(m) for m in messages], turns)))])


def own(messages: list[ModelMessage], _info: AgentInfo) -> ModelResponse:
    """The host's own model: one call of planner_run, then what came of it."""
    returned = [part for message in messages for part in message.parts if isinstance(part, ToolReturnPart)]
    if not returned:
        return ModelResponse(parts=[ToolCallPart("planner_run", {"goal": GOAL})])
    results.append(returned[-1].content)
    return ModelResponse(parts=[TextPart("done")])


async def main() -> None:
    toolset = MCPToolset(transport(), sampling_model=FunctionModel(lent, model_name="mind"))
    agent = Agent(FunctionModel(own), toolsets=[toolset])
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        await agent.run("Use planner_run.")
    oddities = [str(each.message) for each in warned if "negotiated" in str(each.message)]
    tell(results[-1], asked=asked, oddities=oddities)


asyncio.run(main())
