"""langchain-mcp-adapters: its model is shown a result's text alone, and each call is a session of its own."""

from __future__ import annotations

import asyncio
from typing import Any

from host_model import approve, drive_by_job, take_steps
from langchain_mcp_adapters.callbacks import Callbacks
from langchain_mcp_adapters.client import MultiServerMCPClient
from mcp.types import ElicitResult
from result_text import parse_text
from scripted_model import job, report

JOB = job()


def connection() -> dict[str, Any]:
    match JOB["transport"]:
        case "stdio":
            command, *words = JOB["command"]
            return {"transport": "stdio", "command": command, "args": words}
        case "sse":
            return {"transport": "sse", "url": JOB["url"]}
        case _:
            return {"transport": "streamable_http", "url": JOB["url"]}


async def elicit(_mcp_context: Any, _params: Any, _context: Any) -> ElicitResult:
    return ElicitResult(action="accept", content=await approve())


def text_of(content: Any) -> str:
    return content if isinstance(content, str) else "".join(block["text"] for block in content)


async def main() -> None:
    callbacks = Callbacks(on_elicitation=elicit) if JOB["way"] == "steps" else Callbacks()
    client = MultiServerMCPClient({"kairos": connection()}, callbacks=callbacks)
    tools = {tool.name: tool for tool in await client.get_tools()}

    async def call(name: str, arguments: dict[str, Any]) -> Any:
        message = await tools[name].ainvoke({"type": "tool_call", "id": "c1", "name": name, "args": arguments})
        return parse_text(text_of(message.content))

    async def read(uri: str) -> Any:
        (blob,) = await client.get_resources("kairos", uris=uri)
        return blob.as_string()

    async def prompt(name: str, arguments: dict[str, str]) -> Any:
        (message,) = await client.get_prompt("kairos", name, arguments=arguments)
        return text_of(message.content)

    if JOB["way"] == "steps":
        report({"steps": await take_steps(call, read=read, prompt=prompt)})
    else:
        report(await drive_by_job(call))


asyncio.run(main())
