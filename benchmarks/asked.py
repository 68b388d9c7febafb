"""What a sampling ask costs the server above the bare SDK's, in rounds of the floor, in both protocol eras.

The same rounds are run twice by one server over stdio: completed by its script, and by the client's model; what is
between them is the ask. The bare server asks as often from one tool, and does nothing else.
"""

from __future__ import annotations

import itertools
import json
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median
from typing import Any, Literal

import anyio
import mcp_types as wire
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

from benchmarks import rounds as floors
from benchmarks import subjects
from benchmarks.fresh import fresh
from benchmarks.transports import cpu_s, youngest_child

PROGRAM = Path(__file__).with_name("served.py")
Mode = Literal["auto", "legacy"]
ERAS: dict[str, Mode] = {"push": "legacy", "input_required": "auto"}
ROUNDS = 8  # of a run; a stock client follows ten rounds of one call


def figures(runs: int = 25, times: int = 3) -> dict[str, float]:
    least = median(fresh(floors.floor, 100) for _ in range(2 * times - 1))
    result = {"floor_us": least * 1e6}
    for era in ERAS:
        bare = median(anyio.run(_bare, era, runs) for _ in range(times))
        asked = median(anyio.run(_kairos, era, runs) for _ in range(times))
        result |= {f"{era}_bare": bare / least, f"{era}_kairos": asked / least, f"{era}_above": (asked - bare) / least}
    return result


async def _bare(era: str, runs: int) -> float:
    """CPU seconds of the bare server for one ask; its n-th ask in a call sends as many messages as ours would."""
    with tempfile.TemporaryDirectory(prefix="kairos-bench-") as folder:
        async with _client("asks", era, folder, _says([])) as (client, pid):
            await client.call_tool("ask", {"times": 4})
            cpu = cpu_s(pid)
            for _ in range(runs):
                await client.call_tool("ask", {"times": ROUNDS})
            return (cpu_s(pid) - cpu) / (runs * ROUNDS)


async def _kairos(era: str, runs: int) -> float:
    """CPU seconds for one ask: of runs that the client's model completes, less those that a script does."""
    with tempfile.TemporaryDirectory(prefix="kairos-bench-") as name:
        folder = Path(name)
        subjects.settings(folder, ROUNDS - 1, "process")
        said = {"durability": "process", "script": f"{folder}/script-{ROUNDS - 1}.jsonl"}
        lines = [f"{name} = {value!r}" for name, value in said.items()]
        lines.append(f"workspaces = ['{folder}/workspace']")
        home = folder / "home"
        home.mkdir(mode=0o700, exist_ok=True)
        (home / "kairos.toml").write_text("\n".join(lines), encoding="utf-8")
        says = _says([json.dumps(_spoken(n)) for n in range(1, ROUNDS)])
        async with _client("kairos", era, str(home), says) as (client, pid):
            for route in ("scripted", "sampling"):
                await _run(client, route, f"warm {route}")
            cpu = [cpu_s(pid)]
            for route in ("scripted", "sampling"):
                for n in range(runs):
                    await _run(client, route, f"{route} {n}")
                cpu.append(cpu_s(pid))
    by_script, by_client = cpu[1] - cpu[0], cpu[2] - cpu[1]
    return (by_client - by_script) / (runs * ROUNDS)


async def _run(client: Client, route: str, goal: str) -> None:
    arguments = {"goal": goal, "route": route, "limits": {"rounds": ROUNDS + 1}, "wait_s": 60}
    result = (await client.call_tool("planner_run", arguments)).structured_content or {}
    while result["status"] == "input_required":
        result = (await client.call_tool("run_continue", {"run_id": result["run_id"]})).structured_content or {}
    assert (result["stop_reason"], result["rounds"]) == ("assistant_stop", ROUNDS), result


def _spoken(n: int) -> dict[str, Any]:
    """The n-th turn of the script, as the text dialect has it."""
    turn = subjects.turn(n, "read_file")
    return {"tool_calls": turn["tool_calls"], "say": turn["content"]}


def _says(replies: list[str]) -> Any:
    """A client's model that says these one after the other and then that it has done, over and over."""
    turns = itertools.cycle([*replies, '{"final": "Done."}'])

    async def model(_ctx: object, _params: wire.CreateMessageRequestParams) -> wire.CreateMessageResult:
        content = wire.TextContent(text=next(turns))
        return wire.CreateMessageResult(role="assistant", model="m", content=content, stop_reason="endTurn")

    return model


@asynccontextmanager
async def _client(who: str, era: str, folder: str, model: Any) -> AsyncIterator[tuple[Client, int]]:
    words = ["-P", str(PROGRAM), who, "stdio", "0", folder]
    server = stdio_client(StdioServerParameters(command=sys.executable, args=words))
    async with Client(server, mode=ERAS[era], sampling_callback=model) as client:
        yield client, youngest_child()
