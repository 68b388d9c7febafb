"""CPU of another process going on with a run of 1,000 rounds, in whole runs of 100 rounds of the floor."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from statistics import median

from benchmarks import rounds as alone
from benchmarks import subjects
from benchmarks.fresh import fresh
from benchmarks.parked import answered
from kairos_mcp.app.app import App
from kairos_mcp.core.limits import Limits
from kairos_mcp.core.run_spec import PlannerRequest
from kairos_mcp.settings.settings import Settings


def waiting_settings(folder: Path) -> Settings:
    return replace(subjects.settings(folder, 1, "process"), script=None)


async def waiting(folder: Path, rounds: int) -> str:
    """A run of so many rounds whose next answer is to come; its id."""
    async with App.open(waiting_settings(folder), via="serve") as app:
        request = PlannerRequest("measured", route="caller", limits=Limits(rounds=rounds + 5))
        run = (await app.runs.start(request, subjects.ME)).run_id
        await answered(app, run, rounds)
    return run


async def resume(folder: Path, run: str) -> tuple[float, float]:
    """CPU seconds: of folding the rows alone, and of bringing the last answer until the run has ended."""
    async with App.open(waiting_settings(folder), via="serve") as app:
        other = await app.runs.start(PlannerRequest("warm", route="caller"), subjects.ME)
        await answered(app, other.run_id, 2)
        began = time.process_time()
        waits = (await app.runs.report(run, subjects.ME, full=False)).waiting[0]["key"]
        await app.answers.submit(run, {waits: subjects.ENDS}, subjects.ME)
        await app.runs.wait([run], until="done", wait_s=60, caller=subjects.ME)
        resumed = time.process_time()
        assert (await app.runs.report(run, subjects.ME)).stop_reason == "assistant_stop"
        loaded = time.process_time()
        assert (await app.records.replay(run, subjects.ME)).identical
        folded = time.process_time()
    return folded - loaded, resumed - began


async def both(folder: Path, rounds: int) -> tuple[float, float]:
    """The run made here, and gone on with in a process that has never seen it."""
    run = await waiting(folder, rounds)
    folded, resumed = fresh(_resume_there, str(folder), run)
    return folded, resumed


async def _resume_there(_own: Path, folder: str, run: str) -> tuple[float, float]:
    return await resume(Path(folder), run)


def figures(rounds: int = 1_000, floor_rounds: int = 100, times: int = 5) -> dict[str, float]:
    found = [(fresh(alone.floor, floor_rounds) * floor_rounds, *fresh(both, rounds)) for _ in range(times)]
    return {
        "fold_ms": median(fold for _, fold, _ in found) * 1e3,
        "fold": median(fold / floor for floor, fold, _ in found),
        "resume": median(resumed / floor for floor, _, resumed in found),
    }
