"""Clients that are commands: a file that names the server, and a call of the command that gives what it prints."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

from scripted_model import Json, job

JOB = job()
FOLDER = Path(JOB["folder"])


def package_file(*path: str) -> str:
    """The path of a package's file in this environment."""
    return str(Path(JOB["environment"], "node_modules", *path))


def write_servers(types: dict[str, str]) -> str:
    """Write a file in the form that most hosts read: `mcpServers` with one server, `kairos`; return its path."""
    command, *words = JOB["command"]
    if JOB["transport"] == "stdio":
        server: Json = {"type": "stdio", "command": command, "args": words}
    else:
        server = {"type": types[JOB["transport"]], "url": JOB["url"]}
    file = FOLDER / "servers.json"
    file.write_text(json.dumps({"mcpServers": {"kairos": {**server, "protocolEra": JOB["era"]}}}))
    return str(file)


async def run_command(*words: str, **environ: str) -> tuple[int, str, str]:
    """Exit code, output and errors of a command; its home is the job's folder."""
    child = await asyncio.create_subprocess_exec(
        *words,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "HOME": str(FOLDER), "NO_COLOR": "1", **environ},
        cwd=FOLDER,
    )
    out, err = await child.communicate()
    return child.returncode or 0, out.decode(), err.decode()


async def read_json(*words: str, **environ: str) -> Any:
    """What a command prints as JSON. Raises RuntimeError if it fails."""
    code, out, err = await run_command(*words, **environ)
    if code != 0:
        raise RuntimeError(f"exit code {code}: {out[-500:]}{err[-500:]}")
    return json.loads(out)
