"""Memory of a caller-route run of 20 rounds that waits for its next answer: kept unfolded, and let go of.

The app keeps the flows of at most MAX_PARKED parked runs; the others it rebuilds from their rows when an answer comes.
"""

from __future__ import annotations

import gc
import tracemalloc
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import median

from benchmarks import subjects
from benchmarks.fresh import fresh
from kairos_mcp.app.app import App
from kairos_mcp.app.run_pool import MAX_PARKED
from kairos_mcp.core.limits import Limits
from kairos_mcp.core.run_spec import PlannerRequest

GROUP = 4  # runs between two looks; a table that doubles once is then one group, not a part of each run


async def grown(folder: Path, runs: int, rounds: int) -> tuple[float, float]:
    """Bytes a run, the median of groups: of those that are kept, then of those after, each of which lets one go."""
    chosen = replace(subjects.settings(folder, 1, "process"), script=None)
    kept = min(MAX_PARKED, runs // 2)
    async with App.open(chosen, via="serve") as app:
        await _park(app, GROUP, rounds, "warm")
        sizes = [_size()]
        for n in range(GROUP, runs, GROUP):
            await _park(app, GROUP, rounds, f"from {n}")
            sizes.append(_size())
    each = [(after - before) / GROUP for before, after in pairwise(sizes)]
    return median(each[: kept // GROUP - 1]), median(each[kept // GROUP - 1 :])


async def _park(app: App, runs: int, rounds: int, name: str) -> None:
    for n in range(runs):
        request = PlannerRequest(f"{name} {n}", route="caller", limits=Limits(rounds=100))
        run = (await app.runs.start(request, subjects.ME)).run_id
        await answered(app, run, rounds)


async def answered(app: App, run: str, rounds: int, first: int = 1) -> None:
    """Bring the answers of so many rounds, from this one on; the run then waits for the next one."""
    await app.runs.wait([run], until="rest", wait_s=60, caller=subjects.ME)
    for n in range(first, first + rounds):
        await app.answers.submit(run, {f"round-{n}": subjects.turn(n, "read_file")}, subjects.ME)
        await app.runs.wait([run], until="rest", wait_s=60, caller=subjects.ME)
    looked = await app.runs.report(run, subjects.ME, full=False)  # a full one shows every message, which no answer does
    assert [item["key"] for item in looked.waiting] == [f"round-{first + rounds}"]


def _size() -> int:
    gc.collect()
    if tracemalloc.is_tracing():
        return tracemalloc.get_traced_memory()[0]
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * 4096


def figures(runs: int = 200, rounds: int = 20) -> dict[str, float]:
    measured = {}
    # traced from the start: else what grows by moving (the table of interned texts) is told as new
    for name, under in (("allocated", ["env", "PYTHONTRACEMALLOC=1"]), ("resident", [])):
        kept, dropped = fresh(grown, runs, rounds, under=under)
        measured |= {f"{name}_kb_kept": kept / 1024, f"{name}_kb_let_go": dropped / 1024}
    return measured
