"""Servers on one database, each with a state folder of its own, as on several machines: real processes, ended in every
way."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from support import postgres
from support.app import Place
from support.commands import Said, command
from support.stdio_server import StdioClient
from support.waiting import wait_until

pytestmark = pytest.mark.postgres
WITHIN_S = 30.0
LEASE_S = 10.0
READS = {"content": "look", "tool_calls": [{"name": "read_file", "arguments": {"path": "a.txt"}}]}


@pytest.fixture
def place(place: Place, server: str, database: str, monkeypatch: pytest.MonkeyPatch) -> Place:
    """A place whose rows are in a database, which the settings of every process name."""
    monkeypatch.setenv("KAIROS_TEST_STORE", server)
    monkeypatch.setenv("KAIROS_STORE", database)
    (place.root / postgres.NAMED_IN).write_text(database)
    return place


def elsewhere(place: Place, name: str) -> Place:
    """The same folder to work in, with another state folder."""

    class Elsewhere(Place):
        @property
        def home(self) -> Path:
            return self.root / name

    return Elsewhere(place.root)


def write_script(place: Place, *lines: dict[str, Any]) -> None:
    place.script.write_text("".join(json.dumps(line) + "\n" for line in lines))


def start_slow_run(place: Place, server: StdioClient) -> str:
    """A run that is thinking for the second time, for two seconds."""
    write_script(place, READS, {"content": "done", "finish": "stop", "delay_s": 2.0})
    run_id = str(server.call("planner_run", goal="look", wait_s=0)["run_id"])
    wait_until(lambda: place.rows("select 1 from step where path = 'round-2'"), WITHIN_S)
    return run_id


def owner_of(place: Place) -> tuple[Any, ...]:
    (found,) = place.rows("select owner, fence from run")
    return found


def seconds_until_taken(place: Place, before: tuple[Any, ...]) -> float:
    began = time.monotonic()
    wait_until(lambda: owner_of(place) != before, WITHIN_S, lambda: "nobody took it")
    return time.monotonic() - began


def run_command(place: Place, *words: str) -> Said:
    return command(*words, "--home", str(place.home), folder=place.workspace, environ=os.environ)


def assert_done_once(place: Place, client: StdioClient, run_id: str) -> None:
    report = client.call("run_status", run_ids=[run_id], until="done", wait_s=15)["runs"][0]
    assert (report["status"], report["summary"]) == ("completed", "done")
    assert place.rows("select count(*) from step") == place.rows("select count(*) from answer") == [(3,)]


def test_a_run_is_kept_in_the_database_and_no_state_file_is_made(place: Place) -> None:
    write_script(place, READS, {"content": "done", "finish": "stop"})
    with StdioClient.start(place) as server:
        report = server.call("planner_run", goal="look", wait_s=15)
    assert report["status"] == "completed"
    assert not place.db.exists()
    assert place.rows("select id from run") == [(report["run_id"],)]
    (listed,) = run_command(elsewhere(place, "other"), "runs", "--all", "--json").json["runs"]
    assert listed["run_id"] == report["run_id"]
    assert run_command(place, "replay", report["run_id"]).code == 0


def test_the_runs_of_a_killed_server_are_taken_at_once(place: Place, database: str) -> None:
    postgres.wait_until_locks_count(database, LEASE_S)
    with StdioClient.start(place) as first, StdioClient.start(elsewhere(place, "other")) as second:
        second.call("budget_status")
        run_id, before = start_slow_run(place, first), owner_of(place)
        os.kill(first.pid, signal.SIGKILL)
        assert seconds_until_taken(place, before) < LEASE_S / 3
        assert_done_once(place, second, run_id)
    assert place.rows("select ended from attempt") == [("unknown",)]


def test_the_runs_of_a_server_that_ends_are_taken_at_once(place: Place) -> None:
    with StdioClient.start(place) as first, StdioClient.start(elsewhere(place, "other")) as second:
        second.call("budget_status")
        run_id, before = start_slow_run(place, first), owner_of(place)
        os.kill(first.pid, signal.SIGTERM)
        assert seconds_until_taken(place, before) < LEASE_S / 3
        assert_done_once(place, second, run_id)


def test_the_runs_of_a_stopped_server_are_taken_after_its_lease_and_it_wakes_to_nothing(place: Place) -> None:
    with StdioClient.start(place) as first, StdioClient.start(elsewhere(place, "other")) as second:
        second.call("budget_status")
        run_id, before = start_slow_run(place, first), owner_of(place)
        os.kill(first.pid, signal.SIGSTOP)
        try:
            assert LEASE_S / 2 < seconds_until_taken(place, before) < LEASE_S + 2
            assert_done_once(place, second, run_id)
            rows = place.rows("select * from answer order by step"), place.rows("select fence, outcome from run")
        finally:
            os.kill(first.pid, signal.SIGCONT)
        woken = first.call("run_status", run_ids=[run_id], until="done", wait_s=5)["runs"][0]
        assert woken["status"] == "completed"
        time.sleep(2.5)  # until its own model would have answered at the latest
        assert rows == (
            place.rows("select * from answer order by step"),
            place.rows("select fence, outcome from run"),
        )


def test_a_run_is_started_answered_and_waited_for_on_three_servers(place: Place) -> None:
    places = [place, elsewhere(place, "second"), elsewhere(place, "third")]
    clients = [StdioClient.start(each, script=False) for each in places]
    try:
        started = clients[0].call("planner_run", goal="look", route="caller", wait_s=0)
        run_id = started["run_id"]
        (item,) = clients[1].call("run_status", run_ids=[run_id])["runs"][0]["waiting"]
        waiting = clients[2].begin(
            "tools/call", {"name": "run_status", "arguments": {"run_ids": [run_id], "until": "done", "wait_s": 15}}
        )
        answered = clients[1].call("run_continue", run_id=run_id, answers={item["key"]: {"content": "done"}}, wait_s=15)
        assert answered["status"] == "completed"
        while (message := clients[2].read()).get("id") != waiting:
            pass
        assert message["result"]["structuredContent"]["runs"][0]["status"] == "completed"
    finally:
        for client in clients:
            client.close()


def test_a_database_without_tables_is_refused_with_the_command_that_makes_them(
    place: Place, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = postgres.make_empty_schema(server)
    monkeypatch.setenv("KAIROS_STORE", empty)
    (place.root / postgres.NAMED_IN).write_text(empty)  # of this place, for servers
    write_script(place, {"content": "done", "finish": "stop"})
    with StdioClient.start(place) as client:
        refused = client.call("planner_run", goal="look", wait_s=0)
        assert refused["code"] == "store_unavailable"
        assert "kairos_mcp store migrate --home" in refused["hint"]
        assert run_command(place, "store", "migrate").code == 0
        assert client.call("planner_run", goal="look", wait_s=15)["status"] == "completed"


def test_what_doctor_says_of_the_server_of_the_database(place: Place) -> None:
    said = run_command(place, "doctor", "--json").json["findings"]
    (database,) = [each for each in said if each["matter"] == "database" and each["state"] == "ok"]
    assert database["text"].startswith("PostgreSQL 1")
    (durability,) = [each for each in said if each["matter"] == "database" and each["state"] == "note"]
    assert "fsync" in durability["text"]  # which tests switch off
