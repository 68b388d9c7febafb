"""How much of a budget a run can use that meets it: all but what a last round might have taken beyond its closing."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from statistics import median

import pytest
from support.app import ME, Place, start_run
from support.daily_accounts import ZONE, Clock, app_at
from support.provider_server import Standin, calls, talks

from kairos_mcp.core.limits import Limits

ROUNDS, BUDGETS = 20, 4
SHAPES: dict[str, Callable[[int], tuple[int, int]]] = {  # tokens read and written in the nth round
    "small": lambda n: (1_000, 100),
    "even": lambda n: (6_000, 300),
    "growing": lambda n: (1_200 + 450 * n, 300),
    "growing fast": lambda n: (3_000 + 1_500 * n, 500),
}


def spent_and_granted(place: Place, run_id: str) -> tuple[int, int]:
    """Tokens that the run has spent, and those that it would have spent had its closing written all it might."""
    rows = place.rows(
        "select path, held, spent from step join answer on answer.step = step.id join run on run.n = step.run"
        " where run.id = ?",
        run_id,
    )
    steps = [(path == "closing", json.loads(held or spent)[4], json.loads(spent)[4]) for path, held, spent in rows]
    return sum(spent for *_, spent in steps), sum(held if closing else spent for closing, held, spent in steps)


@pytest.mark.parametrize(
    ("shape", "budgets"),
    [("growing", 1), *[pytest.param(shape, BUDGETS, marks=pytest.mark.slow) for shape in SHAPES]],
)
async def test_a_run_that_meets_its_budget_could_use_nearly_all_of_it(
    place: Place, server: Standin, shape: str, budgets: int
) -> None:
    """With usage reported, and 20 rounds and more: what is kept for the closing is the closing's to use."""
    settings = place.settings(model="openai:small", base_url=server.openai, time_zone=ZONE)
    used, could, rounds_of = [], [], []
    async with app_at(settings, Clock()) as app:
        for nth in range(budgets):
            rounds = ROUNDS + 6 * nth + 4
            tokens = [sum(SHAPES[shape](n)) for n in range(rounds + 1)]
            cap = sum(tokens) + random.Random(nth).randrange(tokens[-1])
            server.replies.clear()
            for n in range(2 * rounds):
                asked = calls(("read_file", {"path": "a.txt", "start_line": n + 1}))
                server.will(talks(None, asked, finish="tool_calls", usage=(*SHAPES[shape](n), 0)))
            run_id = await start_run(app, f"{nth}", tools=("read_file",), limits=Limits(total_tokens=cap, rounds=99))
            report = await app.runs.report(run_id, ME)
            assert (report.stop_reason, report.rounds >= ROUNDS) == ("budget", True)
            rounds_of.append(report.rounds)
            spent, granted = spent_and_granted(place, run_id)
            assert spent <= granted <= cap
            used.append(spent / cap)
            could.append(granted / cap)
    spread = f"{min(rounds_of)} to {max(rounds_of)} rounds; used {min(used):.1%} to {max(used):.1%}"
    print(f"{shape}: {spread}; usable {min(could):.1%}, median {median(could):.1%}")
    assert min(could) >= 0.95
