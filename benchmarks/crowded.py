"""What a thousand registered tools change for a round that uses a handful: CPU of a round with them by one without."""

from __future__ import annotations

import time
from cProfile import Profile
from dataclasses import replace
from pathlib import Path
from statistics import median

from benchmarks import subjects
from benchmarks.fresh import fresh
from kairos_mcp.core.messages import ToolResult, ToolSpec
from kairos_mcp.core.tool import Tool
from kairos_mcp.tools.registry import ToolRegistry

SCHEMA = {
    "type": "object",
    "properties": {"text": {"type": "string", "description": "What to say."}, "times": {"type": "integer"}},
    "required": ["text"],
}


def _said(_arguments: object, _around: object) -> ToolResult:
    return ToolResult("said")


def crowd(tools: int) -> list[Tool]:
    """Tools as a downstream server brings them along: each with words and a schema of its own."""
    return [
        Tool(
            ToolSpec(
                f"many__tool_{n}",
                f"Does number {n}, in so many words.",
                SCHEMA,
                "idempotent",
                "mcp:many",
                reaches="service",
            ),
            _said,
        )
        for n in range(tools)
    ]


async def kairos(folder: Path, rounds: int, tools: int, *, counted: bool = False) -> tuple[float, float]:
    """CPU seconds a round, of starting the run (which freezes what it may find) and of running it, with so many
    tools beside those of the app, all of which the run may use. `counted`: calls of functions in place of the
    second, which are the same on a busy machine."""
    chosen = subjects.settings(folder, rounds, "process")
    async with subjects.open_app(chosen) as app:
        plain = app._context.factory.resources(app._context.factory.find_workspace(None))
        ours = [tool for spec in plain.registry.specs if (tool := plain.registry.find(spec.name)) is not None]
        means = replace(plain, registry=ToolRegistry([*ours, *crowd(tools)]))
        app._context.factory.resources = lambda _workspace: means
        began = time.process_time()
        runs = [await subjects.start_with(app, rounds, ("read_file", "many__*") if tools else ("read_file",))]
        started = time.process_time()
        profile = Profile()
        if counted:
            profile.enable()
        await subjects.ended(app, runs)
        ended = time.process_time()
        profile.disable()
        await subjects.must_have_run(app, runs, rounds)
    cost = sum(entry.callcount for entry in profile.getstats()) if counted else ended - started
    return (started - began) / rounds, cost / rounds


async def calls(folder: Path, rounds: int, tools: int) -> float:
    """Calls of functions a round."""
    return (await kairos(folder, rounds, tools, counted=True))[1]


def figures(rounds: int = 100, times: int = 9, tools: int = 1_000) -> dict[str, float]:
    few, many = [], []
    for _ in range(times):
        few.append(fresh(kairos, rounds, 0))
        many.append(fresh(kairos, rounds, tools))
    least = median(run for _, run in few)
    return {
        "round_us": least * 1e6,
        f"round_with_{tools}": median(run for _, run in many) / least,
        f"least_with_{tools}": min(run for _, run in many) / min(run for _, run in few),
        f"calls_with_{tools}": fresh(calls, rounds, tools) / fresh(calls, rounds, 0),
        f"start_ms_with_{tools}": median(start for start, _ in many) * rounds * 1e3,
        "start_ms": median(start for start, _ in few) * rounds * 1e3,
    }
