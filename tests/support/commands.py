"""The real command in a process of its own, and what it said."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.forked_program import run_program

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


def printed_words(line: str) -> list[str]:
    """The words of a command that was printed for a shell: a start of this program, and these."""
    start = [sys.executable, "-P", "-m", "kairos_mcp"]
    words = shlex.split(line)
    assert words[: len(start)] == start
    return words[len(start) :]


def command(*words: str, folder: Path, environ: Mapping[str, str], typed: bytes = b"") -> Said:
    """The command as it is started in this folder, with all that is `typed` at once."""
    done = run_program(words, typed=typed, cwd=folder, env=environ, timeout=PATIENCE_S)
    said = Said(done.returncode, done.stdout, done.stderr)
    assert "Traceback" not in said.err, said.err
    return said
