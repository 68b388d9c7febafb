"""One run, and one MCP task, over four servers that drive nothing and two workers, each with a state folder of its own:
whichever is asked answers, and a worker is killed meanwhile."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from support import postgres
from support.app import place_in, reads, says
from support.deployment import Deployment, deployed
from support.task_client import TASKS_EXTENSION
from support.waiting import wait_until

pytestmark = [pytest.mark.postgres, pytest.mark.unreplayed]
WITHIN_S = 60.0
LEASE_S = 10.0
SEEN_S = 0.4  # a dialog that is answered sooner was seen by nobody
A, B, C, D = range(4)


def writes(path: str) -> dict[str, Any]:
    return {"content": "w", "tool_calls": [{"name": "write_file", "arguments": {"path": path, "content": "new\n"}}]}


LINES = (writes("one.txt"), writes("two.txt"), reads("a.txt", delay_s=2.0), says("done", delay_s=2.0))
DIALOGS = {"elicitation": {}}
TASKS = {"extensions": {TASKS_EXTENSION: {}}}
START = {"name": "planner_run", "arguments": {"goal": "write", "tools": ["write_file", "read_file"], "wait_s": 20}}


@pytest.fixture
def running(tmp_path: Path, postgres_server: str) -> Any:
    place, root = place_in(tmp_path / "laid"), tmp_path / "deployed"
    place.script.write_text("".join(json.dumps(line) + "\n" for line in LINES))
    root.mkdir()
    place.workspace.rename(root / "files")
    with deployed(root, postgres.make_empty_schema(postgres_server), place.script, servers=4) as deployment:
        postgres.wait_until_locks_count(deployment.database, LEASE_S)
        yield deployment


def approve(asked: dict[str, Any], decision: str = "approve") -> dict[str, Any]:
    """What a client answers whose user approves all that it is asked, or decides otherwise."""
    time.sleep(SEEN_S)
    reply = {"action": "accept", "content": {"decision": decision}}
    return {"inputResponses": dict.fromkeys(asked["inputRequests"], reply)}


def rows(running: Deployment, statement: str) -> list[tuple[Any, ...]]:
    with postgres.open_session(running.database) as session:
        return session.rows(statement)


def kill_owner(running: Deployment) -> int:
    """Kill the worker that has the run, once it is in its slow part; return its number as an owner."""
    wait_until(lambda: rows(running, "select 1 from step where path = 'round-3'"), WITHIN_S)
    ((owner, pid),) = rows(running, "select owner.id, pid from run join owner on owner.id = run.owner")
    assert pid in [process.pid for process in running.work]
    os.kill(pid, signal.SIGKILL)
    return int(owner)


def assert_done_once(running: Deployment, killed: int) -> None:
    assert [(running.root / "files" / name).read_text() for name in ("one.txt", "two.txt")] == ["new\n", "new\n"]
    assert rows(running, "select count(*), count(outcome) from run") == [(1, 1)]
    assert rows(running, "select count(*) from step") == rows(running, "select count(*) from answer") == [(7,)]
    assert rows(running, "select count(*) from approval where verdict = 'approve'") == [(2,)]
    assert rows(running, f"select count(*) from run where owner = {killed}") == [(0,)]
    assert {ended for (ended,) in rows(running, "select ended from attempt")} == {"waited", "unknown"}


def test_a_run_started_on_one_is_approved_on_two_others_and_waited_for_on_a_fourth(running: Deployment) -> None:
    first = running.ask(A, "tools/call", START, DIALOGS)
    answered = {**START, **approve(first), "requestState": first["requestState"]}
    second = running.ask(B, "tools/call", answered, DIALOGS)
    assert first["inputRequests"].keys() != second["inputRequests"].keys()
    ((run_id,),) = rows(running, "select id from run")
    waited: list[Any] = []
    waiting = {"name": "run_status", "arguments": {"run_ids": [run_id], "until": "done", "wait_s": 40}}
    waiter = Thread(target=lambda: waited.append(running.ask(D, "tools/call", waiting, {})))
    waiter.start()
    approved = {**START, **approve(second), "requestState": second["requestState"]}
    decider = Thread(target=lambda: waited.append(running.ask(C, "tools/call", approved, DIALOGS)))
    decider.start()
    killed = kill_owner(running)
    waiter.join(WITHIN_S)
    decider.join(WITHIN_S)
    reports = [found["structuredContent"] for found in waited]
    assert [(each.get("runs") or [each])[0]["summary"] for each in reports] == ["done", "done"]
    assert_done_once(running, killed)


def test_a_task_is_begun_answered_and_ended_on_whichever_server_is_asked(running: Deployment) -> None:
    declared = DIALOGS | TASKS
    task = running.ask(A, "tools/call", START, declared)["taskId"]

    def look(server: int) -> dict[str, Any]:
        found: dict[str, Any] = running.ask(server, "tasks/get", {"taskId": task}, declared)
        return found

    for server, other in ((B, C), (C, D)):
        asked = wait_until(lambda server=server: look(server).get("inputRequests"), WITHIN_S)  # type: ignore[misc]
        replied = approve({"inputRequests": asked})
        running.ask(other, "tasks/update", {"taskId": task, **replied}, declared)
    killed = kill_owner(running)
    wait_until(lambda: look(A)["status"] == "completed", WITHIN_S, lambda: look(A))
    results = [look(server)["result"]["structuredContent"] for server in (A, D)]
    assert results[0] == results[1]
    assert results[0]["summary"] == "done"
    assert_done_once(running, killed)
