"""What a set-up on PostgreSQL takes: a server over HTTP that drives nothing, a worker, and the database, apart.

Runs of 3 and of 40 rounds by a script that answers at once. 8, 64 or 256 clients at a time start a run each and wait
for it. Each round but the last reads a small file. `python -m benchmarks sizing`, or `sizing --abreast 64 --rounds 3`.
Clients are of eight principals behind a proxy, since each principal and each address has at most a quarter of a
server's places.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx2

from benchmarks.workers import HERTZ, Database
from kairos_mcp.store.postgres.connection import connect
from kairos_mcp.store.postgres.session import PostgresSession

ABREAST = (8, 64, 256)
ROUNDS = (3, 40)
RUNS = 64  # at least
WARM = 16
PRINCIPALS = 8
START_S, RUN_S = 60.0, 300.0
META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "sizing", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}


class Taken(NamedTuple):
    """What a run took: CPU in milliseconds of each part, transactions, bytes in the database; seconds from its start to
    its end as its client saw them, in the middle and of 99 in 100; MB of memory at the end."""

    server_ms: float
    worker_ms: float
    database_ms: float
    transactions: float
    bytes: float
    median_s: float
    p99_s: float
    server_mb: float
    worker_mb: float


def figures(abreast: int = 0, rounds: int = 0, runs: int = RUNS) -> dict[str, float]:
    """Measure runs of `rounds` rounds, `abreast` at once, at least `runs` of them; 0: all that are listed."""
    found = {}
    for length in (rounds,) if rounds else ROUNDS:
        for count in (abreast,) if abreast else ABREAST:
            taken = measure(length, count, max(runs, count))
            print(table_row(length, count, taken), file=sys.stderr)
            found |= {f"{name}_{length}_rounds_{count}_at_once": value for name, value in taken._asdict().items()}
    return found


def table_row(rounds: int, abreast: int, taken: Taken) -> str:
    """Return a row of the table in docs/operations.md."""
    cpu = f"{taken.server_ms:.1f} | {taken.worker_ms:.1f} | {taken.database_ms:.1f}"
    times = f"{taken.median_s:.2f}, {taken.p99_s:.2f}"
    sizes = f"{taken.bytes / 1000:.0f} | {taken.server_mb:.0f}, {taken.worker_mb:.0f}"
    return f"| {rounds} | {abreast} | {cpu} | {taken.transactions:.1f} | {times} | {sizes} |"


def measure(rounds: int, abreast: int, count: int) -> Taken:
    """Measure one set-up of its own."""
    with tempfile.TemporaryDirectory(prefix="kairos-sizing-") as folder, set_up(Path(folder), rounds) as place:
        asyncio.run(place.drive(min(WARM, count), abreast))
        before = place.read()
        times = sorted(asyncio.run(place.drive(count, abreast)))
        after = place.read()
        cpu = [(now - then) / count * 1000 for now, then in zip(after.cpu, before.cpu, strict=True)]
        transactions, size = after.transactions - before.transactions, after.size - before.size
        middle, late = times[len(times) // 2], times[int(len(times) * 0.99)]
        return Taken(*cpu, transactions / count, size / count, middle, late, *place.memory_mb())


class Reading(NamedTuple):
    """CPU of server, worker and database so far, in seconds; transactions, and bytes, of the database."""

    cpu: tuple[float, float, float]
    transactions: int
    size: int


class Place:
    """A server and a worker on a database."""

    def __init__(self, folder: Path, rounds: int, database: Database) -> None:
        self._folder, self._database, self._goals = folder, database, 0
        self._store = database.make_schema()
        (folder / "home").mkdir(mode=0o700)
        (folder / "home" / "kairos.toml").write_text('trusted_proxies = ["127.0.0.1"]\n')
        (folder / "files").mkdir()
        lines: list[dict[str, Any]] = []
        for number in range(rounds - 1):  # a file of its own: a loop that repeats itself is stopped
            (folder / "files" / f"{number}.txt").write_text(f"alpha {number}\n" * 20)
            call = {"name": "read_file", "arguments": {"path": f"{number}.txt"}}
            lines.append({"content": f"look {number}", "tool_calls": [call]})
        lines.append({"content": "done", "finish": "stop"})
        (folder / "script.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        with socket.create_server(("127.0.0.1", 0)) as taken:
            self._port: int = taken.getsockname()[1]
        self._tokens = [self._run("token", "add", f"team-{n}").split()[-1] for n in range(PRINCIPALS)]
        self.server = self._start(
            *("serve", "--transport", "http", "--port", str(self._port), "--no-drive", "--workspace", "files")
        )
        self.worker = self._start("work", "--slots", "512", "--workspace", "files")
        until = time.monotonic() + START_S
        while not self._is_ready():
            assert time.monotonic() < until, "the server was not ready"
            time.sleep(0.1)

    def end(self) -> None:
        for each in (self.server, self.worker):
            each.kill()
            each.wait()

    async def drive(self, count: int, abreast: int) -> list[float]:
        """Start `count` runs, `abreast` at a time, and wait for each; return how long each took."""
        self._goals += 1
        gate, limits = asyncio.Semaphore(abreast), httpx2.Limits(max_connections=abreast)
        headers = {"Accept": "application/json, text/event-stream"}
        async with httpx2.AsyncClient(headers=headers, timeout=RUN_S, limits=limits) as client:

            async def run(number: int) -> float:
                async with gate:
                    began, who = time.monotonic(), number % PRINCIPALS
                    goal = {"goal": f"Look {self._goals} {number}.", "wait_s": 0, "limits": {"rounds": 100}}
                    run_id = (await self._call(client, who, "planner_run", goal))["run_id"]
                    while True:
                        asked = {"run_ids": [run_id], "until": "done", "wait_s": 20}
                        (found,) = (await self._call(client, who, "run_status", asked))["runs"]
                        if found["status"] == "completed":
                            return time.monotonic() - began
                        assert found["status"] in ("working", "paused"), found

            return await asyncio.wait_for(asyncio.gather(*map(run, range(count))), RUN_S)

    async def _call(self, client: httpx2.AsyncClient, who: int, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call"}
        body["params"] = {"name": tool, "arguments": arguments, "_meta": META}
        headers = {"MCP-Protocol-Version": "2026-07-28", "MCP-Method": "tools/call", "MCP-Name": tool}
        headers |= {"Authorization": f"Bearer {self._tokens[who]}", "X-Forwarded-For": f"192.0.2.{who}"}
        answer = await client.post(f"http://127.0.0.1:{self._port}/mcp", json=body, headers=headers)
        text = answer.text  # a call that waits for long is answered on a stream
        told = json.loads(text if text.startswith("{") else text.rpartition("data: ")[2])
        assert "result" in told, told
        found: dict[str, Any] = told["result"]["structuredContent"]
        return found

    def read(self) -> Reading:
        """Read what was used so far."""
        with closing(PostgresSession(connect(self._store))) as session:
            session.rows("select pg_stat_clear_snapshot()")
            ((transactions, size),) = session.rows(
                "select (select xact_commit from pg_stat_database where datname = current_database()),"
                " (select sum(pg_total_relation_size(oid)) from pg_class where relkind = 'r'"
                " and relnamespace = current_schema()::regnamespace)"
            )
        cpu = (_cpu_s(self.server.pid), _cpu_s(self.worker.pid), self._database.spent_s())
        return Reading(cpu, transactions, int(size))

    def memory_mb(self) -> tuple[float, float]:
        """Return the memory of server and worker."""
        server, worker = (_memory_mb(each.pid) for each in (self.server, self.worker))
        return server, worker

    def _is_ready(self) -> bool:
        try:
            return httpx2.get(f"http://127.0.0.1:{self._port}/readyz").status_code == 200
        except httpx2.HTTPError:
            return False

    def _run(self, *words: str) -> str:
        done = subprocess.run(
            self._words(*words), env=self._environ(), cwd=self._folder, capture_output=True, text=True, check=True
        )
        return done.stdout

    def _start(self, *words: str) -> subprocess.Popen[bytes]:
        with (self._folder / "log").open("ab") as log:
            streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
            return subprocess.Popen(self._words(*words), env=self._environ(), cwd=self._folder, **streams)

    def _words(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "kairos_mcp", *words, "--home", str(self._folder / "home")]

    def _environ(self) -> dict[str, str]:
        plain = {name: value for name, value in os.environ.items() if not name.startswith("KAIROS_")}
        rates = {"KAIROS_RATE_LIMIT": "100000", "KAIROS_RATE_BURST": "100000"}
        return {
            **plain, **rates, "KAIROS_STORE": self._store, "KAIROS_SCRIPT": str(self._folder / "script.jsonl")
        }  # fmt: skip


@contextmanager
def set_up(folder: Path, rounds: int) -> Iterator[Place]:
    """A database of its own, a server and a worker, until the block ends."""
    database = Database(folder / "pg")
    try:
        place = Place(folder, rounds, database)
        try:
            yield place
        finally:
            place.end()
    finally:
        database.close()


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / HERTZ


def _memory_mb(pid: int) -> float:
    (line,) = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS")]
    return int(line.split()[1]) / 1000
