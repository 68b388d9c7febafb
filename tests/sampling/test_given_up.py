"""Clients that give up before their model has answered, that go away, or that stay silent: what each ask costs, whose
answer counts, and who may ask next."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import Any

import mcp_types as wire
import pytest
from support.app import Place, assert_all_lawful, assert_lawful, reads, says
from support.postgres import on_database
from support.sampling_clients import (
    LEGACY,
    MODERN,
    ClientModel,
    ConnectedClient,
    Reply,
    Silent,
    bodies,
    connect_client,
    encode_reply,
    image_reply,
    open_client,
    text_reply,
)

from kairos_mcp.app.app import App
from kairos_mcp.server.call import DEFAULT_WAIT_POLICY
from kairos_mcp.store.rows import Session

WITHIN_S = 15.0


@dataclass
class Slow(ClientModel):
    """A model that takes its time for each turn, longer than its client waits for a call. `asked` counts at once."""

    seconds: float = 0.4
    begun: int = 0
    reached: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, ctx: object, params: wire.CreateMessageRequestParams) -> Reply:
        self.begun += 1
        self.reached.set()
        await asyncio.wait([asyncio.create_task(asyncio.Event().wait())], timeout=self.seconds)
        return await super().__call__(ctx, params)


@dataclass
class Counting(Silent):
    """A model that never answers; `begun` counts how often it was asked."""

    begun: int = 0

    async def __call__(self, ctx: object, params: wire.CreateMessageRequestParams) -> Reply:
        self.begun += 1
        return await super().__call__(ctx, params)


async def gives_up(
    client: ConnectedClient, name: str, arguments: dict[str, Any], after_s: float
) -> dict[str, Any] | None:
    """A call that its client waits for no longer than this; None where it had to give up."""
    await client.ask("run_status")  # to open a store may take longer than that
    call = asyncio.create_task(client.ask(name, arguments))
    done, _ = await asyncio.wait([call], timeout=after_s)
    if done:
        return call.result()
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    return None


async def gives_up_once_asked(
    client: ConnectedClient, model: Silent | Slow, name: str, arguments: dict[str, Any]
) -> None:
    """A call that its client waits for no longer than until its model is asked."""
    call = asyncio.create_task(client.ask(name, arguments))
    await asyncio.wait_for(model.reached.wait(), WITHIN_S)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)


async def the_run(client: ConnectedClient) -> dict[str, Any]:
    (run,) = (await client.ask("run_status", {"view": "full"}))["runs"]
    return run


async def test_a_model_slower_than_its_clients_patience_still_gets_to_the_end(place: Place):
    model = Slow([reads("a.txt"), reads("b.txt"), says("done")])
    async with open_client(place.settings(), LEGACY, model) as client, asyncio.timeout(WITHIN_S):
        await gives_up_once_asked(client, model, "planner_run", {"goal": "go", "limits": {"model_calls": 4}})
        run_id, ended = (await the_run(client))["run_id"], None
        while ended is None or ended["status"] not in ("completed", "stopped", "failed"):
            ended = await gives_up(client, "run_continue", {"run_id": run_id}, 0.15)
    assert (ended["status"], ended["summary"]) == ("completed", "done")
    assert (model.begun, ended["usage"]["model_calls"]) == (3, 3)


async def test_an_ask_ends_with_its_session_and_is_charged_at_its_bound(place: Place):
    async with App.open(place.settings(), via="mcp") as app:
        model = Counting([])
        async with connect_client(app, LEGACY, model) as client:
            await gives_up_once_asked(client, model, "planner_run", {"goal": "go"})
            waits = await the_run(client)
            assert (waits["status"], waits["usage"]["model_calls"]) == ("input_required", 0)
        async with connect_client(app, LEGACY) as client, asyncio.timeout(WITHIN_S):
            while (run := await the_run(client))["usage"]["attempts"] == 0:  # noqa: ASYNC110 - no event tells
                await asyncio.sleep(0.01)
        assert run["usage"]["model_calls"] == run["usage"]["attempts"] == 1
        assert run["usage"]["exactness"] == "bounded"
        assert run["usage"]["input_tokens"] > 1_000
        assert run["usage"]["output_tokens"] >= 1_024
        assert (run["status"], run["route"]) == ("input_required", "sampling")
        assert any("without an answer" in note for note in run["degraded"])
        await assert_all_lawful(app)


@pytest.mark.parametrize("limits", [{"model_calls": 2}, {"total_tokens": 9_000}], ids=str)
async def test_no_limit_is_passed_by_clients_that_go_away_again_and_again(place: Place, limits: dict[str, int]):
    begun = 0
    async with App.open(place.settings(), via="mcp") as app:
        run: dict[str, Any] = {"status": "", "run_id": None}
        for _ in range(6):
            model = Counting([])
            async with connect_client(app, LEGACY, model) as client:
                if run["run_id"] is None:
                    arguments = {"goal": "go", "limits": limits, "route": "sampling"}
                    await gives_up(client, "planner_run", arguments, 0.3)
                else:
                    await gives_up(client, "run_continue", {"run_id": run["run_id"]}, 0.3)
            begun += model.begun
            async with connect_client(app, LEGACY) as client:
                run = await the_run(client)
            assert_lawful(place, run["run_id"])
            if run["status"] == "completed":
                break
        assert (run["status"], run["stop_reason"]) == ("stopped", "budget")
        assert begun <= 2
        for unit, most in limits.items():
            used = run["usage"]
            spent = used[unit] if unit in used else used["input_tokens"] + used["output_tokens"]
            assert spent <= most, unit
        await assert_all_lawful(app)


async def test_another_client_takes_the_ask_over_at_once_and_the_silent_one_is_held_against_nobody(place: Place):
    """The first one's call is still open and waits: it asks no more, and its silence moves the run nowhere."""
    dead, living = Counting([]), ClientModel([reads("a.txt"), says("by the living")])
    hasty = replace(DEFAULT_WAIT_POLICY, first_s=5.0)
    async with (
        App.open(place.settings(), via="mcp") as app,
        connect_client(app, LEGACY, dead, patience=hasty, name="dead") as one,
        connect_client(app, LEGACY, living, name="living") as two,
    ):
        call = asyncio.create_task(one.ask("planner_run", {"goal": "go", "wait_s": 15}))
        await asyncio.wait_for(dead.reached.wait(), 5)
        run_id = (await the_run(two))["run_id"]
        async with asyncio.timeout(4.0):
            ended = await two.ask("run_continue", {"run_id": run_id})
        assert (ended["status"], ended["route"], ended["summary"]) == ("completed", "sampling", "by the living")
        assert (dead.begun, len(living.asked)) == (1, 2)
        assert (ended["usage"]["model_calls"], ended["usage"]["attempts"]) == (3, 3)
        assert (await call)["status"] == "completed"
        await assert_all_lawful(app)


