"""Servers as processes: killed between two rounds and during a push; another one goes on."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator

import pytest
from support.app import reads, says
from support.sampling_clients import LEGACY, MODERN, ClientModel, bodies, open_client, paths
from support.sampling_lines import Lines, reply

from kairos_mcp.core.messages import ToolCall
from kairos_mcp.models.dialects import encode_text_turn

LOOK = encode_text_turn("", [ToolCall("", "read_file", {"path": "a.txt"})])
DONE = json.dumps({"final": "alpha"})
STEPS = ["round-1", "round-1/call-1", "round-2"]


@pytest.fixture
def server(place) -> Iterator[Callable[[str], Lines]]:
    started: list[Lines] = []

    def start(era: str) -> Lines:
        started.append(Lines.start(place, era))
        return started[-1]

    yield start
    for lines in started:
        lines.stop()


def test_killed_between_two_rounds_another_process_takes_the_next_call(place, server):
    one = server(MODERN)
    asked = one.result(one.call("planner_run", {"goal": "go"}))
    answers = {next(iter(asked["inputRequests"])): reply(LOOK)}
    carried = {"requestState": asked["requestState"], "inputResponses": answers}
    asked = one.result(one.call("planner_run", {"goal": "go"}, **carried))
    assert list(asked["inputRequests"]) == ["round-2"]
    one.stop()

    two = server(MODERN)
    carried = {"requestState": asked["requestState"], "inputResponses": {"round-2": reply(DONE)}}
    ended = two.came("planner_run", {"goal": "go"}, **carried)
    assert (ended["status"], ended["summary"]) == ("completed", "alpha")
    assert paths(place, ended["run_id"]) == STEPS
    again = two.came("planner_run", {"goal": "go"}, **carried)
    assert (again["run_id"], again["status"]) == (ended["run_id"], "completed")


async def test_killed_during_a_push_the_run_waits_and_another_server_charges_the_ask_and_goes_on(place, server):
    """Its row is all that is left of the ask: its bound is charged before another client is asked."""
    one = server(LEGACY)
    one.call("planner_run", {"goal": "go"})
    push = one.read_request()
    one.send({"id": push["id"], "result": reply(LOOK)})
    one.read_request()
    one.stop()
    async with open_client(place.settings(), LEGACY, ClientModel([says("by another")])) as client:
        (run,) = (await client.still_answers())["runs"]
        assert (run["status"], run["route"]) == ("input_required", "sampling")
        assert list(bodies(place, run["run_id"])) == ["round-1", "round-1/call-1"]
        assert place.rows("select ended from client_completion order by id") == [("answered",), (None,)]
        ended = await client.ask("run_continue", {"run_id": run["run_id"]})
        assert ended["summary"] == "by another"
        assert (ended["usage"]["model_calls"], ended["usage"]["attempts"]) == (3, 3)
        assert ended["usage"]["exactness"] == "bounded"
        assert paths(place, run["run_id"]) == STEPS


async def test_a_client_that_hangs_up_during_a_push_ends_the_server_and_refuses_nothing(place, server):
    one = server(LEGACY)
    one.call("planner_run", {"goal": "go"})
    one.read_request()
    one.server.stdin.close()
    assert one.server.wait(10) == 0
    async with open_client(place.settings(), LEGACY, ClientModel([reads("a.txt"), says("alpha")])) as client:
        (run,) = (await client.still_answers())["runs"]
        assert (run["status"], run["route"]) == ("input_required", "sampling")
        assert (await client.ask("run_continue", {"run_id": run["run_id"]}))["summary"] == "alpha"


def test_a_reply_that_is_no_reply_leaves_the_server_answering(server):
    one = server(LEGACY)
    for bad in [{}, {"role": "assistant"}, reply("x", content="x"), reply("x", role="robot"), reply("x", content=None)]:
        number = one.call("planner_run", {"goal": json.dumps(bad)})
        push = one.read_request()
        one.send({"id": push["id"], "result": bad})
        run = one.result(number)["structuredContent"]
        assert (run["route"], run["status"]) == ("caller", "input_required")
    assert len(one.came("run_status", {})["runs"]) == 5


def test_a_late_answer_counts_and_one_for_nothing_is_ignored(server):
    one = server(LEGACY)
    number = one.call("planner_run", {"goal": "go", "wait_s": 1})
    push = one.read_request()
    assert one.result(number)["structuredContent"]["status"] == "input_required"
    one.send({"id": 4711, "result": reply(DONE)})
    one.send({"id": push["id"], "result": reply(DONE)})
    (run,) = one.came("run_status", {"until": "done", "view": "full"})["runs"]
    assert (run["status"], run["usage"]["model_calls"]) == ("completed", 1)


def test_a_reply_that_is_too_large_is_named_as_that_and_not_waited_for(place, server):
    one = server(LEGACY)
    began = time.monotonic()
    call = one.call("planner_run", {"goal": "go"})
    one.send({"id": one.read_request()["id"], "result": reply("x" * (17 * 2**20))})
    ended = one.result(call)["structuredContent"]
    assert time.monotonic() - began < 25  # an ask that stays silent is waited for longer
    assert ended["route"] == "caller"
    assert any("at most 16777216 bytes" in text for text in ended["degraded"]), ended["degraded"]
