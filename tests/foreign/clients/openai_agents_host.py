"""The OpenAI Agents SDK: no sampling, and every call is given up after 5 seconds."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from agents import Agent, Model, ModelResponse, RunConfig, Runner, Usage
from agents.mcp import MCPServerSse, MCPServerStdio, MCPServerStreamableHttp
from host_model import drive_by_job, take_steps
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText
from result_text import parse_text
from scripted_model import job, report

JOB = job()
PATIENCE = {"client_session_timeout_seconds": 60} if JOB["way"] == "steps" else {}


class OneCall(Model):
    """Makes a call, and ends when it has seen the result, which it keeps."""

    def __init__(self, name: str, arguments: dict[str, Any]) -> None:
        self._call = ResponseFunctionToolCall(
            type="function_call", call_id="c1", name=name, arguments=json.dumps(arguments)
        )
        self.shown = ""

    async def get_response(self, **asked: Any) -> ModelResponse:
        items = [] if isinstance(asked["input"], str) else asked["input"]
        outputs = [item for item in items if item.get("type") == "function_call_output"]
        if outputs:
            self.shown = text_of(outputs[-1]["output"])
        return ModelResponse(output=[DONE if outputs else self._call], usage=Usage(), response_id=None)

    def stream_response(self, **asked: Any) -> Any:
        raise NotImplementedError


DONE = ResponseOutputMessage(
    id="m1", type="message", role="assistant", status="completed",
    content=[ResponseOutputText(type="output_text", text="done", annotations=[])],
)  # fmt: skip


def text_of(output: Any) -> str:
    return output if isinstance(output, str) else "".join(block["text"] for block in output)


def server() -> Any:
    match JOB["transport"]:
        case "stdio":
            command, *words = JOB["command"]
            return MCPServerStdio({"command": command, "args": words}, **PATIENCE)
        case "sse":
            return MCPServerSse({"url": JOB["url"]}, **PATIENCE)
        case _:
            return MCPServerStreamableHttp({"url": JOB["url"]}, **PATIENCE)


async def main() -> None:
    async with server() as kairos:

        async def call(name: str, arguments: dict[str, Any]) -> Any:
            model = OneCall(name, arguments)
            agent = Agent(name="host", model=model, mcp_servers=[kairos])
            await Runner.run(agent, "Make the call.", run_config=RunConfig(tracing_disabled=True))
            return parse_text(model.shown)

        async def read(uri: str) -> Any:
            return (await kairos.read_resource(uri)).contents[0].text

        async def prompt(name: str, arguments: dict[str, str]) -> Any:
            return (await kairos.get_prompt(name, arguments)).messages[0].content.text

        if JOB["way"] == "steps":
            result: Any = {"steps": await take_steps(call, read=read, prompt=prompt)}
        else:
            result = await drive_by_job(call)
        report(result, protocol=kairos.session.protocol_version)


asyncio.run(main())
