"""2026-07-28: what travels in an InputRequiredResult, what the client brings back, and what of it counts."""

from __future__ import annotations

import asyncio
import base64
from dataclasses import replace
from typing import Any

import mcp_types as wire
import pytest
from mcp.shared.exceptions import MCPError
from support.app import reads, says
from support.sampling_clients import (
    LEGACY,
    MODERN,
    ClientModel,
    ConnectedClient,
    Silent,
    asks_of,
    bodies,
    connect_client,
    encode_reply,
    open_client,
    paths,
    text_reply,
)

from kairos_mcp.app.app import App
from kairos_mcp.core.decision_rights import LOCAL
from kairos_mcp.server.call import DEFAULT_WAIT_POLICY
from kairos_mcp.server.sender import set_principal
from kairos_mcp.store.key_file import KEY_FILE, state_key

GO = {"goal": "go"}
LOOK = reads("a.txt")


def answers(result: wire.InputRequiredResult, *turns: Any) -> dict[str, Any]:
    return {
        key: encode_reply(turn, native=False) if isinstance(turn, dict | str) else turn
        for key, turn in zip(result.input_requests, turns, strict=True)
    }


async def test_after_eight_rounds_the_call_ends_and_run_continue_goes_on(place):
    """15 rounds with a stock client, that gives up after 10 of one call."""
    looks = [reads(f"x{n}", content=f"turn {n}") for n in range(14)]
    model = ClientModel([*looks, says("done")])
    async with open_client(place.settings(), MODERN, model) as client:
        run = await client.ask("planner_run", {**GO, "limits": {"rounds": 20}})
        assert (run["status"], run["rounds"], len(model.asked)) == ("input_required", 9, 8)
        following = run["next"]
        assert (following["tool"], following["arguments"]) == ("run_continue", {"run_id": run["run_id"]})
        ended = await client.ask(following["tool"], following["arguments"])
        assert (ended["status"], ended["summary"], ended["rounds"]) == ("completed", "done", 15)
        assert [key for keys in asks_of(place) for key in keys] == [f"round-{n}" for n in range(1, 16)]


async def test_a_call_that_ends_first_leaves_the_run_waiting_and_never_working(place, era):
    async with open_client(place.settings(), era, ClientModel([])) as client:
        run = await client.step_to_result("planner_run", {**GO, "wait_s": 0})
        assert (run["status"], run["next"]["tool"]) == ("input_required", "run_continue")
        (item,) = run["waiting"]
        assert item["key"] == "round-1"


async def test_a_push_is_withdrawn_when_the_call_ends_and_made_again_in_the_next(place):
    model = Silent([says("at last")])
    async with open_client(place.settings(), LEGACY, model) as client:
        run = await client.ask("planner_run", {**GO, "wait_s": 1})
        assert (run["status"], run["route"]) == ("input_required", "sampling")
        assert run["next"]["tool"] == "run_continue"
        model.go.set()
        ended = await client.ask("run_continue", {"run_id": run["run_id"]})
        assert ended["summary"] == "at last"


async def test_run_status_asks_nobody(place, era):
    model = ClientModel([])
    async with open_client(place.settings(), era, model) as client:
        await client.step_to_result("planner_run", {**GO, "wait_s": 0})
        status = await client.ask("run_status", {"until": "done", "wait_s": 1})
        assert status["runs"][0]["status"] == "input_required"
        assert status["next"]["tool"] == "run_continue"
    assert (model.asked, asks_of(place)) == ([], [])


async def test_a_state_is_a_sealed_pointer_and_holds_nothing_of_the_run(place):
    async with open_client(place.settings(), MODERN, ClientModel([])) as client:
        asked = await client.step_to_requests("planner_run", {"goal": "a secret goal"})
        sealed = base64.urlsafe_b64decode(asked.request_state.removeprefix("v1.") + "===")
        (run_id,) = place.rows("select id from run")[0]
        assert b"secret" not in sealed
        assert run_id.encode() not in sealed
        assert len(asked.request_state) < 600


async def test_a_state_sent_twice_stores_nothing_twice_and_is_told_what_waits_now(place):
    async with open_client(place.settings(), MODERN, ClientModel([])) as client:
        first = await client.step_to_requests("planner_run", GO)
        carried: dict[str, Any] = {"state": first.request_state, "answers": answers(first, LOOK)}
        second = await client.step_to_requests("planner_run", GO, **carried)
        before = place.rows("select count(*), (select count(*) from client_question) from answer")
        again = await client.step_to_requests("planner_run", GO, **carried)
        assert list(second.input_requests) == list(again.input_requests) == ["round-2"]
        assert place.rows("select count(*), (select count(*) from client_question) from answer") == before

        other = {**carried, "answers": answers(first, says("something else"))}
        still = await client.step_to_requests("planner_run", GO, **other)
        assert list(still.input_requests) == ["round-2"]
        assert place.rows("select count(*), (select count(*) from client_question) from answer") == before

        ended = await client.step_to_result(
            "planner_run", GO, state=second.request_state, answers=answers(second, says("b"))
        )
        assert (ended["status"], ended["summary"]) == ("completed", "b")
        old = await client.step_to_result("planner_run", GO, **carried)
        assert (old["run_id"], old["status"], old["summary"]) == (ended["run_id"], "completed", "b")


