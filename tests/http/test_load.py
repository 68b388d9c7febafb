"""Many clients at once: every run ends, the memory stays, and no client that hurts itself hurts another.

By default a sample; `-m slow` takes 64 clients with 1,000 runs, and kills one of two servers every few seconds.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import anyio
import pytest
from support.app import Place, assert_lawful
from support.hostile_clients import drips, misbehaves, never_reads, vanishes
from support.http_server import SECONDS, Site
from support.proxy import RoundRobin

from kairos_mcp.server.http_bounds import RequestBounds

WAYS = ("modern http", "legacy http")
NO_RATE = RequestBounds(calls_per_s=10_000, burst=10_000, sessions=256)  # all clients here are one principal
SAMPLES = 10  # of the memory
MB = 1 << 20
LONGEST_S = 30.0  # that a run of one round may take among all others, on a loaded machine


@pytest.mark.parametrize(("clients", "runs"), [(4, 12), pytest.param(64, 1_000, marks=pytest.mark.slow)])
async def test_every_run_of_many_clients_ends_and_the_memory_stays(
    sites: Callable[..., Site], write_script: Callable[..., None], clients: int, runs: int
) -> None:
    look = {"tool_calls": [{"name": "read_file", "arguments": {"path": "a.txt"}}]}
    write_script(look, {"content": "done", "finish": "stop"})
    site = sites(NO_RATE)
    numbers, took, memory = iter(range(runs)), list[float](), list[int]()

    async def work(way: str) -> None:
        async with site.client(way) as client:
            for number in numbers:
                began = time.monotonic()
                result = (await client.call_tool("planner_run", {"goal": f"{way}, number {number}"})).structured_content
                assert (result["status"], result["rounds"]) == ("completed", 2), result
                took.append(time.monotonic() - began)
                if len(took) % (runs // SAMPLES) == 0:
                    memory.append(site.resident_bytes())

    began = time.monotonic()
    async with anyio.create_task_group() as tasks:
        for number in range(clients):
            tasks.start_soon(work, WAYS[number % len(WAYS)])
    seconds = time.monotonic() - began
    place = Place(site.home.parent)
    assert place.rows("select count(*), count(*) - count(outcome) from run") == [(runs, 0)]
    for (run_id,) in place.rows("select id from run"):
        assert_lawful(place, run_id)
    assert max(took) < LONGEST_S
    half = len(memory) // 2  # until then connections, caches and the allocator fill
    assert max(memory[half:]) - memory[half] < 4 * MB, memory
    assert site.is_quiet()
    took.sort()
    print(
        f"\n{clients} clients, {runs} runs in {seconds:.1f} s ({runs / seconds:.1f} a second); a run: median"
        f" {took[len(took) // 2]:.2f} s, longest {took[-1]:.2f} s; MB {[round(each / MB, 1) for each in memory]}"
    )


@pytest.mark.parametrize("seconds", [1.5, pytest.param(30.0, marks=pytest.mark.slow)])
async def test_a_slow_a_vanished_and_a_hostile_client_hurt_no_other(
    sites: Callable[..., Site], write_script: Callable[..., None], seconds: float
) -> None:
    write_script({"content": "done", "finish": "stop"})
    site = sites(NO_RATE)
    until, took = time.monotonic() + seconds, list[float]()

    async def work(way: str) -> None:
        async with site.client(way) as client:
            for number in count():
                began = time.monotonic()
                result = (await client.call_tool("planner_run", {"goal": f"{way}, number {number}"})).structured_content
                assert result["status"] == "completed", result
                took.append(time.monotonic() - began)
                if time.monotonic() >= until:
                    return

    async with anyio.create_task_group() as tasks:
        for hurts in (drips, never_reads, vanishes):
            tasks.start_soon(anyio.to_thread.run_sync, hurts, site, until)
        tasks.start_soon(anyio.to_thread.run_sync, misbehaves, site, Random(1), until)
        for way in WAYS:
            tasks.start_soon(work, way)
    assert max(took) < LONGEST_S
    place = Place(site.home.parent)
    ended = place.rows("select count(*) from run where outcome is not null and via = 'mcp' and route = 'scripted'")
    assert ended == [(len(took),)]
    assert site.still_answers()
    assert site.is_quiet()
    print(f"\n{len(took)} runs beside clients that hurt, in {seconds:g} s; the longest {max(took):.2f} s")


class KilledServers:
    """Two servers behind one address, of which one after the other is killed and started again. Of the calls that were
    under way one was answered before the next is killed: else none ever is where servers start slowly."""

    def __init__(self, start: Callable[[], Site], proxy: RoundRobin, every_s: float) -> None:
        self._start = start
        self._proxy = proxy
        self._every_s = every_s
        self._done = threading.Event()
        self._answered = threading.Event()
        self._thread = threading.Thread(target=self._kill)
        self.sites = [start(), start()]
        proxy.ports = [site.port for site in self.sites]
        self._address = Site(self.sites[0].server, self.sites[0].home, self.sites[0].token, port=proxy.port)
        self.kills = 0

    def __enter__(self) -> KilledServers:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _kill(self) -> None:
        while not self._done.wait(self._every_s):
            if not self._answered.is_set():
                continue
            self._answered.clear()
            place = self.kills % 2
            self.sites[place].server.kill()
            self.sites[place].server.wait(SECONDS)
            self.kills += 1
            self.sites[place] = self._start()
            self._proxy.ports = [site.port for site in self.sites]

    def ask(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """The result of a call, made again as often as its server is killed in the middle."""
        until = time.monotonic() + 60
        while time.monotonic() < until:
            with suppress(OSError, AssertionError, json.JSONDecodeError, IndexError):  # it broke off
                answer = self._address.call(name, arguments)
                result: dict[str, Any] = answer.json["result"]["structuredContent"]
                if not result.get("retryable"):
                    self._answered.set()
                    return result
            time.sleep(0.02)
        raise AssertionError(f"{name} was never answered")


@pytest.fixture
def proxy() -> Iterator[RoundRobin]:
    proxy = RoundRobin([]).start()
    yield proxy
    proxy.stop()


def do_run(servers: KilledServers, number: int) -> str:
    """Bring one run to its end, as the model that it asks: it writes a file of its own."""
    write = {"path": f"out-{number}.txt", "content": f"number {number}\n"}
    answers = {
        "round-1": {"tool_calls": [{"id": "c", "name": "write_file", "arguments": write}]},
        "round-2": {"content": f"wrote {number}", "finish": "stop"},
    }
    start = {"goal": f"write {number}", "route": "caller", "tools": ["write_file"], "key": f"key-{number}"}
    run = servers.ask("planner_run", start)
    run_id: str = run["run_id"]
    while run["status"] != "completed":
        assert run.get("code") in (None, "already_answered", "not_waiting"), run
        waits = [item["key"] for item in run.get("waiting", ())]
        if waits:
            run = servers.ask("run_continue", {"run_id": run_id, "answers": {key: answers[key] for key in waits}})
        else:
            looks = {"run_ids": [run_id], "until": "attention", "wait_s": 1, "view": "full"}
            looked = servers.ask("run_status", looks)
            (run,) = looked["runs"]
    return run_id


@pytest.mark.parametrize(
    ("clients", "runs", "every_s"), [(4, 8, 0.05), pytest.param(16, 400, 3.0, marks=pytest.mark.slow)]
)
def test_of_two_servers_one_is_killed_again_and_again_and_nothing_is_lost_or_done_twice(
    sites: Callable[..., Site], proxy: RoundRobin, tmp_path: Path, clients: int, runs: int, every_s: float
) -> None:
    place = Place(tmp_path / "place")
    place.home.mkdir(mode=0o700, parents=True)
    (place.home / "kairos.toml").write_text('[[gate]]\ntools = "write_file"\nverdict = "allow"\n')

    def start() -> Site:
        return sites(NO_RATE, names=(f"127.0.0.1:{proxy.port}",))

    began = time.monotonic()
    with KilledServers(start, proxy, every_s) as servers, ThreadPoolExecutor(clients) as pool:
        run_ids = list(pool.map(lambda number: do_run(servers, number), range(runs)))
    seconds = time.monotonic() - began
    assert servers.kills >= 1
    assert len(set(run_ids)) == runs
    assert place.rows("select count(*), count(*) - count(outcome), count(distinct key) from run") == [(runs, 0, runs)]
    written = {path.name: path.read_text() for path in place.workspace.glob("out-*.txt")}
    assert written == {f"out-{number}.txt": f"number {number}\n" for number in range(runs)}
    for run_id in run_ids:
        assert_lawful(place, run_id)
        paths = place.rows("select path from step join run on run.n = step.run where run.id = ? order by path", run_id)
        assert paths == [("round-1",), ("round-1/call-1",), ("round-2",)]
    (of_runs,) = place.rows("select sum(spent_model_calls), sum(held_model_calls) from account where scope = 'run'")
    (of_days,) = place.rows("select sum(spent_model_calls), sum(held_model_calls) from account where scope = 'day'")
    assert of_runs == of_days == (2 * runs, 0)
    print(f"\n{clients} clients, {runs} runs in {seconds:.1f} s, {servers.kills} times a server killed")