async def test_a_late_answer_counts_while_its_step_waits_and_its_real_charge_replaces_the_bound(place: Place):
    """The first client was taken over from; it answers first all the same, and the other one's ask is called off."""
    late, other = Counting([says("late")]), Counting([])
    async with (
        App.open(place.settings(), via="mcp") as app,
        connect_client(app, LEGACY, late, name="late") as one,
        connect_client(app, LEGACY, other, name="other") as two,
    ):
        await gives_up_once_asked(one, late, "planner_run", {"goal": "go"})
        run_id = (await the_run(two))["run_id"]
        call = asyncio.create_task(two.ask("run_continue", {"run_id": run_id}))
        await asyncio.wait_for(other.reached.wait(), 5)
        late.go.set()
        ended = await asyncio.wait_for(call, 5)
        assert (ended["status"], ended["summary"]) == ("completed", "late")
        assert (ended["usage"]["model_calls"], ended["usage"]["attempts"]) == (2, 2)  # the other one was asked too
        await assert_all_lawful(app)


async def test_a_late_answer_alone_is_charged_with_what_it_cost(place: Place):
    """Where nobody was asked in its place, since the client that took over refused: nothing of the bound is left."""
    late = Counting([says("late")])
    async with (
        App.open(place.settings(), via="mcp") as app,
        connect_client(app, LEGACY, late, name="late") as one,
        connect_client(app, LEGACY, ClientModel([wire.ErrorData(code=-1, message="no")]), name="refuses") as two,
    ):
        await gives_up_once_asked(one, late, "planner_run", {"goal": "go", "route": "sampling"})
        run_id = (await the_run(two))["run_id"]
        waits = await two.ask("run_continue", {"run_id": run_id})
        assert (waits["status"], waits["usage"]["model_calls"], waits["usage"]["exactness"]) == (
            *("input_required", 1),
            "bounded",
        )
        late.go.set()
        await two.ask("run_status", {"run_ids": [run_id], "until": "done", "wait_s": 10})
        ended = await the_run(two)
        assert (ended["status"], ended["summary"]) == ("completed", "late")
        assert (ended["usage"]["model_calls"], ended["usage"]["attempts"]) == (1, 1)
        assert ended["usage"]["exactness"] == "estimated"
        assert ended["usage"]["output_tokens"] < 100
        assert not any("without an answer" in note for note in ended["degraded"])
        await assert_all_lawful(app)


