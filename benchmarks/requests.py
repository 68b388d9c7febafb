"""What clients ask for most: a call, a resource, a run and a task, of 1, 16 and 64 clients at once over Streamable HTTP
(2026-07-28), beside the bare low-level SDK server and fastmcp in the same run.

Server CPU of one, as a ratio to the bare server, which answers at once with what it holds; and how many a second. A run
is one round that a script answers, recorded at durability `process`; a task is such a run whose call was answered with
a task, fetched once it had ended. fastmcp has no tasks. `FASTMCP_PYTHON` as in transports.py.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import mcp_types as wire
from mcp.client.client import Client
from mcp.client.extension import ClientExtension
from pydantic import TypeAdapter

from benchmarks.served import TASKS
from benchmarks.transports import LEAST_S, cpu_s, launch_server, names_of_servers, open_client

WAY = "http_modern"
PLAIN: TypeAdapter[dict[str, Any]] = TypeAdapter(dict[str, Any])
POLL_S = 0.1  # of a client that waits for the end of its task
SETTINGS = 'durability = "process"\nscript = "script.jsonl"\n[day]\nmodel_calls = 1000000\n'
SCRIPT = '{"content": "Done.", "finish": "stop", "delay_s": 0.01}\n'  # so that a call comes before its end
Ask = Callable[[Client, str], Awaitable[None]]


class _TakesTasks(ClientExtension):
    identifier = TASKS


class _TaskRequest(wire.Request[dict[str, Any], str]):
    name_param = "taskId"


async def _call(client: Client, _goal: str) -> None:
    result = await client.call_tool("run_status", {})
    assert not result.is_error, result


async def _read(client: Client, _goal: str) -> None:
    assert (await client.read_resource("kairos://budget")).contents


async def _run(client: Client, goal: str) -> None:
    result = await client.call_tool("planner_run", {"goal": goal})
    assert (result.structured_content or {})["status"] == "completed", result


async def _task(client: Client, goal: str) -> None:
    at_once = {"goal": goal, "wait_s": 0}
    begin = _TaskRequest(method="tools/call", params={"name": "planner_run", "arguments": at_once})
    task = await client.session.send_request(begin, PLAIN)
    assert task["resultType"] == "task", task
    while task["status"] != "completed":
        await anyio.sleep(POLL_S)
        look = _TaskRequest(method="tasks/get", params={"taskId": task["taskId"]})
        task = await client.session.send_request(look, PLAIN)


ASKS: dict[str, Ask] = {"call": _call, "read": _read, "run": _run, "task": _task}


def figures(calls: int = 320, runs: int = 128, times: int = 3, few: int = 16, many: int = 64) -> dict[str, float]:
    """`calls`: how many calls and reads of all clients together, `runs`: how many runs and tasks; `few`, `many`: how
    many clients."""
    measured: dict[str, float] = {}
    for clients in (1, few, many):
        found: dict[tuple[str, str], list[tuple[float, float]]] = {}
        for _ in range(times):
            for who in names_of_servers():
                for kind, figure in anyio.run(_measure, who, clients, calls, runs).items():
                    found.setdefault((kind, who), []).append(figure)
        for (kind, who), each in found.items():
            bare = found[kind, "bare"]
            if who == "bare":
                measured[f"{kind}_{clients}_bare_ms"] = _median(cpu for cpu, _ in bare) * 1000
                continue
            cpu, least = (pick(cost for cost, _ in each) for pick in (_median, min))
            measured[f"{kind}_{clients}_{who}_cpu"] = cpu / max(_median(cost for cost, _ in bare), LEAST_S)
            measured[f"{kind}_{clients}_{who}_least"] = least / max(min(cost for cost, _ in bare), LEAST_S)
            if who == "kairos":
                measured[f"{kind}_{clients}_kairos_ms"] = cpu * 1000
                measured[f"{kind}_{clients}_kairos_per_s"] = _median(rate for _, rate in each)
    return measured


def _median(values: Any) -> float:
    ordered = sorted(values)
    return float(ordered[len(ordered) // 2])


async def _measure(who: str, clients: int, calls: int, runs: int) -> dict[str, tuple[float, float]]:
    """CPU seconds of one, and how many a second, by kind, of warm clients that all begin at once."""
    found: dict[str, tuple[float, float]] = {}
    with tempfile.TemporaryDirectory(prefix="kairos-bench-") as folder:
        _write_settings(Path(folder))
        with launch_server(who, "http_tasks", folder) as at:
            for kind, ask in ASKS.items():
                if (who, kind) != ("fastmcp", "task"):
                    each = max(1, (calls if kind in ("call", "read") else runs) // clients)
                    found[kind] = await _ask_all(who, at, folder, clients, each, ask)
    return found


def _write_settings(folder: Path) -> None:
    (folder / "kairos.toml").write_text(SETTINGS, encoding="utf-8")
    (folder / "script.jsonl").write_text(SCRIPT, encoding="utf-8")


async def _ask_all(
    who: str, at: tuple[int, int], folder: str, clients: int, each: int, ask: Ask
) -> tuple[float, float]:
    ready, begin = [anyio.Event() for _ in range(clients)], anyio.Event()
    done, finished = [anyio.Event() for _ in range(clients)], anyio.Event()
    extensions = [_TakesTasks()] if ask is _task else []

    async def one(number: int) -> None:
        async with open_client(who, WAY, folder, at, extensions=extensions) as (client, _):
            await ask(client, f"warm {number} {id(done)}")
            ready[number].set()
            await begin.wait()
            for turn in range(each):
                await ask(client, f"goal {number} {turn} {id(done)}")
            done[number].set()
            await finished.wait()

    async with anyio.create_task_group() as tasks:
        for number in range(clients):
            tasks.start_soon(one, number)
        for event in ready:
            await event.wait()
        cpu, clock = cpu_s(at[1]), time.perf_counter()
        begin.set()
        for event in done:
            await event.wait()
        spent = cpu_s(at[1]) - cpu, time.perf_counter() - clock
        finished.set()
    return spent[0] / (clients * each), clients * each / spent[1]