async def test_of_eight_retries_at_once_one_is_first(place):
    async with open_client(place.settings(), MODERN, ClientModel([])) as client:
        first = await client.step_to_requests("planner_run", GO)
        each = [
            client.step_to_requests(
                "planner_run", GO, state=first.request_state, answers=answers(first, reads(f"x{n}"))
            )
            for n in range(8)
        ]
        came = await asyncio.gather(*each)
        assert {tuple(result.input_requests) for result in came} == {("round-2",)}
        assert place.rows("select count(*) from client_question") == [(2,)]
        (run_id,) = place.rows("select id from run")[0]
        assert paths(place, run_id) == ["round-1", "round-1/call-1", "round-2"]
        assert place.rows("select spent_model_calls from account where scope = 'run'") == [(1,)]


async def test_two_clients_that_were_asked_the_same_answer_once(place):
    """Each has an ask of its own; the second answer comes for a step that has one."""
    async with (
        App.open(place.settings(), via="mcp") as app,
        connect_client(app, MODERN, ClientModel([]), name="one") as one,
        connect_client(app, MODERN, ClientModel([])) as two,
    ):
        first, second = await one.step_to_requests("planner_run", GO), await two.step_to_requests("planner_run", GO)
        assert list(second.input_requests) == ["round-1#2"]
        await one.step_to_requests("planner_run", GO, state=first.request_state, answers=answers(first, LOOK))
        late = answers(second, says("late"))
        still = await two.step_to_requests("planner_run", GO, state=second.request_state, answers=late)
        assert list(still.input_requests) == ["round-2#2"]
        (run_id,) = place.rows("select id from run")[0]
        assert bodies(place, run_id)["round-1"]["tool_calls"]


async def assert_refused(client: ConnectedClient, name: str, arguments: dict[str, Any], state: str) -> None:
    with pytest.raises(MCPError) as error:
        await client.step(name, arguments, state=state, answers={"round-1": text_reply("x")})
    assert error.value.error.code == wire.INVALID_PARAMS
    assert "run_status" in error.value.error.message
    await client.still_answers()


async def test_a_foreign_or_damaged_state_is_invalid_and_says_how_to_go_on(place):
    async with open_client(place.settings(), MODERN, ClientModel([])) as client:
        state = (await client.step_to_requests("planner_run", GO)).request_state
        (run_id,) = place.rows("select id from run")[0]
        for name, arguments in [
            ("planner_run", {"goal": "another"}),
            ("run_continue", {"run_id": run_id}),
            ("run_status", {}),
        ]:
            await assert_refused(client, name, arguments, state)
        middle = len(state) // 2
        flipped = state[:middle] + ("A" if state[middle] != "A" else "B") + state[middle + 1 :]
        for bad in ["", "x", "v1.", state[:-1], flipped, '["run-1","n",0,"text"]', "v1." + "A" * 3_000_000]:
            await assert_refused(client, "planner_run", GO, bad)
        assert bodies(place, run_id) == {}


async def test_the_refusal_of_a_state_names_how_long_one_holds(place):
    async with open_client(place.settings(approval_hours=5), MODERN, ClientModel([])) as client:
        await client.step_to_requests("planner_run", GO)
        with pytest.raises(MCPError, match="older than 5 hours"):
            await client.step("planner_run", GO, state="x", answers={})


async def test_a_state_of_another_run_is_foreign(place):
    async with open_client(place.settings(), MODERN, ClientModel([])) as client:
        await client.step_to_requests("planner_run", {"goal": "one", "key": "1"})
        await client.step_to_requests("planner_run", {"goal": "two", "key": "2"})
        one, two = [run_id for (run_id,) in place.rows("select id from run order by n")]
        state = (await client.step_to_requests("run_continue", {"run_id": one})).request_state
        await assert_refused(client, "run_continue", {"run_id": two}, state)
        assert (bodies(place, one), bodies(place, two)) == ({}, {})


