"""A tools/call over each transport, beside the bare low-level SDK server and fastmcp in the same run; 64 clients.

Server CPU a call, as ratios to the bare server on the same transport; for 64 clients calls a second as well.
`FASTMCP_PYTHON` names the Python of an environment with fastmcp; without it that column is left out.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import anyio
from mcp.client.client import Client
from mcp.client.sse import sse_client
from mcp.client.stdio import StdioServerParameters, stdio_client

PROGRAM = Path(__file__).with_name("served.py")
WAYS = {"stdio": "auto", "http_modern": "auto", "http_legacy": "legacy", "sse": "legacy"}
TICKS = os.sysconf("SC_CLK_TCK")
LEAST_S = 1e-6  # of CPU a call: a few calls may take less than a tick


def figures(
    calls: int = 300, clients: int = 64, each: int = 10, times: int = 3, ways: int = len(WAYS)
) -> dict[str, float]:
    """`clients` at once make `each` calls; `ways`: how many of the transports, from the first."""
    measured: dict[str, float] = {}
    for way in list(WAYS)[:ways]:
        measured |= _ratios(way, [_called(who, way, 1, calls) for _ in range(times) for who in names_of_servers()], "")
        if way.startswith("http"):
            several = [_called(who, way, clients, each) for _ in range(times) for who in names_of_servers()]
            measured |= _ratios(way, several, f"_{clients}")
    return measured


def _ratios(way: str, found: list[tuple[float, float]], kind: str) -> dict[str, float]:
    """`found` goes round the servers: CPU seconds a call and calls a second of each."""
    names = names_of_servers()
    cpu = {who: median(cost for cost, _ in found[at :: len(names)]) for at, who in enumerate(names)}
    rate = {who: median(speed for _, speed in found[at :: len(names)]) for at, who in enumerate(names)}
    measured = {f"{way}{kind}_bare_ms": cpu["bare"] * 1000, f"{way}{kind}_bare_per_s": rate["bare"]}
    for who in names[1:]:
        measured[f"{way}{kind}_{who}_cpu"] = cpu[who] / max(cpu["bare"], LEAST_S)
        measured[f"{way}{kind}_{who}_rate"] = rate[who] / rate["bare"]
    return measured


def names_of_servers() -> tuple[str, ...]:
    return ("bare", "kairos", "fastmcp") if "FASTMCP_PYTHON" in os.environ else ("bare", "kairos")


def _called(who: str, way: str, clients: int, each: int) -> tuple[float, float]:
    return anyio.run(_measured, who, way, clients, each)


async def _measured(who: str, way: str, clients: int, calls: int) -> tuple[float, float]:
    """CPU seconds a call, and calls a second, of warm clients that all begin at once."""
    transport, _, _ = way.partition("_")
    ready, begin = [anyio.Event() for _ in range(clients)], anyio.Event()
    with tempfile.TemporaryDirectory(prefix="kairos-bench-") as folder, launch_server(who, transport, folder) as at:
        done = [anyio.Event() for _ in range(clients)]

        async def one(number: int) -> None:
            async with open_client(who, way, folder, at) as (client, pid):
                await client.call_tool("run_status", {})
                pids.add(pid)
                ready[number].set()
                await begin.wait()
                for _ in range(calls):
                    result = await client.call_tool("run_status", {})
                    assert result.structured_content == {"runs": [], "next": None}, result
                done[number].set()
                await finished.wait()

        pids: set[int] = set()
        finished = anyio.Event()
        async with anyio.create_task_group() as tasks:
            for number in range(clients):
                tasks.start_soon(one, number)
            for each in ready:
                await each.wait()
            (pid,) = pids
            cpu, clock = cpu_s(pid), time.perf_counter()
            begin.set()
            for each in done:
                await each.wait()
            spent = (cpu_s(pid) - cpu, time.perf_counter() - clock)
            finished.set()
    return spent[0] / (clients * calls), clients * calls / spent[1]


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def _words(who: str, transport: str, port: int, folder: str) -> list[str]:
    python = os.environ["FASTMCP_PYTHON"] if who == "fastmcp" else sys.executable
    return [python, "-P", str(PROGRAM), who, transport, str(port), folder]


@contextmanager
def launch_server(who: str, transport: str, folder: str) -> Iterator[tuple[int, int]]:
    """The port and the number of the process; 0 and 0 on stdio, where the client starts it."""
    if transport == "stdio":
        yield 0, 0
        return
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = subprocess.Popen(_words(who, transport, port, folder), stderr=subprocess.DEVNULL)
    try:
        while not _listens(port):
            if server.poll() is not None:
                raise RuntimeError(f"the server {who} ended before it listened")
            time.sleep(0.01)
        yield port, server.pid
    finally:
        server.kill()
        server.wait()


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except ConnectionRefusedError:
        return False
    return True


@asynccontextmanager
async def open_client(
    who: str, way: str, folder: str, at: tuple[int, int], **more: Any
) -> AsyncIterator[tuple[Client, int]]:
    """A connected client, and the number of its server's process. `more`: for the client."""
    port, pid = at
    url = f"http://127.0.0.1:{port}"
    if way == "stdio":
        python, *words = _words(who, "stdio", 0, folder)
        server = stdio_client(StdioServerParameters(command=python, args=words))
        async with Client(server, mode=WAYS[way], **more) as client:
            yield client, youngest_child()
    else:
        async with Client(sse_client(f"{url}/sse") if way == "sse" else f"{url}/mcp", mode=WAYS[way], **more) as client:
            yield client, pid


def youngest_child() -> int:
    me = os.getpid()
    return int(Path(f"/proc/{me}/task/{me}/children").read_text(encoding="utf-8").split()[-1])
