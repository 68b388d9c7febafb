"""Several servers on one state folder behind one address: requests of one run land anywhere."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from mcp.client.client import Client
from mcp_types import CreateMessageResult, TextContent
from support.http_server import SECONDS, Site
from support.proxy import RoundRobin

CALL = {"tool_calls": [{"id": "c", "name": "read_file", "arguments": {"path": "a.txt"}}]}


@pytest.fixture
def proxy() -> Iterator[RoundRobin]:
    proxy = RoundRobin([]).start()
    yield proxy
    proxy.stop()


@pytest.fixture
def two(sites: Callable[..., Site], proxy: RoundRobin) -> tuple[Site, Site, Site]:
    """Two servers on one state folder, and their common address."""
    name = f"127.0.0.1:{proxy.port}"
    one, other = sites(names=(name,)), sites(names=(name,))
    proxy.ports = [one.port, other.port]
    return one, other, replace(one, port=proxy.port)


async def outcome(client: Client, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    result = (await client.call_tool(name, arguments)).structured_content
    assert "code" not in result, result
    return result


def answer(run: dict[str, Any], **given: Any) -> dict[str, Any]:
    (item,) = run["waiting"]
    return {"run_id": run["run_id"], "answers": {item["key"]: given}}


@pytest.mark.parametrize("way", ["modern http", "legacy http"])
async def test_requests_of_one_run_land_on_both_and_one_of_them_may_die(
    two: tuple[Site, Site, Site], proxy: RoundRobin, way: str
) -> None:
    one, other, address = two
    proxy.sticky = way == "legacy http"
    run: dict[str, Any] = {}
    for _ in range(2):  # a session each, in the older era on one server each
        async with address.client(way) as client:
            if not run:
                run = await outcome(client, "planner_run", {"goal": "travel", "route": "caller"})
            run = await outcome(client, "run_continue", answer(run, **CALL))
    assert set(proxy.served) == {0, 1}
    one.server.kill()
    one.server.wait(SECONDS)
    async with address.client(way) as client:
        run = await outcome(client, "run_continue", answer(run, **CALL))
        run = await outcome(client, "run_continue", answer(run, content="there", finish="stop"))
    assert (run["status"], run["rounds"], run["summary"]) == ("completed", 4, "there")
    assert other.is_quiet()


async def sample(_context: object, _params: object) -> CreateMessageResult:
    content = TextContent(type="text", text='{"final": "asked anywhere"}')
    return CreateMessageResult(role="assistant", content=content, model="m")


async def test_a_client_that_is_asked_by_one_may_answer_to_another(
    two: tuple[Site, Site, Site], proxy: RoundRobin
) -> None:
    *_, address = two
    async with address.client("modern http", sampling_callback=sample) as client:
        before = len(proxy.served)
        run = await outcome(client, "planner_run", {"goal": "ask me", "route": "sampling"})
    assert (run["status"], run["summary"]) == ("completed", "asked anywhere")
    assert set(proxy.served[before:]) == {0, 1}


def test_a_session_that_lands_elsewhere_is_refused_with_what_to_do(two: tuple[Site, Site, Site]) -> None:
    one, other, _ = two
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    legacy = ("MCP-Protocol-Version",)
    begun = one.post(request_body("initialize", hello), without=legacy).headers["mcp-session-id"]
    for path, named in (("/mcp", (f"Mcp-Session-Id: {begun}",)), (f"/messages/?session_id={begun}", ())):
        answer = other.post(request_body("ping", {}), *named, path=path, without=legacy)
        assert answer.status == 404
        assert "another process" in answer.json["error"]["message"]


def request_body(method: str, params: dict[str, Any]) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()
