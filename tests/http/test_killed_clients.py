"""Clients that are killed for real in the middle of a push, and others that give up: whoever comes next goes on at
once, every ask is charged, and no limit is passed."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mcp_types as wire
import pytest
from mcp.client.client import Client
from mcp.client.sse import sse_client
from mcp.client.stdio import StdioServerParameters, stdio_client
from support import postgres
from support.app import Place, assert_lawful
from support.environment import plain_environ
from support.forked_program import start
from support.http_server import Site

MANY = 50
AT_ONCE_S = 12.0  # well below the 30 s of a silent client and the 45 s of a call, on a loaded machine
WITHIN_S = 40.0
WAYS = ("http", "sse", "stdio")
DEALT = ("stdio", "http", "sse", "http", "sse", "http")
MORTAL = """
import asyncio, json, sys, time
from mcp.client.client import Client
from mcp.client.sse import sse_client
from mcp.client.stdio import StdioServerParameters, stdio_client
way, where, arguments = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
async def sample(ctx, params):
    print("asked", flush=True)
    await asyncio.sleep(3600)
async def main():
    match way:
        case "stdio":
            command, *words = json.loads(where)
            server = stdio_client(StdioServerParameters(command=command, args=words))
        case "sse":
            server = sse_client(where + "/sse")
        case _:
            server = where + "/mcp"
    async with Client(server, mode="legacy", sampling_callback=sample) as client:
        print("connected", flush=True)
        await client.call_tool("planner_run", arguments)
asyncio.run(main())
"""


@dataclass
class Model:
    """A living client's model: looks at the file, then says that it is done. `begun` counts how often it was asked."""

    seconds: float = 0.0
    begun: int = 0

    async def __call__(self, _ctx: object, params: wire.CreateMessageRequestParams) -> wire.CreateMessageResult:
        self.begun += 1
        if self.seconds:
            await asyncio.wait([asyncio.create_task(asyncio.Event().wait())], timeout=self.seconds)
        turns = sum(message.role == "assistant" for message in params.messages)
        said: dict[str, Any] = {"final": "done"}
        if turns == 0:
            said = {"tool_calls": [{"name": "read_file", "arguments": {"path": "a.txt"}}]}
        text = wire.TextContent(text=json.dumps(said))
        return wire.CreateMessageResult(role="assistant", model="m", content=text, stop_reason="endTurn")


def over(way: str, where: str, model: Model | None) -> Client:
    server: Any = where + "/mcp"
    if way == "sse":
        server = sse_client(where + "/sse")
    if way == "stdio":
        command, *words = json.loads(where)
        server = stdio_client(StdioServerParameters(command=command, args=words))
    return Client(server, mode="legacy", sampling_callback=model)


@dataclass
class Ground:
    """A state folder, and where its server is reached: by URL, or on stdio by its command."""

    place: Place
    where: str

    def rows(self, statement: str, *bindings: Any) -> list[tuple[Any, ...]]:
        return self.place.rows(statement, *bindings)


@asynccontextmanager
async def ground(way: str, folder: Path) -> AsyncIterator[Ground]:
    place = Place(folder)
    if way == "stdio":
        place.workspace.mkdir(parents=True)
        (place.workspace / "a.txt").write_text("alpha\n")
        words = ["-m", "kairos_mcp", "serve", "--home", str(place.home), "--workspace", str(place.workspace)]
        environ = [f"{name}={value}" for name, value in postgres.environ_of(folder).items()]
        yield Ground(place, json.dumps(["env", *environ, sys.executable, *words]))
        return
    site = await asyncio.to_thread(Site.start, folder, no_auth=True)
    try:
        yield Ground(place, site.url)
        assert site.is_quiet(), "".join(site.said)
    finally:
        site.stop()


async def killed_in_a_push(way: str, where: str, arguments: dict[str, Any], after_s: float) -> None:
    """A client is started, asks for a run, and is killed so long after its model was asked."""
    environ = plain_environ()
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    mortal = await asyncio.to_thread(start, [way, where, json.dumps(arguments)], code=MORTAL, env=environ, **streams)
    try:
        async with asyncio.timeout(WITHIN_S):
            while (line := await asyncio.to_thread(mortal.stdout.readline)).strip() != b"asked":
                assert line, "it ended before it was asked"
        await asyncio.wait([asyncio.create_task(asyncio.Event().wait())], timeout=after_s)
    finally:
        mortal.send_signal(signal.SIGKILL)
        await asyncio.to_thread(mortal.wait)
        mortal.stdout.close()


