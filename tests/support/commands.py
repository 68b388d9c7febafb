"""The real command in a process of its own, and what it said."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PATIENCE_S = 60


@dataclass(frozen=True)
class Said:
    """What a command left: its exit code and its words."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def command(*words: str, folder: Path, environ: Mapping[str, str], typed: bytes = b"") -> Said:
    """The command as it is started in this folder, with all that is `typed` at once."""
    done = subprocess.run(
        [sys.executable, "-m", "kairos_mcp", *words],
        input=typed,
        cwd=folder,
        env=environ,
        capture_output=True,
        timeout=PATIENCE_S,
        check=False,
    )
    said = Said(done.returncode, done.stdout.decode(), done.stderr.decode())
    assert "Traceback" not in said.err, said.err
    return said
