"""Bytes of the state file per round, between runs of growing length: the same each time, if storage is linear."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from benchmarks import subjects
from benchmarks.fresh import fresh


async def stored(folder: Path, rounds: int) -> int:
    """Size of the file once the app is closed and the log is written back."""
    chosen = subjects.settings(folder, rounds, "process")
    async with subjects.open_app(chosen) as app:
        runs = await subjects.start(app, rounds, ["measured"])
        await subjects.ended(app, runs)
        await subjects.must_have_run(app, runs, rounds)
    return (chosen.home / "kairos.db").stat().st_size


def figures(first: int = 100) -> dict[str, float]:
    sizes = {rounds: fresh(stored, rounds) for rounds in (first, 2 * first, 4 * first, 8 * first)}
    return {f"bytes_a_round_to_{many}": (sizes[many] - sizes[few]) / (many - few) for few, many in pairwise(sizes)}
