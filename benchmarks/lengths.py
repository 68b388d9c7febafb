"""CPU of a look at a run and of an answer that its caller brings, in a run of many rounds by one of few."""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median

from benchmarks import subjects
from benchmarks.fresh import fresh
from benchmarks.parked import answered
from benchmarks.resumed import waiting_settings
from kairos_mcp.app.app import App
from kairos_mcp.core.limits import Limits
from kairos_mcp.core.run_spec import PlannerRequest

LOOKS = 50
ROUNDS = 20  # answered at each length, for one figure


async def lengths(folder: Path, few: int, many: int) -> dict[str, float]:
    """CPU in microseconds: of a report, and of a round on the caller's route, after so few and so many rounds."""
    async with App.open(waiting_settings(folder), via="serve") as app:
        limits = Limits(rounds=many + 3 * ROUNDS)
        request = PlannerRequest("measured", route="caller", limits=limits)
        run = (await app.runs.start_planner(request, subjects.ME)).run_id
        await answered(app, run, few)
        found = {f"{name}_at_{few}": figure for name, figure in (await _measured(app, run, few)).items()}
        await answered(app, run, many - few - ROUNDS, few + ROUNDS + 1)
        return found | {f"{name}_at_{many}": figure for name, figure in (await _measured(app, run, many)).items()}


async def _measured(app: App, run: str, rounds: int) -> dict[str, float]:
    looks: list[float] = []
    for _ in range(LOOKS):
        began = time.process_time()
        app.runs.report(run, subjects.ME, full=False)
        looks.append(time.process_time() - began)
    began = time.process_time()
    await answered(app, run, ROUNDS, rounds + 1)
    return {"report_us": min(looks) * 1e6, "round_us": (time.process_time() - began) / ROUNDS * 1e6}


def figures(few: int = 10, many: int = 1_000, times: int = 5) -> dict[str, float]:
    found = [fresh(lengths, few, many) for _ in range(times)]
    middle = {name: median(each[name] for each in found) for name in found[0]}
    grows = {
        f"{name}_grows": median(each[f"{name}_us_at_{many}"] / each[f"{name}_us_at_{few}"] for each in found)
        for name in ("report", "round")
    }
    return middle | grows