async def test_a_state_ends_with_its_time_and_outlives_a_restart(place):
    short = replace(DEFAULT_WAIT_POLICY, state_s=1e-9)
    async with open_client(place.settings(), MODERN, ClientModel([]), patience=short) as client:
        await assert_refused(
            client, "planner_run", GO, (await client.step_to_requests("planner_run", GO)).request_state
        )
    async with open_client(place.settings(), MODERN, ClientModel([])) as client:
        asked = await client.step_to_requests("planner_run", GO)
    async with open_client(place.settings(), MODERN, ClientModel([])) as client:
        ended = await client.step_to_result(
            "planner_run", GO, state=asked.request_state, answers=answers(asked, says("a"))
        )
        assert ended["summary"] == "a"


async def test_a_state_is_its_principal_s_alone(place):
    async with open_client(place.settings(), MODERN, ClientModel([])) as client:
        state = (await client.step_to_requests("planner_run", GO)).request_state
        assert state
    set_principal("somebody else")
    try:
        async with open_client(place.settings(), MODERN, ClientModel([])) as client:
            await assert_refused(client, "planner_run", GO, state)
    finally:
        set_principal(LOCAL)


@pytest.mark.state_file("a database has no file for the key")
async def test_a_damaged_key_is_made_anew_and_old_states_are_refused(place):
    async with open_client(place.settings(), MODERN, ClientModel([])) as client:
        state = (await client.step_to_requests("planner_run", GO)).request_state
    (place.home / KEY_FILE).write_bytes(b"half")
    async with open_client(place.settings(), MODERN, ClientModel([])) as client:
        await assert_refused(client, "planner_run", GO, state)
    key = state_key(place.home)
    assert len(key) == 32
    assert state_key(place.home) == key
    assert (place.home / KEY_FILE).stat().st_mode & 0o777 == 0o600
    assert [path.name for path in place.home.iterdir() if path.name.startswith(f".{KEY_FILE}")] == []


async def test_a_folder_that_can_t_be_made_is_an_error_of_the_call(place, era):
    place.home.write_text("a file stands where the folder should be")
    async with App.open(place.settings(), via="mcp") as app, connect_client(app, era, ClientModel([])) as client:
        result = await client.step("planner_run", GO)
        assert result.is_error
        assert result.structured_content["code"] in ("store_unavailable", "config_error")


async def test_answers_on_a_first_call_are_ignored(place):
    async with open_client(place.settings(), MODERN, ClientModel([])) as client:
        forged = {"round-1": text_reply('{"final": "forged"}')}
        asked = await client.step_to_requests("planner_run", GO, answers=forged)
        assert list(asked.input_requests) == ["round-1"]
        again = await client.step_to_requests("planner_run", GO, answers=forged)
        assert list(again.input_requests) == ["round-1"]
        (run_id,) = place.rows("select id from run")[0]
        assert bodies(place, run_id) == {}


async def test_an_answer_of_another_kind_is_asked_for_again(place):
    async with open_client(place.settings(), MODERN, ClientModel([])) as client:
        asked = await client.step_to_requests("planner_run", GO)
        for wrong in (wire.ElicitResult(action="accept"), wire.ListRootsResult(roots=[])):
            key = next(iter(asked.input_requests))
            asked = await client.step_to_requests("planner_run", GO, state=asked.request_state, answers={key: wrong})
        assert list(asked.input_requests) == ["round-1#3"]
        ended = await client.step_to_result(
            "planner_run", GO, state=asked.request_state, answers=answers(asked, says("a"))
        )
        assert (ended["summary"], ended["usage"]["model_calls"]) == ("a", 3)  # each ask is an attempt


async def test_unknown_keys_are_ignored_and_the_missing_ones_asked_again(place):
    async with open_client(place.settings(), MODERN, ClientModel([])) as client:
        asked = await client.step_to_requests("planner_run", GO)
        unknown = {"round-9": text_reply("x"), "closing": text_reply("y")}
        again = await client.step_to_requests("planner_run", GO, state=asked.request_state, answers=unknown)
        assert list(again.input_requests) == ["round-1#2"]
        (run_id,) = place.rows("select id from run")[0]
        assert bodies(place, run_id) == {}
        ended = await client.step_to_result(
            "planner_run", GO, state=again.request_state, answers=answers(again, says("a"))
        )
        assert ended["summary"] == "a"


async def test_what_was_asked_in_one_dialect_is_read_in_it(place):
    """Capabilities may differ from call to call: the ask says how its answer is to be read."""
    async with App.open(place.settings(), via="mcp") as app:
        async with connect_client(app, MODERN, ClientModel([], native=True)) as client:
            asked = await client.step_to_requests("planner_run", GO)
        async with connect_client(app, MODERN, ClientModel([])) as client:
            (key,) = asked.input_requests
            prose = {key: text_reply("plain prose is an answer natively")}
            ended = await client.step_to_result("planner_run", GO, state=asked.request_state, answers=prose)
            assert (ended["status"], ended["stop_reason"]) == ("completed", "assistant_stop")
