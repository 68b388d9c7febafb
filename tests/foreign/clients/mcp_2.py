"""The SDK's client of 2026, in both eras, with a sampling callback where the job asks for one."""

from __future__ import annotations

import asyncio
from typing import Any

import mcp_types as types
from host_model import approve, drive_by_job, take_steps
from mcp.client.client import Client
from mcp.client.extension import ClientExtension
from mcp.client.sse import sse_client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from pydantic import TypeAdapter
from scripted_model import job, next_answer, report, write_in_dialect

JOB = job()
PLAIN: TypeAdapter[dict[str, Any]] = TypeAdapter(dict[str, Any])
asked: list[str] = []


class TasksExtension(ClientExtension):
    """Declares that tasks are taken."""

    identifier = "io.modelcontextprotocol/tasks"


class PlainRequest(types.Request[dict[str, Any], str]):
    """Any request, whose result is taken as it comes."""


class TaskRequest(PlainRequest):
    """A request of the extension, with the header by which HTTP routes it."""

    name_param = "taskId"


async def sample(_context: Any, params: Any) -> Any:
    asked.append("tools" if params.tools else "plain")
    turns = sum(message.role == "assistant" for message in params.messages)
    answer = next_answer(params.model_dump(mode="json"), turns)
    if JOB["way"] == "text":
        text = types.TextContent(type="text", text=write_in_dialect(answer))
        return types.CreateMessageResult(role="assistant", content=text, model="scripted", stop_reason="endTurn")
    blocks: list[Any] = [
        types.ToolUseContent(type="tool_use", id=f"c{number}", name=call["name"], input=call["arguments"])
        for number, call in enumerate(answer.get("tool_calls", ()), 1)
    ]
    reason = "toolUse" if blocks else "endTurn"
    blocks = blocks or [types.TextContent(type="text", text=answer["content"])]
    return types.CreateMessageResultWithTools(role="assistant", content=blocks, model="scripted", stop_reason=reason)


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
            return streamable_http_client(JOB["url"])


async def task(name: str, arguments: dict[str, Any]) -> Any:
    """A call of a client that takes tasks, followed to its end."""
    async with Client(transport(), mode="auto", extensions=[TasksExtension()]) as client:
        wanted = PlainRequest(method="tools/call", params={"name": name, "arguments": arguments})
        created = found = await client.session.send_request(wanted, PLAIN)
        while found["status"] == "working":
            await asyncio.sleep(created["pollIntervalMs"] / 1000)
            wanted = TaskRequest(method="tasks/get", params={"taskId": created["taskId"]})
            found = await client.session.send_request(wanted, PLAIN)
        return found["result"]["structuredContent"]


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
    mode: Any = "legacy" if JOB["era"] == "legacy" else "auto"
    async with Client(transport(), mode=mode, **sampling_options()) as client:

        async def call(name: str, arguments: dict[str, Any]) -> Any:
            return (await client.call_tool(name, arguments)).structured_content

        async def read(uri: str) -> Any:
            return (await client.read_resource(uri)).contents[0].text

        async def prompt(name: str, arguments: dict[str, str]) -> Any:
            return (await client.get_prompt(name, arguments)).messages[0].content.text

        async def complete(name: str, argument: str, value: str) -> Any:
            asked_for = {"name": argument, "value": value}
            return (await client.complete(types.PromptReference(name=name), asked_for)).completion.values

        await client.list_tools()
        if JOB["way"] == "steps":
            steps = await take_steps(call, read=read, prompt=prompt, complete=complete, task=task)
            report({"steps": steps}, protocol=client.protocol_version)
            return
        report(await drive_by_job(call), protocol=client.protocol_version, asked=asked)


asyncio.run(main())
