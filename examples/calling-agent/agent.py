"""An MCP client that is the model itself: Kairos keeps the loop, the limits and the record, and hands out each round.

python3 agent.py kairos-mcp FOLDER
"""

import asyncio
import os
import sys

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client


def think(request: dict) -> dict:
    """Answer a round as a model would; here by a rule: look once, then say what was there."""
    results = [message for message in request["messages"] if message["role"] == "tool"]
    if not results:
        return {"content": "I look.", "tool_calls": [{"name": "list_files", "arguments": {"path": "."}}]}
    names = [line for line in results[-1]["content"].splitlines() if not line.startswith("[")]
    return {"content": f"Here is: {', '.join(names)}"}


async def main(program: str, folder: str) -> None:
    server = StdioServerParameters(command=program, args=["serve", "--workspace", folder], env=dict(os.environ))
    async with stdio_client(server) as (reads, writes), ClientSession(reads, writes) as session:
        await session.initialize()
        arguments = {"goal": "What is here?", "route": "caller"}
        report = (await session.call_tool("planner_run", arguments)).structured_content
        while report["status"] == "input_required":
            answers = {item["key"]: think(item) for item in report["waiting"]}
            arguments = {"run_id": report["run_id"], "answers": answers}
            report = (await session.call_tool("run_continue", arguments)).structured_content
        print(report["status"], report["stop_reason"], report["summary"])


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
