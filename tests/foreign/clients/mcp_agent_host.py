"""mcp-agent: an agent of its own calls our tools; its dialogs are answered by a callback, and sampling by its own
OpenAI-like provider, for which a stand-in on loopback speaks."""

from __future__ import annotations

import asyncio
from typing import Any

from host_model import approve, drive_by_job, take_steps
from mcp.types import ElicitResult
from mcp_agent.agents.agent import Agent
from mcp_agent.app import MCPApp
from mcp_agent.config import LoggerSettings, MCPServerSettings, MCPSettings, OpenAISettings, Settings
from scripted_model import job, report
from standin import Standin, serve_standin

JOB = job()


def server() -> MCPServerSettings:
    if JOB["transport"] == "stdio":
        command, *words = JOB["command"]
        return MCPServerSettings(transport="stdio", command=command, args=words)
    return MCPServerSettings(transport={"http": "streamable_http", "sse": "sse"}[JOB["transport"]], url=JOB["url"])


def settings(provider: str) -> Settings:
    return Settings(
        execution_engine="asyncio",
        logger=LoggerSettings(type="none", transports=["none"], progress_display=False),
        mcp=MCPSettings(servers={"kairos": server()}),
        openai=OpenAISettings(api_key="none", base_url=f"{provider}/v1", default_model="gpt-4o"),
    )


async def elicit(_request: Any) -> ElicitResult:
    return ElicitResult(action="accept", content=await approve())


async def main() -> None:
    with serve_standin([]) as standin:
        app = MCPApp(name="host", settings=settings(standin.url), elicitation_callback=elicit)
        async with app.run(), Agent(name="host", server_names=["kairos"]) as agent:
            await talk(agent, standin)


async def talk(agent: Agent, standin: Standin) -> None:
    async def call(name: str, arguments: dict[str, Any]) -> Any:
        return (await agent.call_tool(name, arguments, server_name="kairos")).structuredContent

    async def read(uri: str) -> Any:
        return (await agent.read_resource(uri, server_name="kairos")).contents[0].text

    async def prompt(name: str, arguments: dict[str, str]) -> Any:
        return (await agent.get_prompt(name, arguments, server_name="kairos")).messages[0].content.text

    if JOB["way"] == "steps":
        report({"steps": await take_steps(call, read=read, prompt=prompt)})
    else:
        report(await drive_by_job(call), asked=standin.asked)


asyncio.run(main())
