"""pydantic-ai as host: an agent whose own model calls our tool, and whose sampling model is lent to us."""

from __future__ import annotations

import asyncio
import dataclasses
import warnings
from typing import Any

from fastmcp.client.transports import SSETransport, StdioTransport, StreamableHttpTransport
from pydantic_ai import Agent
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from scripted_model import GOAL, job, next_answer, report, write_in_dialect

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


def sampling_model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    asked.append("tools" if info.function_tools else "plain")
    turns = sum(isinstance(message, ModelResponse) for message in messages)
    answer = next_answer([dataclasses.asdict(message) for message in messages], turns)
    return ModelResponse(parts=[TextPart(write_in_dialect(answer))])


def host_model(messages: list[ModelMessage], _info: AgentInfo) -> ModelResponse:
    """The host's own model: one call of planner_run, then what came of it."""
    returned = [part for message in messages for part in message.parts if isinstance(part, ToolReturnPart)]
    if not returned:
        return ModelResponse(parts=[ToolCallPart("planner_run", {"goal": GOAL})])
    results.append(returned[-1].content)
    return ModelResponse(parts=[TextPart("done")])


async def main() -> None:
    toolset = MCPToolset(transport(), sampling_model=FunctionModel(sampling_model, model_name="scripted"))
    agent = Agent(FunctionModel(host_model), toolsets=[toolset])
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        await agent.run("Use planner_run.")
    oddities = [str(each.message) for each in warned if "negotiated" in str(each.message)]
    report(results[-1], asked=asked, oddities=oddities)


asyncio.run(main())
