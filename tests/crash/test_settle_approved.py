"""A server killed in the middle of a call that a person had approved: that is for one call, which was begun."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
from support import sandboxed
from support.app import Place
from support.stdio_server import StdioClient
from support.waiting import wait_until
from test_settle import WITHIN_S, commands, count_made, waits_for_a_person


def killed_in_an_approved_command(place: Place) -> str:
    """The run of a server that was killed while a command ran that its user had approved."""
    sandboxed.skip_if_missing()
    commands(place)
    (place.home / "kairos.toml").write_text('approvals = "host"\n')
    with StdioClient.start(place) as first:
        run = first.call("planner_run", goal="make", tools=["run_command"], wait_s=20)
        (item,) = run["waiting"]
        said: dict[str, Any] = {"decision": "approve", "digest": item["digest"]}
        first.call("run_continue", run_id=run["run_id"], answers={item["key"]: said}, wait_s=0)
        wait_until(lambda: count_made(place), WITHIN_S, lambda: place.rows("select body from answer"))
        os.kill(first.pid, signal.SIGKILL)
        first.ends()
    return str(run["run_id"])


@pytest.mark.parametrize(("settlement", "times"), [("already_done", 1), ("reattempt", 2)])
def test_an_approved_command_whose_end_is_unknown_is_settled_and_never_repeated_by_itself(
    place: Place, settlement: str, times: int
) -> None:
    run_id = killed_in_an_approved_command(place)
    with StdioClient.start(place) as second:
        item = waits_for_a_person(second, run_id)
        assert count_made(place) == 1
        said = {"key": item["key"], "settlement": settlement, "digest": item["digest"]}
        second.call("run_control", run_id=run_id, action="settle", **said)
        report = second.call("run_status", run_ids=[run_id], until="done", wait_s=20)["runs"][0]
        assert (report["status"], report["summary"]) == ("completed", "done"), report
    assert count_made(place) == times


def test_it_waits_for_a_person_over_further_restarts_and_whatever_else_is_requested(place: Place) -> None:
    run_id = killed_in_an_approved_command(place)
    for _ in range(2):
        with StdioClient.start(place) as later:
            item = waits_for_a_person(later, run_id)
            later.call("run_control", run_id=run_id, action="pause")
            later.call("run_control", run_id=run_id, action="resume")
            assert waits_for_a_person(later, run_id) == item
    assert count_made(place) == 1


def test_a_command_that_a_rule_let_through_later_is_never_repeated_by_itself_either(place: Place) -> None:
    """Its approval lapsed, and a rule allows it since; the server is killed while it runs."""
    sandboxed.skip_if_missing()
    commands(place)
    (place.home / "kairos.toml").write_text('approvals = "host"\n')
    with StdioClient.start(place) as first:
        run_id = first.call("planner_run", goal="make", tools=["run_command"], wait_s=20)["run_id"]
        place.rows("update approval set expires_at = 1")
        wait_until(lambda: place.rows("select 1 from approval where verdict = 'expired'"), WITHIN_S)
    commands(place)
    with StdioClient.start(place) as second:
        second.call("run_control", run_id=run_id, action="resume")
        wait_until(lambda: count_made(place), WITHIN_S, lambda: place.rows("select body from answer"))
        assert ("gate",) in place.rows("select through from approval")
        os.kill(second.pid, signal.SIGKILL)
        second.ends()
    with StdioClient.start(place) as third:
        waits_for_a_person(third, run_id)
        assert count_made(place) == 1
