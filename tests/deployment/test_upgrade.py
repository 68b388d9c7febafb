"""An upgrade as operations.md says: the tables of the next version are made while servers of this one go on, then a
server of the next runs beside them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support import postgres
from support.app import place_in, reads, says
from support.deployment import Deployment, deployed
from support.next_version import NEXT, copy_next_version
from support.waiting import wait_until

pytestmark = [pytest.mark.postgres, pytest.mark.unreplayed]
WITHIN_S = 60.0
LINES = (reads("a.txt", delay_s=0.2), says("done", delay_s=0.2))


@pytest.fixture
def running(tmp_path: Path, postgres_server: str) -> Any:
    place, root = place_in(tmp_path / "laid"), tmp_path / "deployed"
    place.script.write_text("".join(json.dumps(line) + "\n" for line in LINES))
    root.mkdir()
    place.workspace.rename(root / "files")
    with deployed(root, postgres.make_empty_schema(postgres_server), place.script, servers=1) as deployment:
        yield deployment


def begin(running: Deployment, name: str, *words: str, newer: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
    """Start a command beside these servers: of this version, or of the next one."""
    environ = running.environ("work") | (newer or {})
    home = running.root / f"state-{name}"
    home.mkdir(mode=0o700, exist_ok=True)
    command = [sys.executable, "-m", "kairos_mcp", *words, "--home", str(home)]
    folder = running.root  # not one that has the package
    return subprocess.Popen(command, env=environ, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def complete_run(running: Deployment, goal: str) -> None:
    params = {"name": "planner_run", "arguments": {"goal": goal, "wait_s": 40}}
    report = running.ask(0, "tools/call", params, {})["structuredContent"]
    assert (report["status"], report["summary"]) == ("completed", "done")


def rows(running: Deployment, statement: str) -> list[tuple[Any, ...]]:
    with postgres.open_session(running.database) as session:
        return session.rows(statement)


def test_servers_of_two_versions_run_side_by_side(running: Deployment, tmp_path: Path) -> None:
    newer = copy_next_version(tmp_path / "newer")
    complete_run(running, "before")
    migrating = begin(running, "migrate", *running.words("migrate"), newer=newer)
    _, said = migrating.communicate(timeout=WITHIN_S)
    assert migrating.returncode == 0, said
    assert rows(running, "select number from version") == [(NEXT,)]
    complete_run(running, "by those of before, on the tables of the next version")
    worker = begin(running, "work-newer", *running.words("work"), newer=newer)
    try:
        wait_until(lambda: rows(running, f"select 1 from owner where pid = {worker.pid}"), WITHIN_S)
        for old in running.work:
            old.send_signal(signal.SIGTERM)
            assert old.wait(WITHIN_S) == 0
        complete_run(running, "a server of before, a worker of the next version")
    finally:
        worker.kill()
        worker.communicate()
    refused = begin(running, "work-old", *running.words("work"))
    _, said = refused.communicate(timeout=WITHIN_S)
    assert refused.returncode == 1
    assert f"version {NEXT}" in said.decode()
