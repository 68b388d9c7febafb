"""Full durability: how often the log is synced, counted by strace, and how long a round takes beside the floor's."""

from __future__ import annotations

import re
import shutil
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import subjects
from benchmarks.fresh import fresh

SYNCED = re.compile(r"f(?:data)?sync\(\d+<(?P<file>[^>]*)>\)\s+= 0")


async def floor(folder: Path, rounds: int) -> float:
    """Wall seconds a round."""
    opened = subjects.open_floor(folder, "full")
    await subjects.floor_run(opened, 2)
    began = time.perf_counter()
    await subjects.floor_run(opened, rounds)
    return (time.perf_counter() - began) / rounds


async def kairos(folder: Path, rounds: int) -> float:
    """Wall seconds a round."""
    async with subjects.open_app(subjects.settings(folder, rounds, "full")) as app:
        runs = await subjects.start(app, rounds, ["measured"])
        began = time.perf_counter()
        await subjects.ended(app, runs)
        took = time.perf_counter() - began
        await subjects.must_have_run(app, runs, rounds)
    return took / rounds


def syncs(sample: Any, rounds: int) -> tuple[int, int]:
    """Syncs of the log by commits, and checkpoints: each of these syncs the log and then the file itself."""
    with tempfile.TemporaryDirectory(prefix="kairos-strace-") as folder:
        measured = Path(folder, "told")
        # a call that another thread interrupts is told in two lines; -ff keeps each thread in a file of its own
        fresh(sample, rounds, under=["strace", "-ff", "-y", "-e", "trace=fsync,fdatasync", "-o", str(measured)])
        text = "".join(path.read_text() for path in Path(folder).iterdir())
    files = [match["file"] for match in SYNCED.finditer(text)]
    checkpoints = sum(file.endswith(".db") for file in files)
    return sum(file.endswith("-wal") for file in files) - checkpoints, checkpoints


def per_round(sample: Any, rounds: int) -> float:
    """From the difference of two runs, so that opening, starting and closing do not count."""
    return (syncs(sample, 2 * rounds)[0] - syncs(sample, rounds)[0]) / rounds


def figures(rounds: int = 100, times: int = 7) -> dict[str, float]:
    measured: dict[str, float] = {}
    if shutil.which("strace"):
        measured["syncs_of_the_floor"] = per_round(floor, rounds)
        measured["syncs_of_kairos"] = per_round(kairos, rounds)
        measured["checkpoints"] = syncs(kairos, 4 * rounds)[1]
    pairs = [(fresh(floor, rounds), fresh(kairos, rounds)) for _ in range(times)]
    measured["floor_ms"] = median(floor for floor, _ in pairs) * 1e3
    return measured | {"wall": median(kairos / floor for floor, kairos in pairs)}
