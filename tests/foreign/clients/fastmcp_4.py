"""fastmcp's own client, whose sampling handler may return a plain text."""

from __future__ import annotations

import asyncio
import importlib
from typing import Any

import mcp_types as types
from fastmcp import Client
from fastmcp.client.elicitation import ElicitResult
from fastmcp.client.transports import SSETransport, StdioTransport, StreamableHttpTransport
from host_model import approve, drive_by_job, take_steps
from scripted_model import job, next_answer, report, write_in_dialect

JOB = job()
if JOB["way"] == "steps":
    importlib.import_module("fastmcp_tasks")  # from then on its client takes tasks, which can't ask it for completions
asked: list[str] = []


async def sample(messages: list[Any], params: Any, _context: Any) -> Any:
    asked.append("tools" if params.tools else "plain")
    turns = sum(message.role == "assistant" for message in messages)
    answer = next_answer(params.model_dump(mode="json"), turns)
    if JOB["way"] == "text":
        return write_in_dialect(answer)
    blocks: list[Any] = [
        types.ToolUseContent(type="tool_use", id=call["id"], name=call["name"], input=call["arguments"])
        for call in answer.get("tool_calls", ())
    ]
    reason = "toolUse" if blocks else "endTurn"
    blocks = blocks or [types.TextContent(type="text", text=answer["content"])]
    return types.CreateMessageResultWithTools(role="assistant", content=blocks, model="scripted", stop_reason=reason)


async def elicit(_message: str, _kind: Any, _params: Any, _context: Any) -> Any:
    return ElicitResult(action="accept", content=await approve())


def transport() -> Any:
    match JOB["transport"]:
        case "stdio":
            command, *words = JOB["command"]
            return StdioTransport(command=command, args=words, keep_alive=False)
        case "sse":
            return SSETransport(JOB["url"])
        case _:
            return StreamableHttpTransport(JOB["url"])


def sampling_options() -> dict[str, Any]:
    match JOB["way"]:
        case "native":
            can = types.SamplingCapability(tools=types.SamplingToolsCapability())
            return {"sampling_handler": sample, "sampling_capabilities": can}
        case "text":
            return {"sampling_handler": sample, "sampling_capabilities": types.SamplingCapability()}
        case "steps":
            return {"elicitation_handler": elicit}
        case _:
            return {}


async def main() -> None:
    mode: Any = "legacy" if JOB["era"] == "legacy" else "auto"
    async with Client(transport(), mode=mode, **sampling_options()) as client:

        async def call(name: str, arguments: dict[str, Any]) -> Any:
            return (await client.call_tool(name, arguments)).structured_content

        async def read(uri: str) -> Any:
            return (await client.read_resource(uri))[0].text

        async def prompt(name: str, arguments: dict[str, str]) -> Any:
            return (await client.get_prompt(name, arguments)).messages[0].content.text

        async def complete(name: str, argument: str, value: str) -> Any:
            return (await client.complete(types.PromptReference(name=name), {"name": argument, "value": value})).values

        await client.list_tools()
        if JOB["way"] == "steps":
            steps = await take_steps(call, read=read, prompt=prompt, complete=complete, task=call)
            report({"steps": steps}, protocol=client.session.protocol_version)
            return
        report(await drive_by_job(call), protocol=client.session.protocol_version, asked=asked)


asyncio.run(main())
