"""An MCP server as others write one, on the SDK: a tool that runs a loop to its end, in the server's memory."""

from __future__ import annotations

import asyncio
import json
import sys
import urllib.request
from typing import Any

from mcp.server.mcpserver import MCPServer

URL = sys.argv[1]
server = MCPServer("tasks")
jobs: dict[str, asyncio.Task[None]] = {}


def post(path: str, body: dict[str, Any]) -> dict[str, Any]:
    request = urllib.request.Request(f"{URL}/{path}", json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as reply:
        answer: dict[str, Any] = json.load(reply)
    return answer


async def work() -> None:
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Do what the plan says."}]
    tools = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in ("read", "append")]
    while True:
        body = {"model": "fake", "messages": messages, "tools": tools}
        reply = await asyncio.to_thread(post, "v1/chat/completions", body)
        messages.append(reply["choices"][0]["message"])
        if not (calls := messages[-1].get("tool_calls")):
            return
        for call in calls:
            function = call["function"]
            done = await asyncio.to_thread(post, f"effect/{function['name']}", json.loads(function["arguments"]))
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": json.dumps(done)})


@server.tool()
async def begin() -> dict[str, str]:
    """Begin the job."""
    jobs["1"] = asyncio.create_task(work())
    return await status("1")


@server.tool()
async def status(task_id: str) -> dict[str, str]:
    """Wait for a job and tell how it ended."""
    if task_id not in jobs:
        return {"task_id": task_id, "state": "unknown"}
    await jobs[task_id]
    return {"task_id": task_id, "state": "completed"}


if __name__ == "__main__":
    server.run("stdio")
