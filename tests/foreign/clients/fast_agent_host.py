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
from mind import GOAL, job, tell, turn, written

JOB = job()
asked: list[str] = []


class Mind(PassthroughLLM):
    """A model that fast-agent takes for one of its own."""

    async def generate(self, messages: list[Any], request_params: Any = None, tools: Any = None) -> Any:
        asked.append("tools" if tools else "plain")
        seen = [message.model_dump(mode="json") for message in messages]
        turns = sum(message.role == "assistant" for message in messages)
        said = turn([seen, [tool.name for tool in tools or ()]], turns)
        if not tools:
            return Prompt.assistant(written(said))
        if "tool_calls" not in said:
            return Prompt.assistant(said["content"], stop_reason=LlmStopReason.END_TURN)
        calls = {
            f"call-{turns}-{n}": CallToolRequest(
                method="tools/call",
                params=CallToolRequestParams(name=call["name"], arguments=call["arguments"]),
            )
            for n, call in enumerate(said["tool_calls"])
        }
        return Prompt.assistant(tool_calls=calls, stop_reason=LlmStopReason.TOOL_USE)


ModelFactory.MODEL_SPECIFIC_CLASSES["mind"] = Mind


def server() -> dict[str, Any]:
    if JOB["transport"] == "stdio":
        command, *words = JOB["command"]
        return {"transport": "stdio", "command": command, "args": words}
    return {"transport": JOB["transport"], "url": JOB["url"]}


def configured() -> FastAgent:
    """fast-agent looks for its settings, and keeps its own files, where it is started."""
    os.chdir(JOB["folder"])
    kairos = {**server(), "protocol_mode": JOB["era"], "sampling": {"model": "generic.mind"}}
    settings = {
        "default_model": "passthrough",
        "generic": {"api_key": "none"},
        "logger": {"type": "none", "progress_display": False, "show_chat": False, "show_tools": False},
        "mcp": {"servers": {"kairos": kairos}},
    }
    Path("fast-agent.yaml").write_text(json.dumps(settings))
    return FastAgent("host", config_path="fast-agent.yaml", parse_cli_args=False, quiet=True)


async def main() -> None:
    fast = configured()

    @fast.agent(name="host", servers=["kairos"], model="passthrough")
    async def host() -> None:
        """The only agent."""

    async with fast.run() as agents:
        said = await agents.host.send(f"***CALL_TOOL planner_run {json.dumps({'goal': GOAL})}")
    tell(json.loads(said), asked=asked, oddities=["shows its model the structured content alone"])


asyncio.run(main())
