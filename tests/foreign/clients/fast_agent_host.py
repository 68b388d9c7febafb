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
from mcp_types import CallToolRequest, CallToolRequestParams
from scripted_model import GOAL, job, next_answer, report, write_in_dialect

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
    kairos = {**server(), "protocol_mode": JOB["era"], "sampling": {"model": "generic.scripted"}}
    settings = {
        "default_model": "passthrough",
        "generic": {"api_key": "none"},
        "logger": {"type": "none", "progress_display": False, "show_chat": False, "show_tools": False},
        "mcp": {"servers": {"kairos": kairos}},
    }
    Path("fast-agent.yaml").write_text(json.dumps(settings))
    return FastAgent("host", config_path="fast-agent.yaml", parse_cli_args=False, quiet=True)


async def main() -> None:
    fast = configure()

    @fast.agent(name="host", servers=["kairos"], model="passthrough")
    async def host() -> None:
        """The only agent."""

    async with fast.run() as agents:
        answer = await agents.host.send(f"***CALL_TOOL planner_run {json.dumps({'goal': GOAL})}")
    report(json.loads(answer), asked=asked, oddities=["shows its model the structured content alone"])


asyncio.run(main())
