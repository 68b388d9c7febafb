"""What one round runs, as counts that a busy machine does not change: statements, calls of functions, and operations of
the interpreter; over the middle of a run, so without its start, where a script is parsed.

A round has two steps, so the rounds are counted by the rows of steps. The counters stand in front of the connections
that apsw opens and in the interpreter's trace of the thread; nothing of the app is changed, but that a run lets others
have the event loop at every commit (runs side by side) or never, and not by the clock.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import apsw

from benchmarks import subjects, team
from benchmarks.fresh import fresh
from benchmarks.growth import BY_THE_CLOCK
from benchmarks.parked import answered
from benchmarks.resumed import waiting_settings
from kairos_mcp.app.app import App
from kairos_mcp.core.limits import Limits
from kairos_mcp.core.run_spec import PlannerRequest
from kairos_mcp.execution import worker

COUNTS = ("statements", "calls", "operations")
NEVER_S = 1e9


class Counting:
    """Totals, and how they stood at each commit."""

    def __init__(self, lets_others_after_s: float = NEVER_S) -> None:
        self._totals: Counter[str] = Counter()
        self._at_commit: list[Counter[str]] = []
        self._is_on = False
        apsw.connection_hooks.append(self._count_statements)
        worker.KEEPS_LOOP_S = lets_others_after_s

    def __enter__(self) -> None:
        self._is_on = True
        sys.settrace(self._on_call)

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)
        self._is_on = False

    def a_round(self) -> dict[str, float]:
        """A round's counts, over the middle half of the commits."""
        quarter = len(self._at_commit) // 4
        first, last = self._at_commit[quarter], self._at_commit[-quarter]
        rounds = (last["steps"] - first["steps"]) / 2
        return {name: (last[name] - first[name]) / rounds for name in COUNTS}

    def _on_call(self, frame: FrameType, _event: str, _argument: Any) -> Any:
        if frame.f_code.co_filename == __file__:
            return None
        self._totals["calls"] += 1
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        return self._on_operation

    def _on_operation(self, _frame: FrameType, event: str, _argument: Any) -> Any:
        if event == "opcode":
            self._totals["operations"] += 1
        return self._on_operation

    def _count_statements(self, connection: Any) -> None:
        def ran(_cursor: object, statement: str, _bindings: Any) -> bool:
            if self._is_on and all(part not in statement for part in BY_THE_CLOCK):
                self._totals["statements"] += 1
                self._totals["steps"] += statement.startswith("insert into step(")
                if statement == "commit":
                    self._at_commit.append(Counter(self._totals))
            return True

        connection.exec_trace = ran


async def planner(folder: Path, rounds: int, tool: str = "read_file") -> dict[str, float]:
    """A run whose model answers by script."""
    counting, chosen = Counting(), subjects.settings(folder, rounds, "process", tool)
    async with subjects.open_app(chosen, noop=tool == "noop") as app:
        with counting:
            runs = await subjects.start(app, rounds, ["counted"])
            await subjects.ended(app, runs)
        await subjects.must_have_run(app, runs, rounds)
    return counting.a_round()


async def caller(folder: Path, rounds: int) -> dict[str, float]:
    """A run whose completions its caller brings."""
    counting = Counting()
    async with App.open(waiting_settings(folder), via="serve") as app:
        request = PlannerRequest("counted", route="caller", limits=Limits(rounds=rounds + 3))
        run = (await app.runs.start(request, subjects.ME)).run_id
        await answered(app, run, 2)
        with counting:
            await answered(app, run, rounds, 3)
    return counting.a_round()


async def tasks(folder: Path, rounds: int, count: int = 8) -> dict[str, float]:
    """Independent tasks of one run."""
    counting = Counting()
    async with App.open(team.settings(folder, count, rounds), via="serve") as app:
        await subjects.ended(app, [await team.start(app, 2, rounds)])  # warm
        with counting:
            run = await team.start(app, count, rounds)
            await subjects.ended(app, [run])
        await team.must_have_run(app, run, count, rounds)
    return counting.a_round()


async def abreast(folder: Path, rounds: int, count: int = 8) -> dict[str, float]:
    """Runs side by side."""
    counting = Counting(lets_others_after_s=0)
    async with subjects.open_app(subjects.settings(folder, rounds, "process")) as app:
        with counting:
            runs = await subjects.start(app, rounds, [f"run {n}" for n in range(count)])
            await subjects.ended(app, runs)
        await subjects.must_have_run(app, runs, rounds)
    return counting.a_round()


SUBJECTS: dict[str, tuple[Any, ...]] = {
    "reading": (planner,),
    "noop": (planner, "noop"),
    "caller": (caller,),
    "tasks": (tasks,),
    "abreast": (abreast,),
}


def figures(rounds: int = 40) -> dict[str, float]:
    return {
        f"{name}_{count}": figure
        for name, (subject, *more) in SUBJECTS.items()
        for count, figure in fresh(subject, rounds, *more).items()
    }
