"""Whose silence a call's end is: what a caller's own limit cuts is never held against the server."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.app import ME, Place, open_checked_app, rests, says
from support.downstream import PEER, DownstreamServers, call_server
from support.waiting import wait_until

from kairos_mcp.core.errors import KairosError
from kairos_mcp.core.limits import Limits
from kairos_mcp.core.run_spec import PlannerRequest
from kairos_mcp.settings.table_values import GateRule, ServerSetting


def test_calls_that_their_own_limit_cuts_leave_the_server_and_another_s_call_alone(
    downstream: DownstreamServers,
) -> None:
    """Three callers give up early while another's irreversible call is under way: it ends as it would have."""
    server = downstream.ready_peer("threads", timeout_s=60)
    came = downstream.root / "came"
    with ThreadPoolExecutor(1) as threads:
        other = threads.submit(call_server, server, "await", text=str(came))
        wait_until(lambda: downstream.log_lines("call await"))
        for _ in range(3):
            assert call_server(server, "hang", seconds=0.4).code == "timeout"
        came.write_text("")
        assert other.result(20).content == "it came"
    assert len(downstream.log_lines("start")) == 1


def test_a_server_that_was_silent_twice_is_started_anew_once_another_s_call_has_ended(
    downstream: DownstreamServers,
) -> None:
    server = downstream.ready_peer("threads", timeout_s=1)
    came = downstream.root / "came"
    patient = downstream.server("x", server._setting.command, timeout_s=60)
    with ThreadPoolExecutor(1) as threads:
        patient._client = server._get_client()
        other = threads.submit(call_server, patient, "await", text=str(came))
        wait_until(lambda: downstream.log_lines("call await"))
        for _ in range(2):
            assert call_server(server, "hang").code == "timeout"
        came.write_text("")
        assert other.result(20).content == "it came"
    assert call_server(server, "echo", text="again").content == "again"


async def test_a_run_whose_seconds_a_server_used_up_ends_as_timeout_and_says_that_the_outcome_is_unknown(
    place: Place,
) -> None:
    command = (sys.executable, str(PEER), f"log={place.root / 'log'}")
    server = ServerSetting("x", command, sandbox=False)
    lines = ({"content": "go", "tool_calls": [{"name": "x__hang", "arguments": {}}]}, *[says("done")] * 3)
    settings = place.settings(*lines, servers=(server,), gate=(GateRule("x__hang", "allow"),))
    async with open_checked_app(settings) as app:
        asked = PlannerRequest("use it", tools=("x__hang",), limits=Limits(milliseconds=2_000))
        run_id = (await app.runs.start(asked, ME)).run_id
        report = await rests(app, run_id)
        with pytest.raises(KairosError):  # it has ended: nothing of it is settled any more
            await app.answers.settle(run_id, "round-1/call-1/settle", "reattempt", ME)
    (result,) = place.rows("select body from answer join step on step.id = step where kind = 'call'")[0]
    assert (report.status, report.stop_reason) == ("stopped", "timeout")
    assert "is not known" in result
    assert report.waiting == ()
    assert report.next is not None
    assert report.next["tool"] == "planner_run"
    assert (place.root / "log").read_text().count("call hang") == 1
