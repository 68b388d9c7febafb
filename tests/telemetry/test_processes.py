"""Real servers that send to a receiver: a call in a client's trace, and a run whose server was killed."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from support import postgres
from support.app import Place
from support.downstream import PEER
from support.forked_program import run_program
from support.stdio_server import StdioClient
from support.telemetry import CLIENT_SPAN, CLIENT_TRACE, TRACEPARENT, Collector, SeenSpan
from support.waiting import wait_until

from kairos_mcp.telemetry import names

OF_MCP = "mcp-python-sdk"
DELAY_S = 1.0
LEASE_S = 10.0


def write_script(place: Place, *lines: dict[str, Any]) -> None:
    place.script.write_text("".join(json.dumps(line) + "\n" for line in lines))


def start_server(place: Place, receiver: Collector, monkeypatch: pytest.MonkeyPatch, **more: str) -> StdioClient:
    for name, setting in {**receiver.environ(), **more}.items():
        monkeypatch.setenv(name, setting)
    return StdioClient.start(place)


def call_in_trace(client: StdioClient, tool: str, **arguments: Any) -> dict[str, Any]:
    """The structured result of a call that says which trace it belongs to."""
    params = {"name": tool, "arguments": arguments, "_meta": {"traceparent": TRACEPARENT}}
    found: dict[str, Any] = client.ask("tools/call", params)["structuredContent"]
    return found


def wait_for_run(receiver: Collector) -> SeenSpan:
    (run,) = wait_until(lambda: receiver.named("invoke_agent planner"), describe=lambda: receiver.spans)
    return run


def test_a_run_is_sent_by_otlp_as_a_part_of_its_client_s_trace(
    place: Place, receiver: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_script(place, {"content": "done", "finish": "stop"})
    with start_server(place, receiver, monkeypatch) as client:
        assert call_in_trace(client, "planner_run", goal="look", wait_s=10)["status"] == "completed"
        run = wait_for_run(receiver)
        call = wait_until(lambda: [span for span in receiver.spans if span.name == "tools/call planner_run"])[0]
        wait_until(lambda: names.RUNS_ENDED.name in receiver.metrics)
    assert (call.scope, call.trace, call.parent) == (OF_MCP, CLIENT_TRACE, CLIENT_SPAN)
    assert (run.trace, run.parent) == (CLIENT_TRACE, call.id)
    assert {span.trace for span in receiver.ours()} == {CLIENT_TRACE}


@pytest.mark.slow
def test_the_server_that_takes_a_run_over_goes_on_with_its_trace(
    place: Place, receiver: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed while a model answers: its span has no answer, the next attempt's has, and no step is without its span."""
    write_script(
        place,
        {"content": "look", "tool_calls": [{"name": "read_file", "arguments": {"path": "a.txt"}}]},
        {"content": "done", "finish": "stop", "delay_s": DELAY_S},
    )
    if (database := postgres.database_of(place.root)) is not None:
        postgres.wait_until_locks_count(database, LEASE_S)
    with start_server(place, receiver, monkeypatch, OTEL_BSP_SCHEDULE_DELAY="60000") as first:
        run_id = call_in_trace(first, "planner_run", goal="look", wait_s=0)["run_id"]
        wait_until(lambda: place.rows("select 1 from step where path = 'round-2'"))
        os.kill(first.pid, signal.SIGKILL)
    assert receiver.spans == []  # the first server has sent nothing
    with start_server(place, receiver, monkeypatch) as second:
        ended = second.call("run_status", run_ids=[run_id], until="attention", wait_s=15)["runs"][0]
        assert ended["status"] == "completed"
        run = wait_for_run(receiver)
        wait_until(lambda: len(receiver.named("step round")) == 2)
        wait_until(lambda: names.TAKEOVERS.name in receiver.metrics)
    assert {span.trace for span in receiver.ours()} == {CLIENT_TRACE}
    paths = {path for (path,) in place.rows("select path from step")}
    assert {span.path for span in receiver.ours() if span.name.startswith("step ")} == paths
    (takeover,) = receiver.named("takeover")
    assert takeover.parent == run.id
    tries = sorted(
        (span.attributes["kairos.attempt"], span) for span in receiver.named("chat") if span.path == "round-2"
    )
    assert [(number, span.attributes.get("error.type")) for number, span in tries] == [(1, "unknown"), (2, None)]
    assert tries[0][1].started < takeover.started <= tries[1][1].started + 10**6


@pytest.mark.slow
def test_a_server_behind_this_one_is_told_a_span_that_was_sent(
    place: Place, receiver: Collector, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    log = tmp_path / "peer.log"
    program, arguments = json.dumps(sys.executable), json.dumps([str(PEER), f"log={log}", "meta"])
    place.home.mkdir(mode=0o700)
    lines = (
        "[servers.x]",
        f"command = {program}",
        f"args = {arguments}",
        "sandbox = false",
        'effects = { "echo" = "read" }',
    )
    (place.home / "kairos.toml").write_text("\n".join(lines))
    call = {"name": "x__echo", "arguments": {"text": "hello"}}
    write_script(place, {"content": "look", "tool_calls": [call]}, {"content": "done", "finish": "stop"})
    with start_server(place, receiver, monkeypatch) as client:
        report = call_in_trace(client, "planner_run", goal="use it", tools=["x__*"], wait_s=20)
        assert report["status"] == "completed"
        wait_for_run(receiver)
        (told,) = [json.loads(line[5:]) for line in log.read_text().splitlines() if line.startswith("meta ")]
        _, trace, span_id, _ = told["traceparent"].split("-")
        sent = wait_until(lambda: [span for span in receiver.spans if span.id == span_id])[0]
    (ours,) = receiver.named("execute_tool x__echo")
    assert (trace, sent.scope, sent.parent) == (CLIENT_TRACE, OF_MCP, ours.id)


@pytest.mark.slow
def test_a_receiver_that_never_answers_holds_up_no_run_and_no_end(
    place: Place, receiver: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_script(place, {"content": "done", "finish": "stop"})
    with start_server(place, receiver, monkeypatch, OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9") as client:
        assert client.call("planner_run", goal="look", wait_s=10)["status"] == "completed"
        client.server.stdin.close()
        assert client.ends() == 0
        client.server.stdin = open(os.devnull, "wb")  # noqa: SIM115 - closed again with the client


def test_an_exporter_that_is_not_known_here_is_said_at_the_start(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    environ = {**os.environ, "KAIROS_TELEMETRY": "true", "OTEL_TRACES_EXPORTER": "zipkin"}
    ran = run_program(["serve", "--home", str(place.home)], env=environ)
    assert ran.returncode == 2
    assert "OTEL_TRACES_EXPORTER" in ran.stderr
    assert "Traceback" not in ran.stderr
