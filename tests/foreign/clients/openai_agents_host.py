"""The OpenAI Agents SDK: no sampling, and every call is given up after 5 seconds."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from agents import Agent, Model, ModelResponse, RunConfig, Runner, Usage
from agents.mcp import MCPServerSse, MCPServerStdio, MCPServerStreamableHttp
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText
from result_text import next_call, parse_text
from scripted_model import job, report

JOB = job()
shown: list[str] = []


class Scripted(Model):
    """Calls what the newest tool result asks for, and ends when the run has ended."""

    async def get_response(self, **asked: Any) -> ModelResponse:
        items = [] if isinstance(asked["input"], str) else asked["input"]
        outputs = [item for item in items if item.get("type") == "function_call_output"]
        if outputs:
            shown.append(text_of(outputs[-1]["output"]))
        call = next_call(shown)
        return ModelResponse(output=[output_item(call, len(outputs))], usage=Usage(), response_id=None)

    def stream_response(self, **asked: Any) -> Any:
        raise NotImplementedError


def output_item(call: Any, number: int) -> Any:
    if call is None:
        text = ResponseOutputText(type="output_text", text="done", annotations=[])
        return ResponseOutputMessage(id="m1", type="message", role="assistant", status="completed", content=[text])
    name, arguments = call
    return ResponseFunctionToolCall(
        type="function_call", call_id=f"c{number}", name=name, arguments=json.dumps(arguments)
    )


def text_of(output: Any) -> str:
    return output if isinstance(output, str) else "".join(block["text"] for block in output)


def server() -> Any:
    match JOB["transport"]:
        case "stdio":
            command, *words = JOB["command"]
            return MCPServerStdio({"command": command, "args": words})
        case "sse":
            return MCPServerSse({"url": JOB["url"]})
        case _:
            return MCPServerStreamableHttp({"url": JOB["url"]})


async def main() -> None:
    async with server() as kairos:
        agent = Agent(name="host", model=Scripted(), mcp_servers=[kairos])
        await Runner.run(agent, "Use planner_run.", run_config=RunConfig(tracing_disabled=True))
        report(parse_text(shown[-1]), protocol=kairos.session.protocol_version)


asyncio.run(main())
