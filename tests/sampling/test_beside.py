"""Two open requests of one run at once: pushed side by side, or together in one round."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import mcp_types as wire
import pytest
from support.app import assert_all_lawful, says
from support.other_flow import OtherFlow
from support.sampling_clients import (
    LEGACY,
    MODERN,
    Broken,
    ClientModel,
    asks_of,
    bodies,
    connect_client,
    encode_reply,
    paths,
    text_reply,
)

from kairos_mcp.app.app import App
from kairos_mcp.app.client_requests import ClientReply
from kairos_mcp.core.decision_rights import Caller
from kairos_mcp.core.messages import Completion, Conversation, Message
from kairos_mcp.core.outcomes import Outcome, make_outcome
from kairos_mcp.core.steps import Branch, Flow, Gather, RequestCompletion
from kairos_mcp.server.call import DEFAULT_WAIT_POLICY
from kairos_mcp.settings.settings import Settings
from kairos_mcp.specs.load import LoadedSpec
from kairos_mcp.store import client_questions, ownership, queries
from kairos_mcp.store.inbox import RecordedAnswers, SubmittedAnswer

pytestmark = pytest.mark.unreplayed  # a flow of its own

NUMBER_OF_BRANCHES = 2


def asked_one(name: str) -> Flow[str]:
    talk = Conversation((Message("user", f"What does {name} say?"),))
    answer = yield from RequestCompletion("round-1", "round", talk)
    return answer.content if isinstance(answer, Completion) else answer.kind


def two_at_once() -> Flow[Outcome]:
    """A flow of two branches, each one question."""
    names = [f"task-{n}" for n in range(1, NUMBER_OF_BRANCHES + 1)]
    outcomes = yield from Gather({name: Branch(asked_one(name)) for name in names})
    return make_outcome("assistant_stop", " and ".join(str(each) for each in outcomes.values()), None, ())


class Pairs(OtherFlow):
    """A wiring whose every run is this flow."""

    def change(self, loaded: LoadedSpec) -> LoadedSpec:
        return replace(loaded, flow=two_at_once)


@asynccontextmanager
async def open_pair_app(settings: Settings) -> AsyncIterator[App]:
    now, number = count(10**12), count(1)
    app = App(settings, "mcp", lambda: next(now), lambda: f"run-{next(number)}", make_factory=Pairs)
    try:
        yield app
        await assert_all_lawful(app)
    finally:
        await app._close()


@dataclass
class Counting(ClientModel):
    """Answers only when as many requests are in the air as there are branches, or not at all."""

    together: int = NUMBER_OF_BRANCHES
    here: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def __call__(self, _ctx: object, params: wire.CreateMessageRequestParams) -> Any:
        async with self.here:
            self.asked.append(params)
            self.here.notify_all()
            await self.here.wait_for(lambda: len(self.asked) >= self.together)
        return text_reply(f"I say {params.messages[-1].content.text.split()[2]}")


async def test_two_are_in_the_air_at_once_and_in_one_round(place, era):
    model = Counting()
    async with open_pair_app(place.settings()) as app, connect_client(app, era, model) as client:
        ended_run = await client.ask("planner_run", {"goal": "go"})
    assert ended_run["summary"] == "I say task-1 and I say task-2"
    assert paths(place, ended_run["run_id"]) == ["task-1/round-1", "task-2/round-1"]
    if era == MODERN:
        assert asks_of(place) == [{"task-1/round-1": "task-1/round-1", "task-2/round-1": "task-2/round-1"}]


async def test_the_missing_one_is_asked_again_alone(place):
    async with open_pair_app(place.settings()) as app, connect_client(app, MODERN, ClientModel([])) as client:
        asked = await client.step_to_requests("planner_run", {"goal": "go"})
        assert list(asked.input_requests) == ["task-1/round-1", "task-2/round-1"]
        one = {"task-2/round-1": encode_reply(says("second"), native=False)}
        again = await client.step_to_requests("planner_run", {"goal": "go"}, state=asked.request_state, answers=one)
        assert list(again.input_requests) == ["task-1/round-1#2"]
        late = {
            "task-1/round-1": text_reply("not this ask"),
            "task-1/round-1#2": encode_reply(says("first"), native=False),
        }
        ended_run = await client.step_to_result("planner_run", {"goal": "go"}, state=again.request_state, answers=late)
        assert ended_run["summary"] == "first and second"


async def test_an_ask_is_taken_once_also_where_its_answers_are_for_different_steps(place):
    async with open_pair_app(place.settings()) as app, connect_client(app, MODERN, ClientModel([])) as client:
        await client.step_to_requests("planner_run", {"goal": "go"})
        ((run_id, nonce),) = place.rows(
            "select run.id, nonce from client_question join run on run.n = client_question.run"
        )
        who = Caller(client="a client 1", samples=True)
        run, (ask,) = await app.client_requests.find_asks(run_id, [nonce], who)
        await app.client_requests.take(run, ask, {"task-1/round-1": ClientReply(Completion("first"))}, who)
        await app.client_requests.take(run, ask, {"task-2/round-1": ClientReply(Completion("second"))}, who)
        assert list(bodies(place, run_id)) == ["task-1/round-1"]


async def test_a_reply_whose_step_was_answered_meanwhile_stores_nothing_and_is_no_error(place):
    """Between a look at the rows and the commit another process may have been quicker."""
    async with open_pair_app(place.settings()) as app, connect_client(app, MODERN, ClientModel([])) as client:
        await client.step_to_requests("planner_run", {"goal": "go"})
        ((run_id,),) = place.rows("select id from run")
        await app.client_requests.store_reply(run_id, "task-1/round-1", ClientReply(Completion("first")), Caller())
        before = bodies(place, run_id)
        with place.session() as session:
            run = queries.run_by_id(session, run_id)
            late = [SubmittedAnswer("task-1/round-1", Completion("late"))]
            recorded = client_questions.record_still_open(session, run, late, owner=ownership.ANY_SERVER, at=0)
            assert recorded == RecordedAnswers()
        assert bodies(place, run_id) == before


async def test_one_that_is_refused_takes_the_rest_another_way_and_loses_no_answer(place):
    class Half(ClientModel):
        async def __call__(self, _ctx: object, params: wire.CreateMessageRequestParams) -> Any:
            if "task-1" in params.messages[-1].content.text:
                return text_reply("first")
            return wire.ErrorData(code=-1, message="no")

    async with open_pair_app(place.settings()) as app, connect_client(app, LEGACY, Half([])) as client:
        run = await client.ask("planner_run", {"goal": "go"})
        assert (run["route"], list(bodies(place, run["run_id"]))) == ("caller", ["task-1/round-1"])
        answers = {"run_id": run["run_id"], "answers": {"task-2/round-1": says("second")}}
        assert (await client.ask("run_continue", answers))["summary"] == "first and second"


async def test_a_client_that_answers_one_after_the_other_has_the_time_of_both(place):
    """0.4 s for an answer, and two that take 0.3 s each, one after the other, while the clocks of both run."""

    class OneByOne(ClientModel):
        turn = asyncio.Lock()

        async def __call__(self, _ctx: object, params: wire.CreateMessageRequestParams) -> Any:
            async with self.turn:
                await asyncio.wait([asyncio.create_task(asyncio.Event().wait())], timeout=0.3)
                return text_reply("slowly")

    hasty = replace(DEFAULT_WAIT_POLICY, first_s=0.4, later_s=0.4)
    async with (
        open_pair_app(place.settings()) as app,
        connect_client(app, LEGACY, OneByOne([]), patience=hasty) as client,
    ):
        run = await client.ask("planner_run", {"goal": "go"})
    assert (run["route"], run["summary"]) == ("sampling", "slowly and slowly")


async def test_all_of_them_failing_is_said_once(place):
    async with open_pair_app(place.settings()) as app, connect_client(app, LEGACY, Broken()) as client:
        run = await client.ask("planner_run", {"goal": "go"})
        assert run["route"] == "caller"
        assert sum("went on with the route" in note for note in run["degraded"]) == 1