async def test_a_client_that_was_silent_is_not_waited_for_again_in_its_session(place: Place):
    hasty = replace(DEFAULT_WAIT_POLICY, first_s=0.2)
    async with App.open(place.settings(), via="mcp") as app:
        model = Counting([])
        async with connect_client(app, LEGACY, model, patience=hasty) as client:
            first = await client.ask("planner_run", {"goal": "one"})
            assert first["route"] == "caller"
            second = await client.ask("planner_run", {"goal": "two"})
            assert (second["route"], second["usage"]["model_calls"]) == ("caller", 0)
        assert model.begun == 1
        async with connect_client(app, LEGACY, ClientModel([says("by another session")])) as client:
            third = await client.ask("planner_run", {"goal": "three"})
            assert (third["route"], third["summary"]) == ("sampling", "by another session")
        await assert_all_lawful(app)


async def test_a_call_of_the_same_session_adopts_the_ask_in_the_air(place: Place):
    model = Counting([says("once")])
    async with open_client(place.settings(), LEGACY, model) as client:
        await gives_up_once_asked(client, model, "planner_run", {"goal": "go"})
        run_id = (await the_run(client))["run_id"]
        waits = await client.ask("run_continue", {"run_id": run_id, "wait_s": 0})
        assert (waits["status"], waits["next"]["tool"]) == ("input_required", "run_continue")
        call = asyncio.create_task(client.ask("run_continue", {"run_id": run_id}))
        asyncio.get_running_loop().call_later(0.2, model.go.set)
        ended = await asyncio.wait_for(call, 5)
        assert (ended["summary"], model.begun, ended["usage"]["model_calls"]) == ("once", 1, 1)


async def test_an_answer_that_comes_while_no_call_is_open_is_taken(place: Place):
    model = Counting([says("in the meantime")])
    async with open_client(place.settings(), LEGACY, model) as client:
        await gives_up_once_asked(client, model, "planner_run", {"goal": "go"})
        model.go.set()
        run_id = (await the_run(client))["run_id"]
        await client.ask("run_status", {"run_ids": [run_id], "until": "done", "wait_s": 5})
        run = await the_run(client)
        assert (run["status"], run["summary"]) == ("completed", "in the meantime")


@on_database
async def test_an_ask_is_charged_whose_client_answers_badly_and_goes_while_the_database_is_waited_for(place: Place):
    model = Counting([image_reply()])
    async with App.open(place.settings(), via="mcp") as app:
        with place.session() as other:
            async with connect_client(app, LEGACY, model) as client:
                await gives_up_once_asked(client, model, "planner_run", {"goal": "go", "route": "sampling"})
                other.rows("begin")
                other.rows("lock table run in access exclusive mode")
                model.go.set()
                await wait_for_waiting(other)
                asyncio.get_running_loop().call_later(0.1, other.rows, "rollback")
        async with asyncio.timeout(WITHIN_S):
            while place.rows("select ended, charged is not null from client_completion") != [("withdrawn", True)]:  # noqa: ASYNC110 - no event tells
                await asyncio.sleep(0.01)
        await assert_all_lawful(app)


