"""The SDK's client of 2025 (mcp 1.x) through a proxy: its server ends in the middle, and it begins another session.

Told URL, headers and a goal as JSON; prints the run's id, goes on at a line on stdin, and prints how the run ended.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from mcp import ClientSession
from mcp.client.streamable_http import streamablehttp_client

JOB = json.loads(sys.argv[1])


@asynccontextmanager
async def session() -> AsyncIterator[ClientSession]:
    async with (
        streamablehttp_client(JOB["url"], headers=JOB["headers"]) as (reads, writes, _),
        ClientSession(reads, writes) as opened,
    ):
        await opened.initialize()
        yield opened


async def call(opened: ClientSession, name: str, **arguments: Any) -> Any:
    async with asyncio.timeout(30):
        return (await opened.call_tool(name, arguments)).structuredContent


async def ask(opened: ClientSession, run_id: str) -> str:
    found = await call(opened, "run_status", run_ids=[run_id], until="done", wait_s=20)
    return str(found["runs"][0]["status"])


async def main() -> None:
    lost, status = 0, ""
    try:
        async with session() as first:
            run_id = (await call(first, "planner_run", goal=JOB["goal"], wait_s=0))["run_id"]
            print(run_id, flush=True)
            await asyncio.to_thread(sys.stdin.readline)
            status = await ask(first, run_id)
    except Exception:
        lost = 1
    for _ in range(5):
        if status == "completed":
            break
        try:
            async with session() as another:
                status = await ask(another, run_id)
        except Exception as error:
            print(repr(error), file=sys.stderr)
            await asyncio.sleep(0.5)
    print(json.dumps({"status": status, "lost": lost}), flush=True)


asyncio.run(main())
