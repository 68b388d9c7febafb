"""The HTTP cases of fault_cases.json that are about the server as a whole, by id, and one of the protocol's.

HTTP-033 can't exist here: there is no transport over a Unix socket. Nobody reaches one by `--host`, and none is made;
who wants a server for one user alone has stdio, or loopback with a token.

HTTP-035 asks for 24 hours and 50 clients. Here is a minute's sample, behind `slow`, of some seconds by default; for
longer: KAIROS_SOAK_S=86400 pytest -m slow tests/http/test_fault_cases_http.py
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from support.forked_program import run_program
from support.hostile_clients import misbehaves
from support.http_server import WAYS, Answer, Site

from kairos_mcp.server.http_bounds import RequestBounds

PROMPTLY_S = 5.0  # a client that is refused is told so, and doesn't wait for its own time-out
LEGACY = "2025-11-25"
WARM_S = 1.0


# -- a client that takes no stream -------------------------------------------------------------------------------------


def legacy_post(site: Site, message: dict[str, Any], accepts: str, session: str | None = None) -> Answer:
    body = json.dumps({"jsonrpc": "2.0", **message}).encode()
    own = (
        f"Accept: {accepts}",
        f"MCP-Protocol-Version: {LEGACY}",
        *([f"Mcp-Session-Id: {session}"] if session else []),
    )
    return site.post(body, *own, without=("Accept", "MCP-Protocol-Version"))


def in_a_session(site: Site, **capabilities: Any) -> str:
    both = "application/json, text/event-stream"
    about = {"protocolVersion": LEGACY, "clientInfo": {"name": "t", "version": "1"}, "capabilities": capabilities}
    answer = legacy_post(site, {"id": 0, "method": "initialize", "params": about}, both)
    assert answer.status == 200
    session = answer.headers["mcp-session-id"]
    assert legacy_post(site, {"method": "notifications/initialized"}, both, session).status == 202
    return session


@pytest.mark.parametrize("declared", [{}, {"elicitation": {}, "sampling": {}}], ids=["plain", "can be asked"])
def test_PROTOCOL_029_a_legacy_client_that_takes_plain_json_alone_is_refused_at_once(sites, write_script, declared):
    """It could be asked nothing while it waits; so it does not get as far as a run that has something to ask."""
    write_script(
        {"tool_calls": [{"name": "edit_file", "arguments": {"path": "a.txt", "old_string": "a", "new_string": "b"}}]}
    )
    site = sites()
    session = in_a_session(site, **declared)
    began = time.monotonic()
    call = {"name": "planner_run", "arguments": {"goal": "go", "tools": ["edit_file"]}}
    answer = legacy_post(site, {"id": 1, "method": "tools/call", "params": call}, "application/json", session)
    assert time.monotonic() - began < PROMPTLY_S
    assert answer.status == 406
    assert "text/event-stream" in answer.json["error"]["message"]
    assert site.call("run_status", {}).json["result"]["structuredContent"]["runs"] == []
    assert site.is_quiet()


# -- a Unix socket -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["unix:{}", "{}"])
def test_HTTP_033_no_unix_socket_is_served_and_none_is_made(tmp_path: Path, host: str) -> None:
    at = tmp_path / "kairos.sock"
    words = ["serve", "--home", str(tmp_path / "home"), "--transport", "http", "--host", host.format(at)]
    ran = run_program(words, timeout=20)
    assert ran.returncode == 2
    assert "--host" in ran.stderr
    assert "Traceback" not in ran.stderr
    assert not at.exists()


# -- a soak ------------------------------------------------------------------------------------------------------------


async def works(site: Site, way: str, until: float) -> None:
    """A client that comes, has a run done, and goes, over and over."""
    number = 0
    while time.monotonic() < until:
        async with site.client(way) as client:
            for _ in range(5):
                number += 1
                result = await client.call_tool("planner_run", {"goal": f"{way} {id(client)} {number}"})
                assert result.structured_content["status"] == "completed", result


async def soak(site: Site, clients: int, seconds: float) -> None:
    until = time.monotonic() + seconds
    async with anyio.create_task_group() as group:
        for number in range(clients):
            group.start_soon(works, site, WAYS[number % len(WAYS)], until)
        for number in range(max(1, clients // 5)):
            group.start_soon(anyio.to_thread.run_sync, misbehaves, site, random.Random(number), until)


@pytest.mark.parametrize(
    ("clients", "seconds"),
    [(4, 2.0), pytest.param(50, float(os.environ.get("KAIROS_SOAK_S", "60")), marks=pytest.mark.slow)],
)
async def test_HTTP_035_a_server_among_many_clients_and_faults_grows_by_nothing_but_its_runs(
    sites: Callable[..., Site], write_script: Callable[..., None], clients: int, seconds: float
) -> None:
    write_script({"content": "done", "finish": "stop"})
    site = sites(
        RequestBounds(calls_per_s=10_000, burst=10_000)
    )  # they are one principal, whose rate is not asked here
    await soak(site, clients, max(WARM_S, seconds / 3))
    descriptors, memory = site.descriptors(), site.resident_bytes()
    await soak(site, clients, seconds)
    with anyio.fail_after(20):
        while site.descriptors() > descriptors + 8:  # noqa: ASYNC110 - another process's count has no event
            await anyio.sleep(0.05)  # connections that were given up are closed by and by
    assert site.resident_bytes() < memory * 1.25
    assert site.still_answers()
    assert site.is_quiet()
