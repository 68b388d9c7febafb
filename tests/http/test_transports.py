"""One app behind every transport and era: runs, progress, cancellation, and clients and servers that vanish."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from support import postgres
from support.forked_program import start
from support.http_server import SECONDS, WAYS, Site

SLOW_S = 1.2


def reads(**more: Any) -> dict[str, Any]:
    """A line of a script: a turn that reads a file."""
    return {"tool_calls": [{"id": "c", "name": "read_file", "arguments": {"path": "a.txt"}}], **more}


async def outcome(client: Client, name: str, arguments: dict[str, Any], **more: Any) -> dict[str, Any]:
    with anyio.fail_after(SECONDS):
        result = (await client.call_tool(name, arguments, **more)).structured_content
    assert "code" not in result, result
    return result


def the_answer(run: dict[str, Any], **answer: Any) -> dict[str, Any]:
    (item,) = run["waiting"]
    return {"run_id": run["run_id"], "answers": {item["key"]: answer}}


CALL = {"tool_calls": [{"id": "c", "name": "read_file", "arguments": {"path": "a.txt"}}]}


def over_stdio(place: Path, mode: str = "auto") -> Client:
    words = ["-m", "kairos_mcp", "serve", "--home", str(place / "home"), "--workspace", str(place / "workspace")]
    program = StdioServerParameters(command=sys.executable, args=words, env=postgres.environ_of(place))
    return Client(stdio_client(program), mode=mode)


@pytest.fixture(scope="module")
def shared_site(tmp_path_factory: pytest.TempPathFactory):
    site = Site.start(tmp_path_factory.mktemp("shared"))
    yield site
    site.stop()


async def test_a_run_of_three_rounds_over_each(shared_site: Site, way: str) -> None:
    async with shared_site.client(way) as client:
        assert client.protocol_version == {"modern": "2026-07-28", "legacy": "2025-11-25"}[way.split(maxsplit=1)[0]]
        run = await outcome(client, "planner_run", {"goal": f"read, {way}", "route": "caller"})
        for _ in range(2):
            run = await outcome(client, "run_continue", the_answer(run, **CALL))
            assert run["calls"][-1]["ok"]
        run = await outcome(client, "run_continue", the_answer(run, content="a\u2028b\x85c\rd", finish="stop"))
        assert (run["status"], run["rounds"], run["summary"]) == ("completed", 3, "a\u2028b\x85c\rd")
    assert shared_site.is_quiet()


async def test_a_run_goes_on_over_whatever_transport(sites: Callable[..., Site], tmp_path: Path) -> None:
    site = sites()
    async with over_stdio(tmp_path / "place", "legacy") as client:
        run = await outcome(client, "planner_run", {"goal": "travel", "route": "caller"})
    for way in WAYS:
        async with site.client(way) as client:
            run = await outcome(client, "run_continue", the_answer(run, **CALL))
            assert run["status"] == "input_required"
    async with over_stdio(tmp_path / "place") as client:
        run = await outcome(client, "run_continue", the_answer(run, content="there", finish="stop"))
    assert (run["status"], run["rounds"], run["summary"]) == ("completed", 5, "there")


async def at_once(act: Callable[[str], Awaitable[None]]) -> None:
    """The same over every way, side by side."""
    async with anyio.create_task_group() as tasks:
        for way in WAYS:
            tasks.start_soon(act, way)


async def test_each_tells_how_it_goes(sites: Callable[..., Site], write_script: Callable[..., None]) -> None:
    write_script(reads(delay_s=SLOW_S), reads(), {"content": "done", "finish": "stop"})
    site = sites()

    async def assert_progress(way: str) -> None:
        result: list[tuple[float, float | None]] = []

        async def hear(figure: float, total: float | None, _text: str | None) -> None:
            result.append((figure, total))

        async with site.client(way) as client:
            run = await outcome(client, "planner_run", {"goal": way}, progress_callback=hear)
        assert run["status"] == "completed", way
        assert len(result) >= 2, way
        assert all(total == 5 for _, total in result)
        figures = [figure for figure, _ in result]
        assert figures == sorted(set(figures)), way

    await at_once(assert_progress)


async def test_a_call_that_is_cancelled_leaves_its_run(
    sites: Callable[..., Site], write_script: Callable[..., None]
) -> None:
    write_script(reads(delay_s=SLOW_S), {"content": "done", "finish": "stop"})
    site = sites()

    async def cancelled_over(way: str) -> None:
        begun = anyio.Event()

        async def hear(*_told: object) -> None:
            begun.set()

        async with site.client(way) as client:

            async def start() -> None:
                await client.call_tool("planner_run", {"goal": way, "key": way}, progress_callback=hear)

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(start)
                with anyio.fail_after(SECONDS):
                    await begun.wait()
                tasks.cancel_scope.cancel()
            again = await outcome(client, "planner_run", {"goal": way, "key": way, "wait_s": 0})
            assert again["status"] == "working", way
            waits = {"run_ids": [again["run_id"]], "until": "done"}
            (run,) = (await outcome(client, "run_status", waits))["runs"]
            assert (run["status"], run["summary"]) == ("completed", "done"), way

    await at_once(cancelled_over)
    assert site.is_quiet()


VANISHES = """
import sys, anyio
from mcp.client.client import Client
from mcp.client.sse import sse_client
url, way = sys.argv[1:]
async def hear(*progress): print("begun", flush=True)
async def main():
    mode = "auto" if "modern" in way else "legacy"
    server = sse_client(url + "/sse") if "sse" in way else url + "/mcp"
    async with Client(server, mode=mode) as client:
        await client.call_tool("planner_run", {"goal": way}, progress_callback=hear)
