"""Many runs side by side: CPU a round at `process` in rounds of the floor, commits a round at full durability."""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median
from typing import Any

import apsw

from benchmarks import rounds as alone
from benchmarks import subjects
from benchmarks.fresh import fresh
from kairos_mcp.settings.settings import Durability


async def kairos(folder: Path, runs: int, rounds: int, durability: Durability, tool: str) -> tuple[float, float]:
    """CPU seconds and commits, both a round."""
    commits = 0

    def trace(connection: Any) -> None:
        connection.exec_trace = ran

    def ran(_cursor: object, statement: str, _bindings: object) -> bool:
        nonlocal commits
        commits += statement == "commit"
        return True

    if durability == "full":  # a trace costs CPU, which is what the other measurement is of
        apsw.connection_hooks.append(trace)
    chosen = subjects.settings(folder, rounds, durability, tool)
    async with subjects.open_app(chosen, noop=tool == "noop") as app:
        started = await subjects.start(app, rounds, [f"run {n}" for n in range(runs)])
        before, began = commits, time.process_time()
        await subjects.ended(app, started)
        took, made = time.process_time() - began, commits - before
        await subjects.must_have_run(app, started, rounds)
    return took / (runs * rounds), made / (runs * rounds)


def figures(few: int = 8, many: int = 64, rounds: int = 100, times: int = 3) -> dict[str, float]:
    least = median(fresh(alone.floor, rounds) for _ in range(3 * times))
    measured: dict[str, float] = {}
    for runs in (few, many):
        for name, tool in (("reading", "read_file"), ("noop", "noop")):
            cpu = median(fresh(kairos, runs, rounds, "process", tool)[0] for _ in range(times))
            measured[f"round_{name}_of_{runs}"] = cpu / least
    one = fresh(kairos, 1, rounds, "full", "read_file")[1]
    measured["commits_of_1"] = one
    for runs in (few, many):
        commits = median(fresh(kairos, runs, rounds, "full", "read_file")[1] for _ in range(times))
        measured[f"commits_of_{runs}"] = commits / one
    return measured
