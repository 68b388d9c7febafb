"""pydantic-ai as host: an agent whose own model calls our tools, and whose sampling model is lent to us."""

from __future__ import annotations

import asyncio
import dataclasses
import sys
import warnings
from typing import Any

from fastmcp.client.elicitation import ElicitResult
from fastmcp.client.transports import SSETransport, StdioTransport, StreamableHttpTransport
from host_model import approve, drive_by_job, take_steps
from pydantic_ai import Agent
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from scripted_model import job, next_answer, report, write_in_dialect

JOB = job()
if JOB["way"] != "steps":
    sys.modules["fastmcp_tasks"] = None  # type: ignore[assignment]  # with it, tasks are taken, which can't be sampled in
asked: list[str] = []


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


async def elicit(_message: str, _kind: Any, _params: Any, _context: Any) -> Any:
    return ElicitResult(action="accept", content=await approve())


def options() -> dict[str, Any]:
    if JOB["way"] == "steps":
        return {"elicitation_handler": elicit}
    return {"sampling_model": FunctionModel(sampling_model, model_name="scripted")}


async def main() -> None:
    toolset = MCPToolset(transport(), **options())

    async def call(name: str, arguments: dict[str, Any]) -> Any:
        """One call by an agent, and what its model was shown of the result."""
        shown: list[Any] = []

        def host_model(messages: list[ModelMessage], _info: AgentInfo) -> ModelResponse:
            returned = [part for message in messages for part in message.parts if isinstance(part, ToolReturnPart)]
            shown.extend(part.content for part in returned)
            return ModelResponse(parts=[TextPart("done") if returned else ToolCallPart(name, arguments)])

        await Agent(FunctionModel(host_model), toolsets=[toolset]).run("Make the call.")
        return shown[-1]

    async def read(uri: str) -> Any:
        return await toolset.read_resource(uri)

    async def prompt(name: str, arguments: dict[str, str]) -> Any:
        return str(await toolset.get_prompt(name, arguments))

    async def task(name: str, arguments: dict[str, Any]) -> Any:
        return await toolset.direct_call_tool(name, arguments, use_task=True)

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        async with toolset:
            if JOB["way"] == "steps":
                report({"steps": await take_steps(call, read=read, prompt=prompt, task=task)})
                return
            result = await drive_by_job(call)
    report(result, asked=asked, oddities=[str(each.message) for each in warned if "negotiated" in str(each.message)])


asyncio.run(main())
