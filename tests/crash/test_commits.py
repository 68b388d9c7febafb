"""A run that ends at any of its commits, in any way, is gone on with by another: same steps, nothing asked twice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent


def points(root: Path, every: int, *ways: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, str(HERE / "zygote.py"), str(root), str(every), *ways],
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(HERE.parent), os.environ.get("PYTHONPATH", "")))},
        stdout=subprocess.PIPE,
        timeout=240,
        check=True,
    )
    told = [json.loads(line) for line in done.stdout.splitlines()]
    return told[:-1], told[-1]


@pytest.mark.parametrize(
    ("way", "code"), [("killed before", -9), ("killed after", -9), ("cancelled", 1), ("raised", None)]
)
def test_a_run_ended_at_any_commit_goes_on_elsewhere(tmp_path: Path, way: str, code: int | None) -> None:
    found, reference = points(tmp_path, 1, way)
    assert len(found) > 8
    assert reference["mcp"] is False
    for point in found:
        late = point in found[-3:]  # three reads may share a commit, so that there is nothing left to end
        assert code is None or point["code"] == code or (late and point["code"] == 0), point
        assert (point["again"], point["runs"], point["integrity"]) == (0, 1, "ok"), point
        assert point["same_digests"], point
        assert point["same_outcome"], point
        assert point["kept"], point
        assert point["answers"] == reference["answers"], point
        assert point["attempts"] <= 3, point  # the three reads that were under way may be made again