async def wait_for_waiting(session: Session) -> None:
    """Return once another session of the database waits for this one."""
    waits = "select 1 from pg_locks where not granted and pg_backend_pid() = any(pg_blocking_pids(pid))"
    async with asyncio.timeout(WITHIN_S):
        while session.row(waits) is None:  # noqa: ASYNC110 - no event tells
            await asyncio.sleep(0.01)


async def test_on_the_modern_protocol_another_client_takes_over_and_the_first_ones_answer_counts(place: Place):
    async with App.open(place.settings(), via="mcp") as app:
        async with connect_client(app, MODERN, ClientModel([]), name="one") as one:
            first = await one.step_to_requests("planner_run", {"goal": "go"})
            run_id = (await the_run(one))["run_id"]
            async with connect_client(app, MODERN, ClientModel([]), name="two") as two:
                second = await two.step_to_requests("run_continue", {"run_id": run_id})
                assert list(second.input_requests) == ["round-1#2"]
                run = await the_run(two)
                assert run["usage"]["model_calls"] == run["usage"]["attempts"] == 1
            answers = {"round-1": encode_reply(says("the first"), native=False)}
            ended = await one.step_to_result("planner_run", {"goal": "go"}, state=first.request_state, answers=answers)
            assert (ended["status"], ended["summary"]) == ("completed", "the first")
            assert (ended["usage"]["model_calls"], ended["usage"]["attempts"]) == (2, 2)
        await assert_all_lawful(app)


async def test_on_the_modern_protocol_no_limit_is_passed_by_a_client_that_never_answers(place: Place):
    hasty = replace(DEFAULT_WAIT_POLICY, stale_after_s=-1.0)
    arguments = {"goal": "go", "route": "sampling", "limits": {"model_calls": 2}}
    async with open_client(place.settings(), MODERN, ClientModel([]), patience=hasty) as client:
        for key in ("round-1", "round-1#2"):
            asked = await client.step_to_requests("planner_run", arguments)
            assert list(asked.input_requests) == [key]
        ended = await client.step_to_result("planner_run", arguments)
        assert (ended["status"], ended["stop_reason"], ended["usage"]["model_calls"]) == ("stopped", "budget", 2)
        assert len(place.rows("select nonce from client_question")) == 2


async def test_what_is_in_the_air_when_a_run_is_cancelled_stays_charged(place: Place):
    model = Counting([])
    async with open_client(place.settings(), LEGACY, model) as client:
        await gives_up_once_asked(client, model, "planner_run", {"goal": "go"})
        run_id = (await the_run(client))["run_id"]
        await client.ask("run_control", {"run_id": run_id, "action": "cancel"})
        run = await the_run(client)
        assert (run["status"], run["usage"]["model_calls"], run["usage"]["attempts"]) == ("cancelled", 1, 1)
        assert bodies(place, run_id) == {}


@pytest.mark.parametrize("stop_reason", ["toolUse", "tool_use", "tool_calls"])
async def test_a_turn_that_says_that_it_calls_tools_and_calls_none_is_no_final_answer(place: Place, stop_reason: str):
    model = ClientModel([text_reply("I will look.", stop_reason), text_reply("Done.")], native=True)
    async with open_client(place.settings(), LEGACY, model) as client:
        ended = await client.ask("planner_run", {"goal": "go"})
        assert (ended["status"], ended["summary"], len(model.asked)) == ("completed", "Done.", 2)


async def test_a_refusal_costs_nothing_also_where_it_comes_late(place: Place):
    @dataclass
    class Refusing(Silent):
        answers: list[Any] = field(default_factory=list)

        async def __call__(self, ctx: object, params: wire.CreateMessageRequestParams) -> Any:
            self.reached.set()
            await self.go.wait()
            return wire.ErrorData(code=-1, message="no")

    model = Refusing([])
    async with open_client(place.settings(), LEGACY, model) as client:
        await gives_up_once_asked(client, model, "planner_run", {"goal": "go"})
        model.go.set()
        run_id = (await the_run(client))["run_id"]
        run = await client.ask("run_continue", {"run_id": run_id, "wait_s": 5})
        assert (run["usage"]["model_calls"], run["usage"]["input_tokens"]) == (0, 0)
