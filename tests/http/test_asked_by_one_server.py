"""A client that is connected to two servers, and calls both about one run, is asked by one of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from mcp.client.client import Client
from mcp_types import CreateMessageResult, ElicitResult, Implementation, TextContent
from support.http_server import SECONDS, Site
from support.postgres import both_stores

WRITES = {"tool_calls": [{"name": "write_file", "arguments": {"path": "new.txt", "content": "new\n"}}]}
FINAL = {"content": "done", "finish": "stop"}
NOTHING_COMES_S = 1.5  # longer than a server waits before it looks again
WAYS = ("legacy http", pytest.param("legacy sse", marks=pytest.mark.slow))
WAY = "legacy http"


@dataclass
class Asked:
    """What a client was asked over each of its connections, in order; it answers once it may."""

    over: list[str] = field(default_factory=list)
    is_new: asyncio.Event = field(default_factory=asyncio.Event)
    may_answer: asyncio.Event = field(default_factory=asyncio.Event)

    async def note(self, connection: str) -> None:
        self.over.append(connection)
        self.is_new.set()
        await self.may_answer.wait()

    async def until_asked(self, count: int) -> None:
        async with asyncio.timeout(SECONDS):
            while len(self.over) < count:
                self.is_new.clear()
                await self.is_new.wait()


@asynccontextmanager
async def connected(site: Site, way: str, name: str, asked: Asked, client: str = "one") -> AsyncIterator[Client]:
    async def sample(_context: object, _params: object) -> CreateMessageResult:
        await asked.note(name)
        return CreateMessageResult(
            role="assistant", content=TextContent(type="text", text='{"final": "by the model"}'), model="m"
        )

    async def elicit(_context: object, _params: object) -> ElicitResult:
        await asked.note(name)
        return ElicitResult(action="accept", content={"decision": "approve"})

    who = Implementation(name=client, version="1")
    ways = {"sampling_callback": sample, "elicitation_callback": elicit, "client_info": who}
    async with site.client(way, **ways) as opened:
        yield opened


def call(client: Client, name: str, **arguments: Any) -> asyncio.Task[dict[str, Any]]:
    async def ask() -> dict[str, Any]:
        found: dict[str, Any] = (await client.call_tool(name, {"wait_s": 15, **arguments})).structured_content or {}
        return found

    return asyncio.create_task(ask())


async def run_id_of(client: Client) -> str:
    async with asyncio.timeout(SECONDS):
        while True:
            found = (await client.call_tool("run_status", {})).structured_content or {}
            if found["runs"]:
                return str(found["runs"][0]["run_id"])
            await asyncio.sleep(0.05)  # a server answers so many calls a second and no more


@pytest.mark.parametrize("way", WAYS)
@both_stores
async def test_a_model_is_asked_by_one_server_at_a_time(tmp_path: Path, sites: Callable[..., Site], way: str) -> None:
    one, other, asked = sites(), sites(), Asked()
    async with connected(one, way, "one", asked) as first, connected(other, way, "other", asked) as second:
        started = call(first, "planner_run", goal="think", route="sampling")
        await asked.until_asked(1)
        again = call(second, "run_continue", run_id=await run_id_of(second))
        await asyncio.sleep(NOTHING_COMES_S)
        assert asked.over == ["one"]
        asked.may_answer.set()
        for task in (started, again):
            assert (await task)["summary"] == "by the model"
    assert asked.over == ["one"]


@pytest.mark.slow
@both_stores
async def test_a_user_is_asked_by_one_server_at_a_time(
    tmp_path: Path, sites: Callable[..., Site], write_script: Callable[..., None]
) -> None:
    write_script(WRITES, FINAL)
    one, other, asked = sites(), sites(), Asked()
    async with connected(one, WAY, "one", asked) as first, connected(other, WAY, "other", asked) as second:
        started = call(first, "planner_run", goal="write", tools=["write_file"])
        await asked.until_asked(1)
        again = call(second, "run_continue", run_id=await run_id_of(second))
        await asyncio.sleep(NOTHING_COMES_S)
        assert asked.over == ["one"]
        asked.may_answer.set()
        for task in (started, again):
            assert (await task)["summary"] == "done"
    assert asked.over == ["one"]
    assert (tmp_path / "place" / "workspace" / "new.txt").read_text() == "new\n"


@pytest.mark.slow
@both_stores
async def test_a_server_that_was_killed_while_it_asked_asks_no_more_and_another_one_does(
    tmp_path: Path, sites: Callable[..., Site]
) -> None:
    one, other, asked = sites(), sites(), Asked()
    async with connected(other, WAY, "other", asked) as second:
        with suppress(BaseExceptionGroup, Exception):  # whatever the SDK makes of a connection that breaks
            async with connected(one, WAY, "one", asked) as first:
                started = call(first, "planner_run", goal="think", route="sampling")
                await asked.until_asked(1)
                again = call(second, "run_continue", run_id=await run_id_of(second))
                one.server.kill()
                one.server.wait(SECONDS)
                started.cancel()
        await asked.until_asked(2)
        asked.may_answer.set()
        assert (await again)["summary"] == "by the model"
    assert asked.over == ["one", "other"]


@pytest.mark.slow
async def test_another_client_is_asked_by_its_own_call(tmp_path: Path, sites: Callable[..., Site]) -> None:
    one, other, asked = sites(), sites(), Asked()
    async with connected(one, WAY, "one", asked) as first, connected(other, WAY, "other", asked, "two") as second:
        call(first, "planner_run", goal="think", route="sampling", wait_s=2 * SECONDS)
        await asked.until_asked(1)
        again = call(second, "run_continue", run_id=await run_id_of(second))
        await asked.until_asked(2)
        asked.may_answer.set()
        assert (await again)["summary"] == "by the model"
    assert asked.over[:2] == ["one", "other"]
