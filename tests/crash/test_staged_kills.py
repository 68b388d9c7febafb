"""Runs in a stage, killed at random again and again: each is asked about once, and leaves the right files."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from benchmarks.staged import Task, make_task

pytestmark = [pytest.mark.slow, pytest.mark.sandbox]
KILLS = int(os.environ.get("STAGED_KILLS", "200"))
AT_ONE_RUN = 8
ENDED, WAITS = 0, 3


class Killed(Exception):
    """The process was killed before it ended."""


class Runs:
    """The runs of one place, by the real program; `kills`: how many of its processes are to be killed."""

    def __init__(self, place: Path, task: Task, moment: random.Random, kills: int) -> None:
        self.place, self.workspace, self._moment, self.kills = place, place / "ws", moment, kills
        self.workspace.mkdir(parents=True)
        for path, text in task.files.items():
            (self.workspace / path).write_text(text)
        lines = [*task.calls, {"content": "done"}]
        (place / "script.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))

    def call(self, *words: str, spared: bool = False) -> tuple[int, Any]:
        """Run a command; return its exit code and what it printed. Raises Killed."""
        environ = {
            **{name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ},
            "HOME": str(self.place),
            "KAIROS_HOME": str(self.place / "state"),
            "KAIROS_SCRIPT": str(self.place / "script.jsonl"),
        }
        command = [sys.executable, "-m", "kairos_mcp", *words, "--json"]
        process = subprocess.Popen(
            command, cwd=self.workspace, env=environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        with process:
            if not spared and self.kills:
                self.kills -= 1
                with suppress(subprocess.TimeoutExpired):
                    process.wait(self._moment.uniform(0.3, 4))
                process.send_signal(signal.SIGKILL)
            said, _ = process.communicate(timeout=300)
        if process.returncode == -signal.SIGKILL:
            raise Killed
        return process.returncode, json.loads(said)

    def files(self) -> dict[str, str]:
        return {
            path.relative_to(self.workspace).as_posix(): path.read_text()
            for path in self.workspace.rglob("*")
            if path.is_file()
        }


def go_through(runs: Runs, before: dict[str, str]) -> None:
    """Start a run and decide about its question, as often as it takes."""
    words = ["run", "Do it.", "--write", "--shell", "--stage", "--limit", "rounds=60"]
    while True:
        with suppress(Killed):
            code, said = runs.call(*words)
            if code == ENDED:
                return
            assert code == WAITS
            (item,) = said["waiting"]
            assert item["key"] == "submit-1/approval", "nobody is asked about anything else"
            assert runs.files() == before
            words = ["approve", said["run_id"], item["key"]]
            continue
        _, found = runs.call("runs", spared=True)
        for run in found["runs"]:
            if run["status"] == "completed":
                return
            if run["status"] != "input_required":
                words = ["resume", run["run_id"]]


def test_runs_in_a_stage_killed_at_random_leave_what_they_were_to_leave(tmp_path: Path) -> None:
    moment, kills = random.Random(42), 0
    for number in range(-(-KILLS // AT_ONE_RUN)):
        task = make_task(number % 10)
        runs = Runs(tmp_path / str(number), task, moment, AT_ONE_RUN)
        go_through(runs, task.files)
        kills += AT_ONE_RUN - runs.kills
        assert runs.files() == task.wanted, number
    print(f"\n{kills} kills over {number + 1} runs: one question each, all trees right")
    assert kills >= KILLS * 3 // 4
