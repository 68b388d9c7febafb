"""CPU of one durable round (a completion and a call) at durability `process`, in rounds of the floor."""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median

from benchmarks import subjects
from benchmarks.fresh import fresh


async def floor(folder: Path, rounds: int) -> float:
    """CPU seconds a round."""
    opened = subjects.open_floor(folder, "process")
    await subjects.floor_run(opened, 5)
    began = time.process_time()
    await subjects.floor_run(opened, rounds)
    return (time.process_time() - began) / rounds


async def kairos(folder: Path, rounds: int, tool: str, shared: int = 1, threaded: bool = False) -> tuple[float, float]:
    """CPU seconds a round: of starting the run (its script is parsed there), and of running it. `shared`: how many
    accounts, beside the run's own, each call is charged to. `threaded`: what does nothing does it in a thread."""
    chosen = subjects.settings(folder, rounds, "process", tool)
    async with subjects.open_app(chosen, noop=tool == "noop", threaded=threaded) as app:
        await subjects.charge_to(app, shared)
        began = time.process_time()
        runs = await subjects.start(app, rounds, ["measured"])
        started = time.process_time()
        await subjects.ended(app, runs)
        ended = time.process_time()
        await subjects.must_have_run(app, runs, rounds)
    return (started - began) / rounds, (ended - started) / rounds


def figures(rounds: int = 100, times: int = 9) -> dict[str, float]:
    floors, reads, noops, threads, deep = [], [], [], [], []
    for _ in range(times):
        floors.append(fresh(floor, rounds))
        reads.append(fresh(kairos, rounds, "read_file"))
        noops.append(fresh(kairos, rounds, "noop"))
        threads.append(fresh(kairos, rounds, "noop", 1, True))
        deep.append(fresh(kairos, rounds, "read_file", 3))
    least = median(floors)
    return {
        "floor_us": least * 1e6,
        "round_reading": median(run for _, run in reads) / least,
        "round_noop": median(run for _, run in noops) / least,
        "round_noop_threaded": median(run for _, run in threads) / least,
        "round_four_deep": median(run for _, run in deep) / least,
        "start_a_round": median(start for start, _ in reads) / least,
    }
