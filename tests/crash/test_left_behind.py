"""What a server that was killed left behind is gone on with by the next one: once a tool of it was called, any tool."""

from __future__ import annotations

import json
import os
import resource
import signal
import time

import pytest
from support.app import Place
from support.stdio_server import StdioClient
from support.waiting import wait_until

WITHIN_S = 20.0


def left_behind(place: Place) -> str:
    """A run whose server was killed while it was thinking."""
    place.script.write_text(json.dumps({"content": "done", "finish": "stop", "delay_s": 1.0}) + "\n")
    with StdioClient.start(place) as first:
        run_id = str(first.call("planner_run", goal="look", wait_s=0)["run_id"])
        wait_until(lambda: place.rows("select 1 from step where path = 'round-1'"), WITHIN_S, lambda: "no round")
        os.kill(first.pid, signal.SIGKILL)
    return run_id


@pytest.mark.parametrize("tool", ["run_status", "run_trace", "budget_status", "mandate_list"])
def test_any_tool_that_is_called_makes_the_server_go_on_with_it(place: Place, tool: str) -> None:
    run_id = left_behind(place)
    arguments = {"run_status": {"run_ids": [run_id]}, "run_trace": {"run_id": run_id}}.get(tool, {})
    with StdioClient.start(place) as second:
        second.call(tool, **arguments)
        wait_until(
            lambda: place.rows("select 1 from run where outcome is not null"), WITHIN_S, lambda: "it stands still"
        )
    assert place.rows("select json_extract(outcome, '$.summary') from run") == [("done",)]


@pytest.mark.state_file("it fills that file's disk")
def test_a_look_at_a_run_that_stands_still_is_followed_by_another_try(place: Place) -> None:
    """Its answer could not be written, and then there is room again."""
    place.script.write_text(json.dumps({"content": "done", "finish": "stop", "delay_s": 1.0}) + "\n")
    with StdioClient.start(place) as server:
        run_id = server.call("planner_run", goal="look", wait_s=0.3)["run_id"]
        wal = place.db.with_name("kairos.db-wal")
        hard = resource.prlimit(server.pid, resource.RLIMIT_FSIZE)[1]
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (wal.stat().st_size + 1_000, hard))
        stuck = server.call("run_status", run_ids=[run_id], until="attention", wait_s=15)["runs"][0]
        assert stuck["status"] == "paused"
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (hard, hard))

        def status() -> str:
            return str(server.call("run_status", run_ids=[run_id])["runs"][0]["status"])

        wait_until(lambda: status() == "completed", WITHIN_S, lambda: "it stands still")


def test_a_server_that_is_only_probed_takes_nothing(place: Place) -> None:
    left_behind(place)
    before = place.rows("select owner, fence from run")
    with StdioClient.start(place) as second:
        assert second.ask("tools/list", {})["tools"]
        time.sleep(1.5)  # longer than an idle server takes from look to look
        assert second.ask("tools/list", {})["tools"]
    assert place.rows("select owner, fence from run") == before
    assert place.rows("select count(*) from attempt") == [(0,)]
