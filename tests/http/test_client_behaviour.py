"""Clients that behave as hosts do and ought not to, each a process of its own: what comes of it, as docs/hosts.md says.

Elsewhere: clients that are killed while they are asked (test_killed_clients.py), or never read (test_load.py).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from support.app import Place
from support.forked_program import run_program
from support.http_server import Site
from support.waiting import wait_until

from kairos_mcp.server.http_bounds import RequestBounds

SLOW_S = 0.8  # that a round of the script takes
EDIT = {"path": "a.txt", "old_string": "alpha\n", "new_string": "omega\n"}
LINES = (
    {"for": "round-1", "content": "look", "tool_calls": [{"name": "edit_file", "arguments": EDIT}], "delay_s": SLOW_S},
    {"for": "round-2", "content": "Done.", "finish": "stop"},
)
CLIENT = """
import asyncio, json, os, sys
import httpx2
import mcp_types as wire
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client

url, token, mode, goal, does = sys.argv[1:]
asked = []

async def decline(ctx, params):
    asked.append(params.message)
    return wire.ElicitResult(action="decline")

def connect(**more):
    http = httpx2.AsyncClient(headers={"Authorization": f"Bearer {token}"}, timeout=60)
    return Client(streamable_http_client(url, http_client=http), mode=mode, **more)

async def call(client, name, **arguments):
    result = (await client.call_tool(name, arguments)).structured_content
    return {name: result.get(name) for name in ("run_id", "status", "code", "degraded")}

def begin(client, **more):
    return call(client, "planner_run", goal=goal, **more)

async def give_up(client, after_s, **more):
    task = asyncio.create_task(begin(client, **more))
    await asyncio.wait([task], timeout=after_s)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)

async def main():
    if does == "declines":
        async with connect(elicitation_callback=decline) as client:
            run = await begin(client, tools=["edit_file"])
            said = [run, await call(client, "run_continue", run_id=run["run_id"], wait_s=1)]
    elif does == "gives up and asks again":
        async with connect() as client:
            for _ in range(3):
                await give_up(client, 0.1)
            said = [await begin(client)]
    elif does == "cancels":
        async with connect() as client:
            await give_up(client, 0.2)
        said = []
    elif does == "asks twice at once":
        async with connect() as client:
            said = await asyncio.gather(begin(client), begin(client))
    elif does == "comes back as another":
        first = await connect().__aenter__()
        run = await begin(first, route="caller")
        async with connect() as client:  # the first session is neither ended nor used again
            answers = {"round-1": {"content": "here", "finish": "stop"}}
            said = [run, await call(client, "run_continue", run_id=run["run_id"], answers=answers)]
    print(json.dumps({"said": said, "asked": len(asked)}), flush=True)
    os._exit(0)

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("behaviour") / "place"
    folder.mkdir()
    (folder / "script.jsonl").write_text("".join(json.dumps(line) + "\n" for line in LINES))
    site = Site.start(folder, RequestBounds(calls_per_s=10_000, burst=10_000))
    yield site
    site.stop()


@pytest.fixture(params=["legacy", "auto"])
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def behave(site: Site, mode: str, does: str) -> tuple[list[dict[str, Any]], int, str]:
    """What such a client was answered, how often its user was asked, and the goal of its runs."""
    goal = f"{does}, {mode}"
    ran = run_program([f"{site.url}/mcp", str(site.token), mode, goal, does], code=CLIENT, timeout=60)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    return found["said"], found["asked"], goal


def runs_of(site: Site, goal: str) -> list[tuple[str, bool]]:
    """The runs of a goal: the id, and whether it has ended."""
    statement = "select id, outcome is not null from run where spec like ? order by n"
    return [(run_id, bool(ended)) for run_id, ended in Place(site.home.parent).rows(statement, f"%{goal}%")]


def test_a_dialog_that_a_host_declines_by_itself_decides_nothing_and_is_not_shown_again(site: Site, mode: str) -> None:
    said, asked, goal = behave(site, mode, "declines")
    ((run_id, ended),) = runs_of(site, goal)
    assert [each["status"] for each in said] == ["input_required", "input_required"]
    statement = "select verdict from approval join run on run.n = approval.run where run.id = ?"
    assert Place(site.home.parent).rows(statement, run_id) == [(None,)]
    assert (asked, ended) == (1, False)


def test_a_host_that_gives_up_and_asks_again_has_one_run(site: Site, mode: str) -> None:
    (said,), _, goal = behave(site, mode, "gives up and asks again")
    ((run_id, _),) = runs_of(site, goal)
    assert said["run_id"] == run_id
    assert any(text.startswith("attached") for text in said["degraded"])


def test_a_call_that_is_cancelled_leaves_its_run_to_go_on(site: Site, mode: str) -> None:
    *_, goal = behave(site, mode, "cancels")
    statement = "select count(*) from answer join step on step.id = step join run on run.n = step.run where run.id = ?"
    ((run_id, _),) = runs_of(site, goal)
    assert wait_until(lambda: Place(site.home.parent).rows(statement, run_id)[0][0]) >= 1


def test_two_that_ask_the_same_at_once_get_one_run(site: Site, mode: str) -> None:
    said, _, goal = behave(site, mode, "asks twice at once")
    ((run_id, _),) = runs_of(site, goal)
    assert [each["run_id"] for each in said] == [run_id, run_id]


def test_a_host_that_comes_back_as_another_session_goes_on_with_its_run(site: Site, mode: str) -> None:
    (begun, ended), _, goal = behave(site, mode, "comes back as another")
    assert (begun["status"], ended["status"]) == ("input_required", "completed")
    assert runs_of(site, goal) == [(begun["run_id"], True)]
