"""The PROTOCOL cases of fault_cases.json that concern asking a client, by id; each ends with a call that is answered.

Elsewhere: PROTOCOL-018 and -024 (dialogs: tests/approvals/test_dialogs.py), -029 (a client that takes no stream:
tests/http/test_fault_cases_http.py), -032 (a change that a cancel meets: tests/crash/test_cancelled_change.py).
PROTOCOL-009's refusal to listen is the HTTP listener's; the binding to a principal is in test_rounds.
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

import mcp_types as wire
import pytest
from mcp.shared.exceptions import MCPError
from support.app import Books, says
from support.sampling_clients import (
    LEGACY,
    MODERN,
    ClientModel,
    ConnectedClient,
    Silent,
    asks_of,
    bodies,
    connect_client,
    open_client,
    text_reply,
)
from support.sampling_lines import reply

from kairos_mcp.app.app import App
from kairos_mcp.core.messages import ToolCall
from kairos_mcp.models.dialects import encode_text_turn
from kairos_mcp.store.key_file import KEY_FILE

GO = {"goal": "go"}
DONE = '{"final": "done"}'


async def first_round(client: ConnectedClient) -> dict[str, Any]:
    """What a client carries to its second request: the state of the first, and an answer to what it was asked."""
    asked = await client.step_to_requests("planner_run", GO)
    return {"state": asked.request_state, "answers": {"round-1": LOOK_A}}


LOOK_A, LOOK_B = (
    text_reply(encode_text_turn("", [ToolCall("", "read_file", {"path": path})])) for path in ("a.txt", "b.txt")
)


@pytest.mark.parametrize("case", ["PROTOCOL-002", "PROTOCOL-003", "PROTOCOL-004", "PROTOCOL-005"])
async def test_a_state_counts_once(place, case):
    async with open_client(place.settings(), MODERN, ClientModel([])) as client:
        carried = await first_round(client)
        match case:
            case "PROTOCOL-003":
                came = await asyncio.gather(*(client.step_to_requests("planner_run", GO, **carried) for _ in range(8)))
            case _:
                newest = await client.step_to_requests("planner_run", GO, **carried)
                if case == "PROTOCOL-005":  # another round on
                    answers = {"round-2": LOOK_B}
                    newest = await client.step_to_requests(
                        "planner_run", GO, state=newest.request_state, answers=answers
                    )
                other = {"answers": {"round-1": text_reply(DONE)}} if case == "PROTOCOL-004" else {}
                came = [newest, await client.step_to_requests("planner_run", GO, **{**carried, **other})]
        assert len({tuple(result.input_requests) for result in came}) == 1
        (run_id,) = place.rows("select id from run")[0]
        assert bodies(place, run_id)["round-1"]["tool_calls"]
        assert place.rows("select count(*) from step where path like 'round-1/%'") == [(1,)]
        await client.still_answers()


@pytest.mark.state_file("a database has no file for the key")
async def test_PROTOCOL_012_with_the_key_lost_the_run_goes_on_by_its_id(place):
    async with open_client(place.settings(), MODERN, ClientModel([])) as client:
        carried = await first_round(client)
    (place.home / KEY_FILE).unlink()
    async with open_client(place.settings(), MODERN, ClientModel([says("done")])) as client:
        with pytest.raises(MCPError) as error:
            await client.step("planner_run", GO, **carried)
        assert error.value.error.code == wire.INVALID_PARAMS
        (run,) = (await client.still_answers())["runs"]
        assert (await client.ask("run_continue", {"run_id": run["run_id"]}))["summary"] == "done"


def test_PROTOCOL_014_016_what_is_no_state_stores_nothing(place, modern_server):
    carried = {"inputResponses": {"round-1": reply(DONE)}}
    asked = modern_server.result(modern_server.call("planner_run", GO, requestState=None, **carried))
    assert list(asked["inputRequests"]) == ["round-1"]  # null is the same as none at all: a first call
    for state in ("", 5, "x" * 3_000_000, {"a": 1}):
        began = time.monotonic()
        error = modern_server.read_error(modern_server.call("planner_run", GO, requestState=state, **carried))
        assert error["code"] == wire.INVALID_PARAMS
        assert time.monotonic() - began < 2
        assert "runs" in modern_server.came("run_status", {})
    assert place.rows("select count(*) from answer") == [(0,)]


async def test_PROTOCOL_020_a_reply_of_another_kind_is_asked_again(place):
    async with open_client(place.settings(), MODERN, ClientModel([])) as client:
        carried = await first_round(client)
        wrong = {"round-1": wire.ElicitResult(action="accept", content={"decision": "approve"})}
        again = await client.step_to_requests("planner_run", GO, state=carried["state"], answers=wrong)
        assert list(again.input_requests) == ["round-1#2"]
        await client.still_answers()


async def test_PROTOCOL_021_022_extra_keys_are_ignored_and_missing_ones_asked_again(place):
    async with open_client(place.settings(), MODERN, ClientModel([])) as client:
        carried = await first_round(client)
        extra = {"round-7": text_reply(DONE)}
        again = await client.step_to_requests("planner_run", GO, state=carried["state"], answers=extra)
        assert list(again.input_requests) == ["round-1#2"]
        assert place.rows("select count(*) from answer") == [(0,)]
        await client.still_answers()


async def test_PROTOCOL_023_a_client_that_never_returns_holds_nothing(place):
    async with open_client(place.settings(), MODERN, ClientModel([])) as client:
        await client.step_to_requests("planner_run", GO)
        (run,) = (await client.still_answers())["runs"]
        assert run["status"] == "input_required"
        assert place.rows("select owner from run") == [(None,)]
        assert Books.of(place, run["run_id"]).held._replace(rounds=0, model_calls=0) == (0,) * 8


async def test_PROTOCOL_025_without_anybody_to_think_the_caller_does(place, era):
    async with open_client(place.settings(), era) as client:
        run = await client.ask("planner_run", GO)
        assert (run["route"], run["status"]) == ("caller", "input_required")
        assert any("caller" in note for note in run["degraded"])


def test_PROTOCOL_031_033_a_cancelled_call_gets_no_answer_and_its_run_goes_on(server):
    number = server.call("planner_run", GO)
    push = server.read_request()
    for request in (number, number, 4711, "nobody"):
        server.send({"method": "notifications/cancelled", "params": {"requestId": request}})
    run = server.came("run_status", {"view": "full"})["runs"][0]
    assert (run["status"], run["route"]) == ("input_required", "sampling")
    number = server.call("run_continue", {"run_id": run["run_id"]})
    server.send({"id": push["id"], "result": reply(DONE)})  # what was asked goes on in the session
    assert server.result(number)["structuredContent"]["summary"] == "done"


async def test_PROTOCOL_034_started_and_cancelled_over_and_over_leaks_nothing(place):
    """100 of them; what the process has before and after is the same."""
    model = Silent([])
    async with open_client(place.settings(), LEGACY, model) as client:
        await client.ask("planner_run", {**GO, "wait_s": 0})
        (run,) = (await client.still_answers())["runs"]
        await client.ask("run_continue", {"run_id": run["run_id"], "wait_s": 1})
        assert model.reached.is_set()
        tasks, descriptors = len(asyncio.all_tasks()), len(os.listdir("/proc/self/fd"))
        for nth in range(101):
            if nth == 1:  # what is opened once at the first is no leak
                descriptors = len(os.listdir("/proc/self/fd"))
            call = asyncio.create_task(client.sdk_client.call_tool("run_continue", {"run_id": run["run_id"]}))
            await client.still_answers()  # the call before it has begun
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
        await client.still_answers()
        assert len(os.listdir("/proc/self/fd")) <= descriptors + 5  # a database's store reads on up to four connections
        assert place.rows("select count(*) from client_completion") == [(1,)]
        async with asyncio.timeout(5):
            while len(asyncio.all_tasks()) > tasks:  # noqa: ASYNC110 - nothing says when a cancelled task is gone
                await asyncio.sleep(0)


def test_PROTOCOL_037_a_modern_request_on_a_legacy_connection_is_refused(server):
    """The SDK fixes the era with the first line."""
    server.era = MODERN
    error = server.read_error(server.call("planner_run", GO))
    server.era = LEGACY
    assert error["code"] == wire.INVALID_REQUEST
    assert "runs" in server.came("run_status", {})


async def test_PROTOCOL_009_a_state_counts_for_its_own_client_and_gives_no_other_the_run(place):
    """Two clients of one principal share its runs; a principal's state is refused to another (test_rounds)."""
    async with (
        App.open(place.settings(), via="mcp") as app,
        connect_client(app, MODERN, ClientModel([]), name="a") as one,
        connect_client(app, MODERN, ClientModel([])) as two,
    ):
        asked = await one.step_to_requests("planner_run", GO)
        ended = await two.step_to_result(
            "planner_run", GO, state=asked.request_state, answers={"round-1": text_reply(DONE)}
        )
        assert ended["status"] == "completed"
        await one.still_answers()
    assert asks_of(place) == [{"round-1": "round-1"}]
