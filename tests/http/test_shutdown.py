"""What clients see of a server that is told to end."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from support.http_server import SECONDS, WAYS, Site, read_to_end

from kairos_mcp.server.http_bounds import RequestBounds
from kairos_mcp.settings.load import load_settings
from kairos_mcp.settings.settings import Flags

LAST_CHUNK = b"0\r\n\r\n"
SLOW = {"content": "done", "finish": "stop", "delay_s": 60}
HELLO = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}


async def test_calls_that_wait_are_answered_with_what_there_is_and_their_runs_go_on(
    sites: Callable[..., Site], write_script: Callable[..., None]
) -> None:
    write_script(SLOW)
    site = sites(RequestBounds(shutdown_s=10))
    results: dict[str, Any] = {}
    waiting: set[str] = set()

    async def call(way: str) -> None:
        async def hear(*_progress: object) -> None:
            waiting.add(way)
            if waiting == set(WAYS):
                site.server.send_signal(signal.SIGTERM)

        async with site.client(way) as client:
            await client.list_tools()  # it looks at their schemas when it has a result
            result = await client.call_tool("planner_run", {"goal": way}, progress_callback=hear)
            results[way] = result.structured_content

    with anyio.fail_after(SECONDS):
        async with anyio.create_task_group() as tasks:
            for way in WAYS:
                tasks.start_soon(call, way)
    assert {way: result["status"] for way, result in results.items()} == dict.fromkeys(WAYS, "working")
    assert {result["next"]["tool"] for result in results.values()} == {"run_status"}
    assert site.server.wait(SECONDS) == 0
    site.hearing.join(SECONDS)
    assert site.is_quiet()
    following = sites()
    run_ids, ends = [result["run_id"] for result in results.values()], time.monotonic() + SECONDS
    while {run["status"] for run in runs_at(following, run_ids)} != {"working"}:
        assert time.monotonic() < ends
        await anyio.sleep(0.1)  # a server answers so many calls a second and no more


def runs_at(site: Site, run_ids: list[str]) -> list[dict[str, Any]]:
    return site.call("run_status", {"run_ids": run_ids}).json["result"]["structuredContent"]["runs"]


@pytest.mark.parametrize("shutdown_s", [0.3, 30])
def test_streams_that_only_listen_are_closed_in_order_long_before_the_grace_is_over(
    sites: Callable[..., Site], shutdown_s: float
) -> None:
    site = sites(RequestBounds(shutdown_s=shutdown_s))
    legacy = ("MCP-Protocol-Version",)
    hello = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": HELLO}).encode()
    session = site.post(hello, without=legacy).headers["mcp-session-id"]
    with site.connect() as stream, site.connect() as sse:
        stream.sendall(site.head(f"Mcp-Session-Id: {session}", method="GET", without=legacy) + b"\r\n")
        sse.sendall(site.head(method="GET", path="/sse", without=legacy) + b"\r\n")
        assert b" 200 " in stream.recv(65536)
        assert b" 200 " in sse.recv(65536)
        site.server.send_signal(signal.SIGTERM)
        assert read_to_end(stream).endswith(LAST_CHUNK)
        assert read_to_end(sse).endswith(LAST_CHUNK)
    assert site.server.wait(SECONDS) == 0  # 20 s, less than the longer grace
    site.hearing.join(SECONDS)
    assert site.is_quiet()


def test_what_does_not_come_to_an_end_is_ended_with_the_grace(sites: Callable[..., Site]) -> None:
    site = sites(RequestBounds(shutdown_s=0.3))
    with site.connect() as connection:
        connection.sendall(site.head("Content-Length: 100") + b'\r\n{"jsonrpc"')
        assert site.still_answers()
        site.server.send_signal(signal.SIGTERM)
        answer = read_to_end(connection)
    assert b" 503 " in answer
    assert site.server.wait(SECONDS) == 0


def test_what_a_person_sets_is_what_the_server_keeps(tmp_path: Path) -> None:
    assert RequestBounds.from_settings(load_settings(Flags(home=str(tmp_path)), {})) == RequestBounds()
    named = {"RATE_LIMIT": 0.5, "RATE_BURST": 7, "MAX_SESSIONS": 9, "PRINCIPAL_SESSIONS": 2, "SHUTDOWN_S": 20}
    environ = {f"KAIROS_{name}": str(value) for name, value in named.items()}
    bounds = RequestBounds.from_settings(load_settings(Flags(home=str(tmp_path)), environ))
    kept = (bounds.calls_per_s, bounds.burst, bounds.sessions, bounds.principal_sessions, bounds.shutdown_s)
    assert kept == tuple(named.values())
