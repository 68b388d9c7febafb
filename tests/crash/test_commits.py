"""A run that ends at any of its commits, in any way, is gone on with by another: same steps, nothing asked twice, and
whatever it does outside is done once."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.journeys import JOURNEYS

HERE = Path(__file__).parent
WITHIN_S = 600.0  # for all points of a way in a flow
WAYS = ("killed before", "killed after", "cancelled", "raised")
CODES = {"killed before": -9, "killed after": -9, "cancelled": 1, "raised": None}


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    paths = os.pathsep.join((str(HERE.parent), os.environ.get("PYTHONPATH", "")))
    program = [sys.executable, str(HERE / "zygote.py")]
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(program, env={**os.environ, "PYTHONPATH": paths}, text=True, bufsize=1, **streams) as process:
        yield Zygote(process)


@dataclass(frozen=True)
class Zygote:
    """The process whose forks are ended at their commits."""

    process: subprocess.Popen[str]

    def find_points(
        self, root: Path, journey: str, every: int, *ways: str, first: int = 1
    ) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """What came of a run that was ended at each of these points, and of the one that was not ended."""
        order = {"root": str(root), "journey": journey, "every": every, "first": first, "ways": ways}
        self.process.stdin.write(json.dumps(order) + "\n")
        assert select.select([self.process.stdout], [], [], WITHIN_S)[0]
        assert self.process.stdout.readline() == "0\n"
        lines = [json.loads(line) for line in (root / "report").read_text().splitlines()]
        return lines[:-1], lines[-1]


def assert_survived(point: dict[str, Any], reference: dict[str, Any], *, late: bool) -> None:
    """Nothing lost, nothing doubled, no wrong sum: the child that went on has held the books against their rows."""
    code = CODES[point["point"].rpartition(" of ")[0].rpartition(" ")[0]]
    assert code is None or point["code"] == code or (late and point["code"] == 0), point
    assert (point["again"], point["runs"], point["damage"]) == (0, 1, []), point
    assert point["kept"], point
    if point["refused"]:  # the note that a tool keeps before it changes a file was not taken, so that it changed none
        assert code is None, point
        assert point["untouched"], point
        return
    assert point["same_steps"], point
    assert point["same_digests"], point
    assert point["same_outcome"], point
    assert point["same_outside"], point
    assert point["answers"] == reference["answers"], point


@pytest.mark.parametrize(
    "way", [pytest.param(way, marks=() if way.startswith("killed") else pytest.mark.slow) for way in WAYS]
)
def test_a_run_ended_at_any_commit_goes_on_elsewhere(zygote: Zygote, tmp_path: Path, way: str) -> None:
    found, reference = zygote.find_points(tmp_path, "planner", 1, way)
    assert len(found) > 8
    assert reference["mcp"] is False
    for point in found:
        assert_survived(
            point, reference, late=point in found[-3:]
        )  # three reads may share a commit: nothing is left to end then
        assert point["attempts"] <= 3, point  # the three reads that were under way may be made again


@pytest.mark.parametrize("journey", JOURNEYS)
def test_a_sample_of_the_commits_of_each_flow(zygote: Zygote, tmp_path: Path, journey: str) -> None:
    """Each way at one point or two, spread over the run."""
    every = 28 if journey == "team" else 12  # a team's run has three times as many
    found, reference = zygote.find_points(tmp_path, journey, every, *WAYS, first=2)
    assert found
    for point in found:
        assert_survived(point, reference, late=True)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("journey", [name for name in JOURNEYS if name != "planner"])
def test_every_commit_of_each_flow(zygote: Zygote, tmp_path: Path, journey: str, way: str) -> None:
    found, reference = zygote.find_points(tmp_path, journey, 1, way)
    assert len(found) > 3
    settled = sum(point["settled"] for point in found)
    print(f"{journey}, {way}: {len(found)} points, {settled} calls settled by a person, outside {reference['outside']}")
    # Tasks side by side may share commits, so that a run of theirs may have ended before the later points.
    late = found[-len(found) // 2 :] if journey == "team" else found[-3:]
    for point in found:
        assert_survived(point, reference, late=point in late)
    assert CODES[way] is None or sum(point["code"] == CODES[way] for point in found) > len(found) // 2
