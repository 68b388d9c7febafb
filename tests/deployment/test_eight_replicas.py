"""Eight servers for clients, each a process with a state folder of its own, on one database: each request about a run
goes to another of them, and one that owns a run is killed meanwhile."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from threading import Barrier
from typing import Any, TypeVar

import httpx2
import pytest
from support import forked_program, postgres
from support.app import Place, reads, says
from support.deployment import free_port
from support.forked_program import Forked
from support.http_server import META, MODERN, tokens_of
from support.task_client import TASKS_EXTENSION
from support.waiting import wait_until
from test_between_replicas import DIALOGS, approve

from kairos_mcp.server.tokens import make_owner_token

T = TypeVar("T")

pytestmark = [pytest.mark.postgres, pytest.mark.slow, pytest.mark.unreplayed]
WITHIN_S = 60.0
LEASE_S = 10.0
A, B, C, D, E, F, G, H = range(8)
TASKS = {"extensions": {TASKS_EXTENSION: {}}}
EDIT = {"path": "a.txt", "old_string": "alpha", "new_string": "omega"}
BY_CALLER = {"goal": "edit", "route": "caller", "tools": ["edit_file"], "wait_s": 5}
BY_SCRIPT = {"goal": "look", "route": "scripted", "wait_s": 0}
KEYED = {**BY_CALLER, "key": "one"}
OF_ANSWERS = (
    "select path, body from step join run on n = step.run left join answer on answer.step = step.id"
    " where run.id = ? order by step.id"
)


@dataclass
class Replica:
    """A server on a port of this machine."""

    process: Any
    port: int
    token: str

    def ask(self, method: str, declared: dict[str, Any] | None = None, **params: Any) -> dict[str, Any]:
        """The result of a request by a client that declares this."""
        meta = {**META, "io.modelcontextprotocol/clientCapabilities": declared or {}}
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}
        headers = {
            "Accept": "application/json, text/event-stream",
            "Authorization": f"Bearer {self.token}",
            "MCP-Protocol-Version": MODERN,
            "MCP-Method": method,
            "MCP-Name": params.get("name") or params.get("taskId") or "",
        }
        url = f"http://127.0.0.1:{self.port}/mcp"
        answer = httpx2.post(url, json=body, headers=headers, timeout=WITHIN_S).json()
        assert "result" in answer, answer
        result: dict[str, Any] = answer["result"]
        return result

    def call(self, name: str, **arguments: Any) -> dict[str, Any]:
        """The structured result of a tool, to a client that declares nothing."""
        found: dict[str, Any] = self.ask("tools/call", name=name, arguments=arguments)["structuredContent"]
        return found

    def is_ready(self) -> bool:
        try:
            return httpx2.get(f"http://127.0.0.1:{self.port}/readyz").status_code == 200
        except httpx2.HTTPError:
            return False


@pytest.fixture
def place(place: Place, postgres_server: str, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setenv(postgres.CHOICE, postgres_server)
    place.settings(reads("a.txt"), says("done", delay_s=10.0))
    return place


@pytest.fixture
def replicas(place: Place) -> Iterator[list[Replica]]:
    environ = {**os.environ, **postgres.environ_of(place.root), "KAIROS_SCRIPT": str(place.script)}
    token = str(make_owner_token(tokens_of(place.root), place.home))
    environ.pop(postgres.CHOICE)
    with ExitStack() as stack:
        found = [Replica(start(place, environ, number, port := free_port(), stack), port, token) for number in range(8)]
        for each in found:
            wait_until(each.is_ready, WITHIN_S)
        yield found


def start(place: Place, environ: dict[str, str], number: int, port: int, stack: ExitStack) -> Forked | Any:
    words = ("serve", "--transport", "http", "--port", str(port), "--workspace", str(place.workspace))
    home = ("--home", str(place.root / f"replica-{number}"))
    log = stack.enter_context((place.root / f"replica-{number}.log").open("wb"))
    process = forked_program.start([*words, *home], env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    stack.callback(process.wait)
    stack.callback(process.kill)
    return process


def approve_edit(replica: Replica) -> dict[str, Any]:
    """What a client comes to see whose user approves the call that waits: it asks with the same start."""
    asked = replica.ask("tools/call", DIALOGS, name="planner_run", arguments=BY_CALLER)
    more = {**approve(asked), "requestState": asked["requestState"]}
    found: dict[str, Any] = replica.ask("tools/call", DIALOGS, name="planner_run", arguments=BY_CALLER, **more)
    return found["structuredContent"]


def test_requests_about_a_run_go_to_eight_servers_of_which_its_owner_is_killed(
    place: Place, replicas: list[Replica]
) -> None:
    postgres.wait_until_locks_count(str(postgres.database_of(place.root)), LEASE_S)
    assert len({each.process.pid for each in replicas}) == len(replicas) == 8
    answer_and_cancel(place, replicas)
    kill_owner_of_task(place, replicas)


def answer_and_cancel(place: Place, replicas: list[Replica]) -> None:
    """Start a run at one server, wait for it at another, answer, approve and cancel it at three others."""
    run_id = replicas[A].call("planner_run", **BY_CALLER)["run_id"]
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(replicas[B].call, "run_status", run_ids=[run_id], until="done", wait_s=50)
        turn = {"tool_calls": [{"id": "c", "name": "edit_file", "arguments": EDIT}]}
        replicas[C].call("run_continue", run_id=run_id, answers={"round-1": turn}, wait_s=5)
        asked = place.rows("select path, verdict from step join approval on approval.step = step.id")
        assert asked == [("round-1/call-1", None)]
        assert (place.workspace / "a.txt").read_text() == "alpha\n"
        approve_edit(replicas[D])
        assert (place.workspace / "a.txt").read_text() == "omega\n"
        assert place.rows("select verdict from approval") == [("approve",)]
        assert not waiting.done()
        replicas[E].call("run_control", run_id=run_id, action="cancel")
        (seen,) = waiting.result(WITHIN_S)["runs"]
    assert replicas[H].call("run_status", run_ids=[run_id])["runs"] == [seen]
    assert place.rows("select json_extract(outcome, '$.status'), owner from run") == [("cancelled", None)]
    answered = place.rows("select path, by_route from step join answer on answer.step = step.id order by step.id")
    assert answered[:2] == [("round-1", "caller"), ("round-1/call-1", "server")]


def kill_owner_of_task(place: Place, replicas: list[Replica]) -> None:
    """Begin a task at a server, poll it at another while the first is killed, and read its result at a third."""
    owner = replicas[G]
    task = owner.ask("tools/call", TASKS, name="planner_run", arguments=BY_SCRIPT)["taskId"]
    run_id = task.partition("/")[0]
    of_run = (
        f"from run join step on step.run = run.n left join answer on answer.step = step.id where run.id = '{run_id}'"
    )
    assert replicas[F].ask("tasks/get", TASKS, taskId=task)["status"] == "working"
    wait_until(lambda: place.rows(f"select 1 {of_run} and path = 'round-2'"), WITHIN_S)
    owning = "select pid, fence from run join owner on owner.id = run.owner where run.id = ?"
    ((pid, fence),) = place.rows(owning, run_id)
    assert pid == owner.process.pid
    owner.process.kill()
    assert owner.process.wait(WITHIN_S) == -signal.SIGKILL
    with pytest.raises(httpx2.ConnectError):
        owner.ask("tasks/get", TASKS, taskId=task)
    assert replicas[F].ask("tasks/get", TASKS, taskId=task)["status"] == "working"
    taken = wait_until(lambda: [pid for pid, now in place.rows(owning, run_id) if now > fence], WITHIN_S)
    assert set(taken) <= {each.process.pid for each in replicas if each is not owner}
    wait_until(lambda: replicas[F].ask("tasks/get", TASKS, taskId=task)["status"] == "completed", WITHIN_S)
    found = replicas[H].ask("tasks/get", TASKS, taskId=task)["result"]["structuredContent"]
    assert (found["status"], found["summary"]) == ("completed", "done")
    assert place.rows("select ending from task") == [("completed",)]
    assert place.rows(f"select count(*), count(body) {of_run}") == [(3, 3)]
    lost = (
        "select path, ended from attempt join step on step.id = attempt.step join run on n = step.run where run.id = ?"
    )
    assert place.rows(lost, run_id) == [("round-2", "unknown")]


def test_what_eight_servers_are_asked_at_the_same_moment_is_done_once(place: Place, replicas: list[Replica]) -> None:
    assert_first_calls_of_day_share_an_account(place, replicas)
    run_id = assert_one_run_is_started(place, replicas)
    assert_one_answer_is_stored(place, replicas, run_id)
    assert_one_verdict_counts(place, replicas, run_id)


def at_once(replicas: list[Replica], ask: Callable[[int, Replica], T]) -> list[T]:
    """What each of the servers answers, all being asked at the same moment: `ask(number, server)`."""
    gate = Barrier(len(replicas))

    def ask_at_gate(number: int, replica: Replica) -> T:
        gate.wait(WITHIN_S)
        return ask(number, replica)

    with ThreadPoolExecutor(len(replicas)) as threads:
        return list(threads.map(ask_at_gate, range(len(replicas)), replicas))


def assert_first_calls_of_day_share_an_account(place: Place, replicas: list[Replica]) -> None:
    """The first model calls of a day, one at each server: they are charged to one account."""
    assert place.rows("select id from account where scope = 'day'") == []
    at_once(replicas, lambda n, replica: replica.call("planner_run", **{**BY_SCRIPT, "goal": f"look {n}"}))
    wait_until(lambda: place.rows("select count(*) from run where outcome is not null") == [(8,)], WITHIN_S)
    days = place.rows("select spent_model_calls, held_model_calls from account where scope = 'day'")
    assert days == [(2 * len(replicas), 0)]


def assert_one_run_is_started(place: Place, replicas: list[Replica]) -> str:
    """The same start at each server: one run."""
    started = at_once(replicas, lambda _, replica: replica.call("planner_run", **KEYED)["run_id"])
    assert place.rows("select id from run where route = 'caller'") == [(run_id,) for run_id in set(started)]
    assert place.rows(OF_ANSWERS, started[0]) == [("round-1", None)]
    return started[0]


def assert_one_answer_is_stored(place: Place, replicas: list[Replica], run_id: str) -> None:
    """Another answer for the same step at each server: one is stored, and the others are told."""

    def answer(number: int, replica: Replica) -> bool:
        call = {"id": "c", "name": "edit_file", "arguments": EDIT}
        turn = {"content": f"of server {number}", "tool_calls": [call]}
        arguments = {"run_id": run_id, "answers": {"round-1": turn}, "wait_s": 5}
        return not replica.ask("tools/call", name="run_continue", arguments=arguments).get("isError")

    taken = at_once(replicas, answer)
    (stored,) = [number for number, was_taken in enumerate(taken) if was_taken]
    (first, call) = place.rows(OF_ANSWERS, run_id)
    assert f'"of server {stored}"' in first[1]
    assert call == ("round-1/call-1", None)


def assert_one_verdict_counts(place: Place, replicas: list[Replica], run_id: str) -> None:
    """Users at each server are asked whether the call may be made, and half of them deny it: one verdict counts."""
    asked = at_once(
        replicas, lambda _, replica: replica.ask("tools/call", DIALOGS, name="planner_run", arguments=KEYED)
    )
    words = ["approve", "deny"] * (len(replicas) // 2)

    def decide(number: int, replica: Replica) -> str:
        more = {**approve(asked[number], words[number]), "requestState": asked[number]["requestState"]}
        found = replica.ask("tools/call", DIALOGS, name="planner_run", arguments=KEYED, **more)
        return found["structuredContent"]["status"]

    assert set(at_once(replicas, decide)) == {"input_required"}  # it waits for round 2, at whichever server
    ((verdict,),) = place.rows("select verdict from approval")
    assert verdict in words
    assert (place.workspace / "a.txt").read_text() == ("omega\n" if verdict == "approve" else "alpha\n")
    ended = [path for path, body in place.rows(OF_ANSWERS, run_id) if body is not None]
    assert ended == ["round-1", "round-1/call-1"]
    effects = "select count(*) from attempt join step on step.id = attempt.step where path = 'round-1/call-1'"
    assert place.rows(effects) == [(1 if verdict == "approve" else 0,)]  # how often it was begun
