"""langchain-mcp-adapters: its model is shown a result's text alone, and each call is a session of its own."""

from __future__ import annotations

import asyncio
from typing import Any

from langchain_mcp_adapters.client import MultiServerMCPClient
from result_text import next_call, parse_text
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


def text_of(content: Any) -> str:
    return content if isinstance(content, str) else "".join(block["text"] for block in content)


async def main() -> None:
    client = MultiServerMCPClient({"kairos": connection()})
    tools = {tool.name: tool for tool in await client.get_tools()}
    shown: list[str] = []
    while (call := next_call(shown)) is not None:
        name, arguments = call
        message = await tools[name].ainvoke({"type": "tool_call", "id": "c1", "name": name, "args": arguments})
        shown.append(text_of(message.content))
    report(parse_text(shown[-1]))


asyncio.run(main())
