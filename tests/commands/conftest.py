"""The real command in a process of its own, with a home, a state folder and a folder to stand in."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

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


@dataclass(frozen=True)
class Shell:
    """`home` is the user's, `state` ours; `folder` is where the commands are started."""

    home: Path
    state: Path
    folder: Path

    def environ(self, **more: str) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("KAIROS_", "XDG_"))}
        return {
            **kept,
            "HOME": str(self.home),
            "KAIROS_HOME": str(self.state),
            "COLUMNS": "100",
            "NO_COLOR": "1",
            "TERM": "dumb",
            **more,
        }

    def words(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "kairos_mcp", *words]

    def __call__(self, *words: str, typed: str = "", cwd: Path | None = None, **more: str) -> Said:
        done = subprocess.run(
            self.words(*words),
            input=typed,
            cwd=cwd or self.folder,
            env=self.environ(**more),
            capture_output=True,
            encoding="utf-8",
            timeout=PATIENCE_S,
            check=False,
        )
        assert "Traceback" not in done.stderr, done.stderr
        return Said(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def kairos(tmp_path: Path) -> Shell:
    shell = Shell(tmp_path / "user", tmp_path / "state", tmp_path / "user" / "project")
    shell.folder.mkdir(parents=True)
    (shell.folder / "README.md").write_text("# A project\n\nTODO: everything\n", encoding="utf-8")
    (shell.folder / "main.py").write_text("print('hello')  # TODO: more\n", encoding="utf-8")
    return shell
