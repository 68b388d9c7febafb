"""Tasks over real stdio and real HTTP: servers that are killed, several of one state folder, and whose task it is."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from support import postgres
from support.app import Place, place_in, reads, says
from support.http_server import META, Site, tokens_of
from support.sampling_clients import encode_reply
from support.task_client import TaskClient, task_client

from kairos_mcp.server.call import TASKS_EXTENSION

GO = {"goal": "go", "wait_s": 0}
SLOW = says("hello", delay_s=0.5)


@asynccontextmanager
async def stdio(place: Place, **ways: Any) -> AsyncIterator[TaskClient]:
    """A client of the program, as a host starts it."""
    words = ["-m", "kairos_mcp", "serve", "--home", str(place.home), "--workspace", str(place.workspace)]
    scripted = {"KAIROS_SCRIPT": str(place.script)} if place.script.exists() else {}
    environ = {**os.environ, **postgres.environ_of(place.root), **scripted}
    program = StdioServerParameters(command=sys.executable, args=words, env=environ)
    async with task_client(stdio_client(program), **ways) as client:
        yield client


def kill_server(place: Place) -> None:
    """Kill the newest server of this place."""
    ((pid,),) = place.rows("select pid from owner order by id desc limit 1")
    os.kill(pid, signal.SIGKILL)


def write_script(place: Place, *lines: Any) -> None:
    place.script.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.slow
async def test_a_task_whose_server_was_killed_is_completed_by_the_next_one(tmp_path):
    place = place_in(tmp_path)
    write_script(place, reads("a.txt"), SLOW)
    async with stdio(place) as client:
        task = await client.begin_task("planner_run", **GO)
        assert (await client.get(task))["status"] == "working"
        kill_server(place)
    async with stdio(place) as client:
        report = await client.wait_for_result(task)
        assert (report["status"], report["summary"]) == ("completed", "hello")
    assert place.rows("select ending from task") == [("completed",)]


@pytest.mark.slow
async def test_what_a_killed_server_had_asked_its_client_is_answered_to_the_next_one(tmp_path):
    place = place_in(tmp_path)
    async with stdio(place, samples=True) as client:
        task = await client.begin_task("planner_run", **GO)
        asked = (await client.until(task, "input_required"))["inputRequests"]
        kill_server(place)
    async with stdio(place, samples=True) as client:
        assert (await client.until(task, "input_required"))["inputRequests"] == asked
        (key,) = asked
        reply = encode_reply(says("done"), native=False)
        await client.update(task, {key: reply.model_dump(by_alias=True, mode="json", exclude_none=True)})
        assert (await client.wait_for_result(task))["summary"] == "done"
    assert place.rows("select ended from client_completion") == [("answered",)]


# -- over HTTP -------------------------------------------------------------------------------------------------------


@pytest.fixture
def sites(tmp_path: Path) -> Iterator[Callable[..., Site]]:
    """Starts sites on one state folder."""
    started: list[Site] = []

    def start(token: str | None = None) -> Site:
        started.append(Site.start(tmp_path, token=token))
        return started[-1]

    yield start
    for site in started:
        site.stop()


@asynccontextmanager
async def http(site: Site, token: str | None = None, **ways: Any) -> AsyncIterator[TaskClient]:
    headers = {"Authorization": f"Bearer {token or site.token}"}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=20) as transport,
        task_client(streamable_http_client(f"{site.url}/mcp", http_client=transport), **ways) as client,
    ):
        yield client


async def test_a_task_is_looked_at_and_ended_through_any_server_of_the_state_folder(tmp_path, sites):
    place = Place(tmp_path)
    write_script(place, reads("a.txt"), SLOW)
    first, second = sites(), sites()
    async with http(first) as one, http(second) as two:
        task = await one.begin_task("planner_run", **GO)
        assert (await two.get(task))["status"] == "working"
        async with two.subscribe(task) as notified, asyncio.timeout(10):
            statuses = [(await notified.get())["status"]]
            while statuses[-1] != "completed":
                statuses.append((await notified.get())["status"])
        assert statuses == ["working", "completed"]
        assert await one.wait_for_result(task) == await two.wait_for_result(task)
        assert first.is_quiet()
        assert second.is_quiet()


async def test_of_two_servers_one_is_killed_and_the_other_ends_the_task(tmp_path, sites):
    place = Place(tmp_path)
    write_script(place, reads("a.txt"), SLOW)
    first, second = sites(), sites()
    async with http(first) as one, http(second) as two:
        task = await one.begin_task("planner_run", **GO)
        first.stop()
        assert (await two.wait_for_result(task))["summary"] == "hello"


async def test_a_token_sees_the_tasks_of_its_own_principal(tmp_path, sites):
    write_script(Place(tmp_path), SLOW)
    tokens = tokens_of(tmp_path)
    alice, bob = tokens.add("alice"), tokens.add("bob")
    site = sites(token=alice)
    async with http(site, alice) as hers, http(site, bob) as his:
        task = await hers.begin_task("planner_run", goal="secret", wait_s=0)
        for method, more in (("tasks/get", {}), ("tasks/update", {"inputResponses": {}}), ("tasks/cancel", {})):
            refusals = []
            for named in (task, "run-000000000000/task-1"):
                with pytest.raises(MCPError) as caught:
                    await his.send(method, taskId=named, **more)
                refusals.append((caught.value.error.code, caught.value.error.message))
            assert refusals[0] == refusals[1]
            assert refusals[0][0] == -32602
        assert (await hers.wait_for_result(task))["summary"] == "hello"


def test_a_header_that_names_another_task_is_refused_and_none_is_not(tmp_path, sites):
    """Any server on the state folder answers for any task, so nobody is routed by it here."""
    write_script(Place(tmp_path), SLOW)
    site = sites()
    capabilities = {"io.modelcontextprotocol/clientCapabilities": {"extensions": {TASKS_EXTENSION: {}}}}

    def post(method: str, params: dict[str, Any], *headers: str) -> Any:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": {**META, **capabilities}}}
        return site.post(json.dumps(body).encode(), f"MCP-Method: {method}", *headers)

    created = post("tools/call", {"name": "planner_run", "arguments": GO}, "MCP-Name: planner_run").json["result"]
    task = created["taskId"]
    for method, more in (("tasks/get", {}), ("tasks/update", {"inputResponses": {}}), ("tasks/cancel", {})):
        answer = post(method, {"taskId": task, **more}, "MCP-Name: run-000000000000/task-1")
        assert (answer.status, answer.json["error"]["code"]) == (400, -32020)
    assert post("tasks/get", {"taskId": task}, f"MCP-Name: {task}").json["result"]["taskId"] == task
    assert post("tasks/get", {"taskId": task}).json["result"]["taskId"] == task
