"""Chaos: two servers on one store, each killed every few seconds: every run ends, and every sum is that of its rows.

Every second run is a team's, with tasks side by side.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import random
import signal
import threading
import time
from collections.abc import Iterator

import pytest
from support.app import Books, Place, place_in, reads, says
from support.branches import assert_books_agree
from support.stdio_server import Gone, StdioClient

from kairos_mcp.core.outcomes import Outcome

DAY = "[day]\nmodel_calls = 1_000_000\ntotal_tokens = 10_000_000_000\n"  # 2,000 runs use more than a day's default
TASKS = ("left", "right")
PLAN = {
    "analysis": "Two files, and what they have in common.",
    "strategy": "decomposed",
    "tasks": [
        *({"id": task, "agent": "search_specialist", "description": f"Read the {task} file."} for task in TASKS),
        {"id": "both", "agent": "code_analyzer", "description": "Compare them.", "depends_on": list(TASKS)},
    ],
}
LINES = (
    *(reads("a.txt", "b.txt"), reads("b.txt"), says("done")),
    *({"for": f"task-{n}/try-1/round-1", **reads("a.txt", "b.txt")} for n in (1, 2, 3)),
    *({"for": f"task-{n}/try-1/round-2", **says("found")} for n in (1, 2, 3)),
    {"for": "synthesis", **says("all of it")},
)


def killed_at_random(place: Place, wanted: queue.Queue[int], ttl_s: tuple[float, float], seed: int) -> None:
    """Start servers one after the other, each killed after a while, and ask each for the runs that are wanted."""
    moment = random.Random(seed)
    while not wanted.empty():
        client = StdioClient.start(place)
        killer = threading.Timer(moment.uniform(*ttl_s), kill, (client.pid,))
        try:
            client.call("run_status")  # a server on a busy machine may need long for its first answer
            killer.start()
            with contextlib.suppress(Gone, BrokenPipeError, ValueError):  # the last line may be cut
                ask_for(client, wanted)
        finally:
            killer.cancel()
            client.close()


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def ask_for(client: StdioClient, wanted: queue.Queue[int]) -> None:
    for n in take_numbers(wanted):
        try:
            how = {"goal": f"run {n}", "key": f"run-{n}", "wait_s": random.Random(n).choice((0, 0, 5))}
            client.call("planner_run", **how) if n % 2 else client.call("team_run", plan=PLAN, **how)
        except BaseException:
            wanted.put(n)  # nobody heard whether it was started: the key makes asking again harmless
            raise


def take_numbers(wanted: queue.Queue[int]) -> Iterator[int]:
    with contextlib.suppress(queue.Empty):
        while True:
            yield wanted.get_nowait()


def assert_every_run_ends(place: Place, runs: int, ttl_s: tuple[float, float]) -> None:
    place.script.write_text("".join(json.dumps(line) + "\n" for line in LINES))
    place.home.mkdir(mode=0o700)
    (place.home / "kairos.toml").write_text(DAY)
    wanted: queue.Queue[int] = queue.Queue()
    for n in range(runs):
        wanted.put(n)
    pair = [
        threading.Thread(target=killed_at_random, args=(place, wanted, ttl_s, seed), daemon=True) for seed in (1, 2)
    ]
    for each in pair:
        each.start()
    for each in pair:
        each.join()
    with StdioClient.start(place) as last:
        all_ended(place, last)
    assert place.rows("select count(*), count(outcome) from run") == [(runs, runs)]
    assert place.rows("select json_extract(outcome, '$.stop_reason'), count(*) from run group by 1 order by 1") == [
        ("assistant_stop", runs // 2),
        ("team_done", runs - runs // 2),
    ]
    steps = "select flow, count(*) from run join step on run = n group by run.n"
    assert {(flow, count) for flow, count in place.rows(steps)} == {("planner", 6), ("team", 13)}
    assert place.store().find_damage(Outcome) == []
    for (run_id,) in place.rows("select id from run"):
        books = Books.of(place, run_id)
        assert (books.held, books.spent) == (books.held_by_rows, books.spent_by_rows), run_id
    assert_books_agree(place)


def all_ended(place: Place, last: StdioClient) -> None:
    """The last server goes on with whatever the killed ones left; nobody has to name the runs."""
    until = time.monotonic() + 120
    while open_runs := [run_id for (run_id,) in place.rows("select id from run where outcome is null limit 10")]:
        assert time.monotonic() < until, open_runs
        last.call("run_status", run_ids=open_runs, until="done", wait_s=10)


def test_a_short_chaos_ends_every_run_with_exact_sums(tmp_path_factory: pytest.TempPathFactory) -> None:
    assert_every_run_ends(place_in(tmp_path_factory.mktemp("chaos") / "place"), 12, (0.4, 1.2))


@pytest.mark.slow
def test_2000_runs_by_two_servers_that_are_killed_again_and_again(tmp_path_factory: pytest.TempPathFactory) -> None:
    assert_every_run_ends(place_in(tmp_path_factory.mktemp("chaos") / "place"), 2_000, (1.0, 5.0))
