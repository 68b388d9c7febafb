"""GitHub Copilot's CLI, offline, with a provider that stands in: its agent calls our tools until the run has ended."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from mind import job, tell
from standin import standing_in

JOB = job()
GIVE_UP_S = 150


def server() -> dict[str, Any]:
    if JOB["transport"] == "stdio":
        command, *words = JOB["command"]
        return {"type": "local", "command": command, "args": words, "tools": ["*"]}
    return {"type": JOB["transport"], "url": JOB["url"], "tools": ["*"]}


def main() -> None:
    config = json.dumps({"mcpServers": {"kairos": server()}})
    folder = Path(JOB["folder"], "copilot")
    folder.mkdir()
    with standing_in() as standin:
        surroundings = {
            **os.environ,
            "HOME": str(folder),
            "COPILOT_HOME": str(folder / "home"),
            "COPILOT_OFFLINE": "true",
            "COPILOT_PROVIDER_BASE_URL": standin.url,
            "COPILOT_MODEL": "mind",
            "NO_COLOR": "1",
        }
        words = ["-p", "Use planner_run.", "--allow-all-tools", "--no-color", "--additional-mcp-config", config]
        done = subprocess.run(
            [str(Path(JOB["environment"], "node_modules", ".bin", "copilot")), *words],
            env=surroundings, cwd=folder, capture_output=True, text=True, timeout=GIVE_UP_S, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        if not standin.results:
            raise SystemExit(f"exit code {done.returncode}: {done.stdout[-1500:]}{done.stderr[-1500:]}")
        tell(standin.results[-1], asked=[each for each in standin.asked if each != "host"])


main()
