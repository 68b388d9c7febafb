"""A server that was stopped keeps its runs until a person releases it; when it wakes it can change nothing of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from support.app import Place
from support.forked_program import run_program
from support.stdio_server import StdioClient
from support.waiting import wait_until

from kairos_mcp.store.file_store import is_stopped

WITHIN_S = 20.0


def slow_script(place: Place) -> None:
    lines = [
        {"content": "look", "tool_calls": [{"name": "read_file", "arguments": {"path": "a.txt"}}]},
        {"content": "done", "finish": "stop", "delay_s": 3.0},  # longer than a first call takes
    ]
    place.script.write_text("".join(json.dumps(line) + "\n" for line in lines))


def record(place: Place) -> list[tuple[object, ...]]:
    return [*place.rows("select * from answer order by step"), *place.rows("select fence, outcome from run")]


def until(place: Place, statement: str, *bindings: object) -> list[tuple[object, ...]]:
    return wait_until(lambda: place.rows(statement, *bindings), WITHIN_S, lambda: statement)


def command(place: Place, *words: str) -> subprocess.CompletedProcess[str]:
    return run_program([*words, "--home", str(place.home)], timeout=WITHIN_S)


@pytest.mark.state_file("on a database others take the runs of a stopped server")
def test_a_stopped_server_keeps_its_run_until_it_is_released_and_wakes_to_nothing(place: Place) -> None:
    slow_script(place)
    with StdioClient.start(place) as first, StdioClient.start(place) as second:
        started = first.call("planner_run", goal="look", wait_s=0)
        run_id = started["run_id"]
        until(place, "select 1 from step where path = 'round-2'")
        os.kill(first.pid, signal.SIGSTOP)
        try:
            refused = second.call("run_control", run_id=run_id, action="pause")
            assert (refused["code"], refused["retryable"]) == ("busy", True)
            assert str(first.pid) in refused["message"]
            assert "--release" in refused["hint"]
            ((owner, fence),) = place.rows("select owner, fence from run")
            looked = second.call("run_status", run_ids=[run_id], until="attention", wait_s=15)["runs"][0]
            assert looked["status"] == "paused"  # nobody waits for what can't move
            assert any(str(first.pid) in text and "--release" in text for text in looked["degraded"])
            assert "--release" in looked["next"]["why"]

            shown = json.loads(command(place, "status", "--json").stdout)
            (server,) = [each for each in shown["servers"] if each["number"] == owner]
            assert (server["pid"], server["stopped"], server["runs"]) == (first.pid, True, 1)
            released = command(place, "status", "--release", str(owner), "--json")
            assert json.loads(released.stdout) == {"owner": owner, "released": 1}, released.stderr

            report = second.call("run_status", run_ids=[run_id], until="done", wait_s=15)["runs"][0]
            assert (report["status"], report["summary"]) == ("completed", "done")
            before = record(place)
            assert place.rows("select fence > ? from run", fence) == [(1,)]
        finally:
            os.kill(first.pid, signal.SIGCONT)
        woken = first.call("run_status", run_ids=[run_id], until="done", wait_s=5)["runs"][0]
        assert woken["status"] == "completed"
        time.sleep(1.2)  # until its own model would have answered at the latest
        assert record(place) == before


STOPS_IN_A_COMMIT = """
import asyncio, os, signal, sys
from pathlib import Path
from kairos_mcp.store.file_store import FileStore

async def main():
    store = FileStore(Path(sys.argv[1]), "process", "serve")
    await store.register_owner(1)
    await store.submit(lambda connection: os.kill(os.getpid(), signal.SIGSTOP))
    await store.close()

asyncio.run(main())
"""


@pytest.mark.state_file("on a database others take the runs of a stopped server")
def test_a_server_that_was_stopped_while_it_wrote_is_named_to_those_who_wait_for_the_store(place: Place) -> None:
    slow_script(place)
    stopped = subprocess.Popen([sys.executable, "-c", STOPS_IN_A_COMMIT, str(place.home)])
    try:
        wait_until(lambda: is_stopped(stopped.pid), WITHIN_S, lambda: "it never stopped")
        with StdioClient.start(place) as other:
            refused = other.call("planner_run", goal="look")
            assert (refused["code"], refused["retryable"]) == ("store_busy", True)
            assert f"kill -CONT {stopped.pid}" in refused["hint"]
            os.kill(stopped.pid, signal.SIGCONT)
            assert other.call("planner_run", goal="look")["status"] == "completed"
        assert stopped.wait(WITHIN_S) == 0
    finally:
        stopped.kill()
        stopped.wait(WITHIN_S)


def test_who_does_not_live_can_not_be_released(place: Place) -> None:
    slow_script(place)
    with StdioClient.start(place) as server:
        assert server.call("planner_run", goal="look")["status"] == "completed"
    gone = command(place, "status", "--release", "1")
    assert gone.returncode == 2
    assert "1" in gone.stderr
