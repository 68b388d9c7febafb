"""The OpenAI Agents SDK with a run that takes longer than its 5 seconds: it gives up, and calls again."""

from __future__ import annotations

import asyncio
from typing import Any

from agents.mcp import MCPServerStdio
from result_text import parse_text
from scripted_model import GOAL, job, report

JOB = job()


async def main() -> None:
    command, *words = JOB["command"]
    started: Any = {"command": command, "args": words, "env": {"KAIROS_SCRIPT": JOB["script"]}}
    gave_up = 0
    async with MCPServerStdio(started, cache_tools_list=True) as kairos:
        await kairos.list_tools()
        while True:
            try:
                result = await kairos.call_tool("planner_run", {"goal": GOAL})
                break
            except Exception as error:
                gave_up += 1
                if gave_up > 3:
                    raise SystemExit(repr(error)) from error
    report(parse_text(result.content[0].text), gave_up=gave_up)


asyncio.run(main())
