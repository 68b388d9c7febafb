"""Each client that others wrote completes a planner run of three rounds, which reads a file, in the best way it can."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from tests.foreign.cells import CELLS, INSPECTOR_CLI, Cell
from tests.foreign.environs import Environ, version
from tests.foreign.served import Place, environ, site

CLIENTS = Path(__file__).with_name("clients")
CLIENT_S = 240

pytestmark = pytest.mark.foreign

MARKS = [
    ("round-1", "round"),
    ("round-1/call-1", "call"),
    ("round-2", "round"),
    ("round-2/call-1", "call"),
    ("round-3", "round"),
]


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_three_rounds_that_read_a_file(
    cell: Cell,
    environment: Callable[[Environ], Path],
    results: list[dict[str, Any]],
    tmp_path: Path,
) -> None:
    place = Place(tmp_path / "place").lay()
    folder = environment(cell.client.environ)
    found = {
        "client": cell.client.name,
        "package": cell.client.package,
        "version": version(cell.client.environ, folder, cell.client.package),
        "transport": cell.transport,
        "era": cell.era,
        "oddity": cell.client.oddity,
        "result": "failed",
    }
    results.append(found)
    began = time.monotonic()
    told = driven(cell, folder, place)
    found["seconds"] = round(time.monotonic() - began, 1)

    ended = told["result"]
    assert (ended["status"], ended["rounds"], ended["summary"]) == ("completed", 3, place.word)
    ((run_id, outcome),) = place.rows("select id, outcome from run")
    assert run_id == ended["run_id"]
    assert json.loads(outcome)["summary"] == place.word
    assert place.rows("select path, kind from mark order by id") == MARKS
    found["way"] = way_taken(place, told.get("asked", []))
    assert found["way"] == way_due(cell)
    assert place.replays(run_id)
    if cell.client is INSPECTOR_CLI:
        assert told["strict"]["code"] == 0, told["strict"]["said"]
    found["result"] = "ok"


def driven(cell: Cell, folder: Path, place: Place) -> Any:
    """What the client's script printed last."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if cell.client.browser and browser is None:
        pytest.skip("this machine lacks chromium")
    script = CLIENTS / cell.client.script
    command = cell.client.environ.command(folder, script)
    with nullcontext() if cell.transport == "stdio" else site(place, cell.transport) as url:
        job = {
            "transport": cell.transport,
            "era": cell.era,
            "way": cell.way,
            "command": place.command,
            "url": url,
            "folder": str(place.root),
            "environment": str(folder),
            "browser": browser,
            "port": free_port() if cell.client.browser else None,
        }
        done = subprocess.run(
            [*command, json.dumps(job)], cwd=place.root, env=environ() | {"HOME": str(place.root)},
            capture_output=True, text=True, timeout=CLIENT_S, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def way_taken(place: Place, asked: list[str]) -> str:
    """As the rows tell it, and for the dialect the client, which says whether it was given tools."""
    rounds = place.rows("select by_route from answer join mark on mark.id = answer.mark where kind = 'round'")
    ((asks,),) = place.rows("select count(*) from ask")
    routes = {route for (route,) in rounds}
    if routes != {"sampling"}:
        return " ".join(sorted(routes)) + (" after InputRequired" if asks else "")
    dialect = "native" if set(asked) == {"tools"} else "text"
    return f"{'InputRequired' if asks else 'push'}, {dialect}"


def way_due(cell: Cell) -> str:
    if cell.way == "caller":
        return "caller"
    return f"{'InputRequired' if cell.era == 'modern' else 'push'}, {cell.way}"


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