anyio.run(main)
"""


def test_a_client_that_is_killed_in_the_middle_of_a_wait_harms_nothing(
    sites: Callable[..., Site], write_script: Callable[..., None]
) -> None:
    write_script(reads(delay_s=SLOW_S), {"content": "done", "finish": "stop"})
    site = sites(no_auth=True)
    site.call("planner_run", {"goal": "so that what the app opens is open"})
    before = site.descriptors()
    for way in WAYS:
        client = start([site.url, way], code=VANISHES, stdout=subprocess.PIPE)
        with closing(client.stdout) as printed:
            begun = printed.readline()
            client.send_signal(signal.SIGKILL)
            client.wait(SECONDS)
        assert begun == b"begun\n"
        assert site.still_answers()
    found = site.call("run_status", {}).json["result"]["structuredContent"]["runs"]
    waits = {"run_ids": [run["run_id"] for run in found], "until": "done"}
    runs = site.call("run_status", waits).json["result"]["structuredContent"]["runs"]
    assert [(run["status"], run["summary"]) for run in runs] == [("completed", "done")] * (len(WAYS) + 1)
    assert site.still_answers()
    assert site.descriptors() <= before + 1
    assert site.is_quiet()


@pytest.mark.parametrize("ways", [("legacy http", "modern http"), pytest.param(WAYS, marks=pytest.mark.slow)])
async def test_a_server_that_is_killed_between_two_rounds_is_no_loss(
    sites: Callable[..., Site], ways: tuple[str, ...]
) -> None:
    run: dict[str, Any] = {}
    for number, way in enumerate(ways):
        site = sites()
        async with site.client(way) as client:
            if not run:
                run = await outcome(client, "planner_run", {"goal": "survive", "route": "caller"})
            run = await outcome(client, "run_continue", the_answer(run, **CALL))
            assert (run["status"], run["rounds"]) == ("input_required", number + 2)
            site.server.kill()
            site.server.wait(SECONDS)
    site = sites()
    async with site.client(way) as client:
        run = await outcome(client, "run_continue", the_answer(run, content="alive", finish="stop"))
    assert (run["status"], run["summary"]) == ("completed", "alive")


def test_the_session_of_an_older_protocol_means_nothing_in_a_request_of_2026(shared_site: Site) -> None:
    named = shared_site.call("run_status", {}, "Mcp-Session-Id: of-another-time")
    assert (named.status, "runs" in named.json["result"]["structuredContent"]) == (200, True)
    legacy = shared_site.call("run_status", {}, "Mcp-Session-Id: of-another-time", without=("MCP-Protocol-Version",))
    assert legacy.status == 404


async def test_two_servers_on_one_state_folder_take_turns(sites: Callable[..., Site]) -> None:
    first, second = sites(), sites()
    async with first.client("legacy http") as one, second.client("modern http") as other:
        run = await outcome(one, "planner_run", {"goal": "share", "route": "caller"})
        run = await outcome(other, "run_continue", the_answer(run, **CALL))
        run = await outcome(one, "run_continue", the_answer(run, **CALL))
        run = await outcome(other, "run_continue", the_answer(run, content="shared", finish="stop"))
        assert (run["status"], run["summary"]) == ("completed", "shared")


async def test_PROTOCOL_034_a_storm_of_cancelled_calls_leaves_nothing_behind(shared_site: Site, way: str) -> None:
    async with shared_site.client(way) as client:
        run = await outcome(client, "planner_run", {"goal": f"wait, {way}", "route": "caller"})
        waits = {"run_ids": [run["run_id"]], "until": "done"}
        await outcome(client, "run_status", {})
        before = shared_site.descriptors()
        for _ in range(30):
            with anyio.move_on_after(0.005):
                await client.call_tool("run_status", waits)
        await outcome(client, "run_status", {})
    assert shared_site.still_answers()
    assert shared_site.descriptors() <= before + 2
    assert shared_site.is_quiet()


async def test_no_answer_waits_for_the_wire(shared_site: Site, way: str) -> None:
    """Small writes held back until the client has confirmed the last one would cost 40 ms each."""
    async with shared_site.client(way) as client:
        ends, took_s = time.monotonic() + SECONDS, 1.0
        while took_s >= 0.04:  # a loaded machine takes longer now and then, the wire would each time
            began = time.monotonic()
            assert began < ends
            await client.list_tools(cache_mode="bypass")
            took_s = time.monotonic() - began


def test_PROTOCOL_033_a_cancellation_of_what_is_not_there_is_ignored(shared_site: Site) -> None:
    gone = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 4711}}
    assert shared_site.post(json.dumps(gone).encode()).status == 202
    assert shared_site.still_answers()


async def test_a_client_of_2024_speaks_over_sse(shared_site: Site) -> None:
    bearer = {"Authorization": f"Bearer {shared_site.token}"}
    async with (
        httpx2.AsyncClient(base_url=shared_site.url, timeout=SECONDS, headers=bearer) as http,
        http.stream("GET", "/sse", headers={"Accept": "text/event-stream"}) as stream,
    ):
        lines = stream.aiter_lines()

        async def data() -> str:
            async for line in lines:
                if line.startswith("data: "):
                    return line.removeprefix("data: ")
            raise AssertionError("the stream ended")

        place = await data()

        async def ask(number: int | None, method: str, params: dict[str, Any]) -> Any:
            message = {"jsonrpc": "2.0", "method": method, "params": params}
            if number is not None:
                message["id"] = number
            assert (await http.post(place, json=message)).status_code == 202
            if number is None:
                return None
            answer = json.loads(await data())
            assert answer["id"] == number
            return answer["result"]

        me = {"name": "old", "version": "1"}
        hello = {"protocolVersion": "2024-11-05", "capabilities": {}, "clientInfo": me}
        assert (await ask(1, "initialize", hello))["protocolVersion"] == "2024-11-05"
        await ask(None, "notifications/initialized", {})
        assert "planner_run" in {tool["name"] for tool in (await ask(2, "tools/list", {}))["tools"]}
        start = {"name": "planner_run", "arguments": {"goal": "as in 2024", "route": "caller"}}
        run = json.loads((await ask(3, "tools/call", start))["content"][0]["text"].partition("waiting items: ")[2])
        assert run[0]["key"] == "round-1"


@pytest.mark.parametrize("clients", [12, pytest.param(64, marks=pytest.mark.slow)])
async def test_many_clients_at_once_are_served(shared_site: Site, clients: int) -> None:
    served: list[str] = []

    async def one(number: int) -> None:
        async with shared_site.client(WAYS[number % 2]) as client:
            run = await outcome(client, "planner_run", {"goal": f"one of many, {number}", "route": "caller"})
            served.append(run["run_id"])

    async with anyio.create_task_group() as tasks:
        for number in range(clients):
            tasks.start_soon(one, number)
    assert len(set(served)) == clients
    assert shared_site.is_quiet()


def test_stdio_does_not_pay_for_http() -> None:
    code = (
        "import sys; import kairos_mcp.server.stdio, kairos_mcp.server.dispatch\n"
        "print(*(name for name in sys.modules if name.startswith('kairos_mcp.server') or name == 'h11'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ)
    ours = set(done.stdout.split())
    assert "kairos_mcp.server.dispatch" in ours
    assert not ours & {
        f"kairos_mcp.server.{name}" for name in ("http", "http_guard", "http_protocol", "auth", "tokens")
    }
