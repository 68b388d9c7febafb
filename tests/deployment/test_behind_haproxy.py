"""The commands of the compose file behind HAProxy with its file: servers and workers are killed, and runs complete."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client
from support import postgres
from support.app import place_in, reads, says
from support.deployment import NAME, Deployment, deployed_behind_proxy
from support.waiting import wait_until

pytestmark = [pytest.mark.postgres, pytest.mark.unreplayed]
LINES = (reads("a.txt", delay_s=1.5), says("done", delay_s=1.5))
WITHIN_S = 60
LEASE_S = 10.0


@pytest.fixture
def running(tmp_path: Path, postgres_server: str) -> Any:
    place = place_in(tmp_path / "laid")
    place.script.write_text("".join(json.dumps(line) + "\n" for line in LINES))
    root = tmp_path / "deployed"
    root.mkdir()
    place.workspace.rename(root / "files")
    with deployed_behind_proxy(root, postgres.make_empty_schema(postgres_server), place.script) as deployment:
        yield deployment


@asynccontextmanager
async def client(deployment: Deployment, mode: str) -> AsyncIterator[Client]:
    """A client through the proxy, under the name of the servers."""
    headers = {"Authorization": f"Bearer {deployment.token}", "Host": NAME}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=WITHIN_S, verify=deployment.trusted) as http,
        Client(streamable_http_client(f"{deployment.url}/mcp", http_client=http), mode=mode) as connected,
    ):
        yield connected


async def call(connected: Client, name: str, **arguments: Any) -> dict[str, Any]:
    result = await connected.call_tool(name, arguments)
    found: dict[str, Any] = result.structured_content or {}
    return found


async def wait_for(deployment: Deployment, mode: str, run_id: str) -> dict[str, Any]:
    """Ask until the run has ended, as somebody whose server may be killed at any time: with a new client then."""
    for _ in range(6):
        try:
            async with client(deployment, mode) as connected:
                found = await call(connected, "run_status", run_ids=[run_id], until="done", wait_s=20)
                if found["runs"][0]["status"] == "completed":
                    run: dict[str, Any] = found["runs"][0]
                    return run
        except Exception as error:  # whatever the SDK makes of a server that has gone
            print(f"{mode}: {error!r}")
    pytest.fail("the run did not end")


def rows(deployment: Deployment, statement: str) -> list[tuple[Any, ...]]:
    with postgres.open_session(deployment.database) as session:
        return session.rows(statement)


def is_begun(deployment: Deployment, count: int) -> bool:
    return rows(deployment, "select count(*) from step where path = 'round-1'") == [(count,)]


async def test_runs_complete_while_a_server_and_a_worker_are_killed(running: Deployment) -> None:
    postgres.wait_until_locks_count(running.database, LEASE_S)
    runs = {}
    for mode in ("auto", "legacy"):
        async with client(running, mode) as connected:
            runs[mode] = (await call(connected, "planner_run", goal=f"look {mode}", wait_s=0))["run_id"]
    wait_until(lambda: is_begun(running, 2), WITHIN_S)
    running.web[0].kill()
    running.work[0].kill()
    found = [await wait_for(running, mode, run_id) for mode, run_id in runs.items()]
    assert [run["summary"] for run in found] == ["done", "done"]
    assert rows(running, "select count(*) from step") == rows(running, "select count(*) from answer") == [(6,)]
    assert {via for (via,) in rows(running, "select via from owner")} == {"mcp", "work"}


async def test_a_session_whose_server_was_killed_is_a_404_elsewhere_and_others_stay(running: Deployment) -> None:
    """Of five sessions at two servers those of the killed one are 404 at each request, and the others go on."""
    headers = {
        "Authorization": f"Bearer {running.token}",
        "Host": NAME,
        "Accept": "application/json, text/event-stream",
    }
    about = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    hello = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": about}
    ping = {"jsonrpc": "2.0", "id": 2, "method": "ping"}
    with httpx2.Client(headers=headers, timeout=WITHIN_S, verify=running.trusted, base_url=running.url) as http:
        sessions = [http.post("/mcp", json=hello).headers["mcp-session-id"] for _ in range(5)]

        def status(session: str) -> int | None:
            try:
                return http.post("/mcp", json=ping, headers={"Mcp-Session-Id": session}).status_code
            except httpx2.HTTPError:
                return None  # it was on its way to the server that was killed

        def statuses() -> list[int | None]:
            return [status(session) for session in sessions]

        assert [statuses() for _ in range(3)] == [[200] * 5] * 3
        running.web[0].kill()
        wait_until(lambda: set(statuses()) == {200, 404}, WITHIN_S, statuses)
        assert statuses().count(404) in (2, 3)
        assert http.post("/mcp", json=hello).status_code == 200
