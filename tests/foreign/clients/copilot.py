"""GitHub Copilot's CLI with a provider that stands in for GitHub's: a terminal, an agent, sampling.

In a terminal, where sampling is asked for; its `-p` mode declares it and never answers a request, and looks no
different, so that `auto` takes the caller route with it.
"""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
from pathlib import Path
from threading import Thread
from typing import Any

from scripted_model import job, report
from standin import serve_standin

JOB = job()
GIVE_UP_S = 120


def server() -> dict[str, Any]:
    if JOB["transport"] == "stdio":
        command, *words = JOB["command"]
        return {"type": "local", "command": command, "args": words, "tools": ["*"]}
    return {"type": JOB["transport"], "url": JOB["url"], "tools": ["*"]}


def drain(terminal: int, kept: list[bytes]) -> None:
    """Read what is shown: a terminal that nobody reads blocks its program."""
    try:
        while shown := os.read(terminal, 65536):
            kept.append(shown)
    except OSError:
        pass  # the program has left


def main() -> None:
    folder = Path(JOB["folder"], "copilot")
    folder.mkdir()
    alone = JOB["way"] == "caller"
    with serve_standin({"route": "caller" if alone else "sampling"}) as standin:
        environ = {
            **os.environ,
            "HOME": str(folder),
            "COPILOT_ALLOW_ALL": "true",
            "COPILOT_OFFLINE": "true",
            "COPILOT_PROVIDER_BASE_URL": standin.url,
            "COPILOT_MODEL": "scripted",
            "TERM": "xterm",
        }
        copilot = str(Path(JOB["environment"], "node_modules", ".bin", "copilot"))
        servers = json.dumps({"mcpServers": {"kairos": server()}})
        ours, theirs = pty.openpty()
        shown: list[bytes] = []
        words = [copilot, "-p" if alone else "-i", "Use planner_run.", "--additional-mcp-config", servers]
        with subprocess.Popen(
            words, env=environ, cwd=folder, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
        ) as host:
            os.close(theirs)
            Thread(target=drain, args=(ours, shown), daemon=True).start()
            ended = standin.done.wait(GIVE_UP_S)
            os.killpg(host.pid, signal.SIGKILL)  # the command is a loader: the program is its child
        if not ended:
            raise SystemExit(b"".join(shown)[-3000:].decode(errors="replace"))
        report(standin.results[-1], asked=[each for each in standin.asked if each != "host"])


main()
