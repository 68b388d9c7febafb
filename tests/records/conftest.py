"""A place for each test, and the shell of the commands."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from house import Place, place_in

sys.path.insert(0, str(Path(__file__).parent.parent / "crash"))  # the talker of real servers


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return place_in(tmp_path / "place")


@dataclass(frozen=True)
class Said:
    """What a command left: its exit code and its words."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def kairos(place: Place) -> Callable[..., Said]:
    """The real command on the state folder of the place."""

    def run(*words: str, typed: bytes = b"", **environ: str) -> Said:
        done = subprocess.run(
            [sys.executable, "-m", "kairos_mcp", *words],
            input=typed,
            cwd=place.workspace,
            env={**os.environ, "KAIROS_HOME": str(place.home), "NO_COLOR": "1", "COLUMNS": "200", **environ},
            capture_output=True,
            timeout=60,
            check=False,
        )
        assert b"Traceback" not in done.stderr, done.stderr.decode()
        return Said(done.returncode, done.stdout.decode(), done.stderr.decode())

    return run
