"""fast-agent: its passthrough agent calls our tool, and a model of ours is lent to the run, with tools.

Not one of its own providers: 0.10 hands `modelPreferences` on to OpenAI's SDK, which refuses them.
"""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

from fast_agent import FastAgent
from fast_agent.llm.internal.passthrough import PassthroughLLM
from fast_agent.llm.model_factory import ModelFactory
from fast_agent.mcp.prompt import Prompt
from fast_agent.types.llm_stop_reason import LlmStopReason
from host_model import approve, drive_by_job, take_steps
from mcp_types import CallToolRequest, CallToolRequestParams, ElicitResult
from scripted_model import Json, job, next_answer, report, write_in_dialect

JOB = job()
asked: list[str] = []


class ScriptedModel(PassthroughLLM):
    """A model that fast-agent takes for one of its own."""

    async def generate(self, messages: list[Any], request_params: Any = None, tools: Any = None) -> Any:
        asked.append("tools" if tools else "plain")
        seen = [message.model_dump(mode="json") for message in messages]
        turns = sum(message.role == "assistant" for message in messages)
        answer = next_answer([seen, [tool.name for tool in tools or ()]], turns)
        if not tools:
            return Prompt.assistant(write_in_dialect(answer))
        if "tool_calls" not in answer:
            return Prompt.assistant(answer["content"], stop_reason=LlmStopReason.END_TURN)
        calls = {
            f"call-{turns}-{n}": CallToolRequest(
                method="tools/call",
                params=CallToolRequestParams(name=call["name"], arguments=call["arguments"]),
            )
            for n, call in enumerate(answer["tool_calls"])
        }
        return Prompt.assistant(tool_calls=calls, stop_reason=LlmStopReason.TOOL_USE)


ModelFactory.MODEL_SPECIFIC_CLASSES["scripted"] = ScriptedModel


def server() -> dict[str, Any]:
    if JOB["transport"] == "stdio":
        command, *words = JOB["command"]
        return {"transport": "stdio", "command": command, "args": words}
    return {"transport": JOB["transport"], "url": JOB["url"]}


def configure() -> FastAgent:
    """fast-agent looks for its settings, and keeps its own files, where it is started."""
    os.chdir(JOB["folder"])
    kairos = {**server(), "protocol_mode": JOB["era"]}
    if JOB["way"] != "steps":
        kairos["sampling"] = {"model": "generic.scripted"}
    settings = {
        "default_model": "passthrough",
        "generic": {"api_key": "none"},
        "logger": {"type": "none", "progress_display": False, "show_chat": False, "show_tools": False},
        "mcp": {"servers": {"kairos": kairos}},
    }
    Path("fast-agent.yaml").write_text(json.dumps(settings))
    return FastAgent("host", config_path="fast-agent.yaml", parse_cli_args=False, quiet=True)


async def elicit(_context: Any, _params: Any) -> ElicitResult:
    return ElicitResult(action="accept", content=await approve())


async def main() -> None:
    fast = configure()

    @fast.agent(name="host", servers=["kairos"], model="passthrough", elicitation_handler=elicit)
    async def host() -> None:
        """The only agent."""

    async with fast.run() as agents:

        async def call(name: str, arguments: Json) -> Json:
            shown: Json = json.loads(await agents.host.send(f"***CALL_TOOL {name} {json.dumps(arguments)}"))
            return shown

        async def read(uri: str) -> str:
            return str((await agents.host.get_resource(uri, "kairos")).contents[0].text)

        async def prompt(name: str, arguments: dict[str, str]) -> str:
            return str((await agents.host.get_prompt(name, arguments, "kairos")).messages[0].content.text)

        if JOB["way"] == "steps":
            report({"steps": await take_steps(call, read=read, prompt=prompt)})
        else:
            report(await drive_by_job(call), asked=asked, oddities=["shows its model the structured content alone"])


asyncio.run(main())
