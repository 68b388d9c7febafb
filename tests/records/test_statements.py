"""How many SQL statements an answer takes that somebody outside brings, and a call: bounds at what it takes now.

Counted, not timed, with the turn of the run that follows, a call of a tool of ours.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from mcp_types import CreateMessageRequestParams
from support.app import ASK, ME, UNWATCHED, Place, asks, reads, rests, says, start_run
from support.sampling_clients import LEGACY, MODERN, ClientModel, Reply, open_client
from support.statements import Statements, count_statements

from kairos_mcp.app import store_watcher
from kairos_mcp.app.app import App
from kairos_mcp.app.runs import WaitUntil
from kairos_mcp.core.limits import Limits

pytestmark = pytest.mark.state_file("it counts the statements of SQLite")
ROUNDS = 7
ASKS = {LEGACY: 23, MODERN: 27}  # statements from one request to a client's model to the next
CALL = 16  # of a run of one call, until it has ended
DEPOSIT = 11  # statements of `submit`, which writes the run's next commit as well
ROUND = 19  # the same, until the run waits for the next answer


@dataclass
class CountedModel(ClientModel):
    """A client's model that notes, at each request, how many statements there were until then."""

    statements: Statements = field(default_factory=Statements)
    counts: list[int] = field(default_factory=list)

    async def __call__(self, ctx: object, params: CreateMessageRequestParams) -> Reply:
        self.counts.append(self.statements.count)
        return await super().__call__(ctx, params)


def with_files(place: Place) -> list[str]:
    names = [f"{n}.txt" for n in range(ROUNDS)]
    for name in names:
        (place.workspace / name).write_text(f"{name}\n")
    return names


@pytest.mark.parametrize("era", ASKS)
async def test_an_ask_of_a_client_s_model_takes_so_many_statements(place: Place, era: str) -> None:
    names = with_files(place)
    with count_statements() as statements:
        model = CountedModel([*map(reads, names), says("done")], statements=statements)
        async with open_client(place.settings(), era, model) as client:
            await client.ask("planner_run", {"goal": "go", "limits": {"rounds": ROUNDS + 2}})
    each = [after - before for before, after in pairwise(model.counts)]
    assert len(each) == ROUNDS
    assert min(each[1:]) <= ASKS[era], each


async def test_what_was_executed_before_is_not_planned_again(place: Place) -> None:
    """However many others were executed in between, and whatever values they were given."""
    names = with_files(place)
    looked_up = []
    with count_statements() as statements:
        model = ClientModel([*map(reads, names), says("done")] * 4)
        async with open_client(place.settings(), LEGACY, model) as client:
            for n in range(4):
                before = statements.looked_up
                await client.ask("planner_run", {"goal": f"go {n}", "limits": {"rounds": ROUNDS + 2}})
                looked_up.append(statements.looked_up - before)
    assert looked_up[0] > 0
    assert looked_up[2:] == [0, 0], looked_up


async def test_an_answer_of_the_caller_takes_so_many_statements(place: Place) -> None:
    names = with_files(place)
    deposits, rounds = [], []
    with count_statements() as statements:
        async with App.open(place.settings(), via="mcp") as app:
            run_id = await start_run(app, route="caller", limits=Limits(rounds=ROUNDS + 2))
            for n, name in enumerate(names, 1):
                before, begun = statements.count, statements.begun
                await app.answers.submit(run_id, {f"round-{n}": reads(name)}, ME)
                deposits.append(statements.count - before)
                assert n == 1 or statements.begun == begun + 1  # the answer, and the call that it asks for
                await app.runs.wait([run_id], until="rest", wait_s=20, caller=ME)
                rounds.append(statements.count - before)
    assert min(deposits[1:]) <= DEPOSIT, deposits
    assert min(rounds[1:]) <= ROUND, rounds


async def test_an_answer_after_which_the_run_waits_again_is_one_transaction(place: Place) -> None:
    """Of calls that nobody judges: what a later call of the caller's takes along is looked for in a thread."""
    settings = place.settings(asks("why"), asks("how"), says("done"), flow=UNWATCHED)
    with count_statements() as statements:
        async with App.open(settings, via="mcp") as app:
            run_id = await start_run(app, route="caller", caller_tools=(ASK,), limits=Limits(rounds=9))
            for turn in (asks("why"), asks("how")):
                (item,) = (await app.runs.report(run_id, ME)).waiting
                begun = statements.begun
                await app.answers.submit(run_id, {item["key"]: turn}, ME)
                (call,) = (await rests(app, run_id)).waiting
                assert (call["key"], statements.begun) == (f"{item['key']}/call-1", begun + 1)
                await app.answers.submit(run_id, {call["key"]: {"content": "so"}}, ME)
                assert statements.begun == begun + 2


async def test_a_run_of_one_call_is_two_transactions(place: Place) -> None:
    """It is created with its call; then what that answered is written with the run's end."""
    (place.workspace / "a.txt").write_text("a\n")
    each = []
    with count_statements() as statements:
        async with App.open(place.settings(), via="mcp") as app:
            for _ in range(3):
                before, begun = statements.count, statements.begun
                run_id = await app.runs.start_call("read_file", {"path": "a.txt"}, ME)
                (run,) = await app.runs.wait([run_id], until="done", wait_s=20, caller=ME)
                each.append((statements.count - before, statements.begun - begun))
                assert run.outcome is not None
    assert min(each[1:]) <= (CALL, 2), each


@pytest.mark.parametrize("until", ["news", "done"])
async def test_calls_that_wait_for_other_runs_cost_a_round_nothing(
    place: Place, monkeypatch: pytest.MonkeyPatch, until: WaitUntil
) -> None:
    monkeypatch.setattr(store_watcher, "POLL_S", 600)  # the look for commits of other processes wakes everybody
    names = with_files(place)
    counts = []
    for waiting in (0, 8):
        with count_statements() as statements:
            async with App.open(place.settings(*map(reads, names), says("done")), via="mcp") as app:
                await rests(app, await start_run(app, f"opens the store {waiting}", limits=Limits(rounds=ROUNDS + 2)))
                others = [await start_run(app, f"{waiting}: {n}", route="caller") for n in range(waiting)]
                for run_id in others:
                    await app.runs.wait([run_id], until="rest", wait_s=20, caller=ME)
                seen = {run_id: (await app.runs.find(run_id, ME)).seq for run_id in others}
                calls = [
                    asyncio.create_task(app.runs.wait([run_id], until=until, wait_s=60, caller=ME, since=seen))
                    for run_id in others
                ]
                await asyncio.sleep(0.05)
                before = statements.count
                await rests(app, await start_run(app, f"moves beside {waiting}", limits=Limits(rounds=ROUNDS + 2)))
                counts.append(statements.count - before)
                assert not any(call.done() for call in calls)
                for call in calls:
                    call.cancel()
                await asyncio.gather(*calls, return_exceptions=True)
    assert counts[0] == counts[1]
