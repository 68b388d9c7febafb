"""Start a client's script in the client's environment, and read what it prints at the end."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from tests.foreign.cells import Client
from tests.foreign.door import pass_door
from tests.foreign.environs import NodeEnv
from tests.foreign.served import Place, Transport, environ, site

CLIENTS = Path(__file__).with_name("clients")
CLIENT_S = 600
ALONE = ("unshare", "--map-root-user", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh")
"""What comes before a command that is to have a network of its own, with nothing but loopback."""


def drive(client: Client, folder: Path, place: Place, transport: Transport, **job: Any) -> Any:
    """Return what the client's script printed last; `job` is what else it is told."""
    result = {
        "transport": transport,
        "command": place.command,
        "folder": str(place.root),
        "environment": str(folder),
        **_browser_job(client),
        **job,
    }
    command = client.environ.command(folder, CLIENTS / client.script)
    door = place.root / "door" if client.alone and transport != "stdio" else None
    if client.alone:
        command = [*ALONE, *(pass_door(door) if door else ()), *command]
    with nullcontext() if transport == "stdio" else site(place, transport, door=door) as url:
        code, out, err = _run_client([*command, json.dumps(result | {"url": url})], place)
    assert code == 0, err[-3000:]
    return json.loads(out.splitlines()[-1])


def _run_client(command: list[str], place: Place) -> tuple[int, str, str]:
    """Exit code, output and errors. A client that hangs is ended with all that it started."""
    environment = environ() | {"HOME": str(place.root)}
    with subprocess.Popen(
        command,
        cwd=place.root,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as client:
        try:
            out, err = client.communicate(timeout=CLIENT_S)
        except subprocess.TimeoutExpired:
            os.killpg(client.pid, signal.SIGKILL)
            raise
        return client.returncode, out, err


def _browser_job(client: Client) -> dict[str, Any]:
    """A browser, and a port for the page that it is to show; nothing for a client that needs none."""
    if not (isinstance(client.environ, NodeEnv) and client.environ.needs):
        return {}
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return {"browser": shutil.which(client.environ.needs), "port": found.getsockname()[1]}