async def came_to(client: Client, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    result = await client.call_tool(name, arguments)
    assert not result.is_error, result.structured_content
    return dict(result.structured_content or {})


async def assert_another_goes_on(way: str, folder: Path, chance: random.Random) -> None:
    arguments = {"goal": "go", "limits": {"model_calls": 5}}
    async with ground(way, folder) as here:
        await killed_in_a_push(way, here.where, arguments, chance.choice((0.0, 0.0, 0.05, 0.4)))
        model = Model()
        async with over(way, here.where, model) as living:
            ((run_id,),) = here.rows("select id from run")
            began = time.monotonic()
            async with asyncio.timeout(WITHIN_S):
                ended = await came_to(living, "run_continue", {"run_id": run_id})
            took = time.monotonic() - began
        assert (ended["status"], ended["route"], ended["summary"]) == ("completed", "sampling", "done"), ended
        assert took < AT_ONCE_S
        assert (model.begun, ended["usage"]["model_calls"], ended["usage"]["attempts"]) == (2, 3, 3)
        assert here.rows("select ended, charged is null from client_completion order by id") == [
            ("withdrawn", 0),
            ("answered", 1),
            ("answered", 1),
        ]
        assert_lawful(here.place, run_id)


async def assert_limit_holds_over_kills(way: str, folder: Path, chance: random.Random) -> None:
    """Each client that goes on is killed in its turn; the run ends within its limit of model calls."""
    most = chance.choice((1, 2, 3))
    arguments = {"goal": "go", "limits": {"model_calls": most}, "key": "one"}
    async with ground(way, folder) as here:
        for _ in range(most):
            await killed_in_a_push(way, here.where, arguments, 0.0)
        async with over(way, here.where, model := Model()) as living:
            async with asyncio.timeout(WITHIN_S):
                ended = await came_to(living, "planner_run", arguments)
        assert model.begun == 0
        assert (ended["status"], ended["stop_reason"]) == ("stopped", "budget"), ended
        assert ended["usage"]["model_calls"] == most
        assert here.rows("select count(*) from client_completion") == [(most,)]
        assert_lawful(here.place, ended["run_id"])


async def assert_slow_model_ends_within_limits(way: str, folder: Path, chance: random.Random) -> None:
    """A model that is slower than its client waits for a call. Where what was asked outlives the call, it gets to the
    end with no call too many; over Streamable HTTP it ends within its limits."""
    call_s, most = chance.choice((0.3, 0.6)), 4
    model = Model(seconds=call_s * 2.5)
    async with ground(way, folder) as here, over(way, here.where, model) as client:
        name, arguments = "planner_run", {"goal": "go", "limits": {"model_calls": most}, "key": "one"}
        ended: dict[str, Any] = {"status": ""}
        async with asyncio.timeout(WITHIN_S):
            while ended["status"] not in ("completed", "stopped", "failed"):
                call = asyncio.create_task(came_to(client, name, arguments))
                done, _ = await asyncio.wait([call], timeout=call_s)
                if done:
                    ended = call.result()
                    continue
                call.cancel()
                await asyncio.gather(call, return_exceptions=True)
                runs = (await came_to(client, "run_status", {"view": "full"}))["runs"]
                ended = runs[0] if runs else ended
        used = ended["usage"]
        assert used["model_calls"] == used["attempts"] <= most
        assert model.begun <= most
        if way == "http":
            assert ended["stop_reason"] in ("budget", "assistant_stop"), ended
        else:
            assert (ended["summary"], model.begun, used["model_calls"]) == ("done", 2, 2), ended
        assert_lawful(here.place, ended["run_id"])


CASES: dict[str, Callable[[str, Path, random.Random], Any]] = {
    "killed, and another goes on": assert_another_goes_on,
    "killed again and again": assert_limit_holds_over_kills,
    "gives up again and again": assert_slow_model_ends_within_limits,
}


SAMPLE = [
    *((case, "http") for case in CASES),
    ("killed, and another goes on", "stdio"),
    ("gives up again and again", "sse"),
]


@pytest.mark.parametrize(("case", "way"), SAMPLE)
async def test_clients_that_are_killed_or_give_up_in_the_middle_of_a_push(case: str, way: str, tmp_path: Path) -> None:
    assert_case = CASES[case]
    await assert_case(way, tmp_path / "ground", random.Random(f"{case} {way}"))


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("case", CASES)
async def test_50_clients_that_are_killed_or_give_up_in_the_middle_of_a_push(
    case: str, way: str, tmp_path: Path
) -> None:
    """The seeds of a case are dealt out to the transports, one of six to the one that starts a server for each client:
    all together take some minutes."""
    assert_case = CASES[case]
    for seed in (each for each in range(MANY) if DEALT[each % len(DEALT)] == way):
        await assert_case(way, tmp_path / f"ground-{seed}", random.Random(seed))
