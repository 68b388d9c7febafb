"""What requests cost in earlier runs bounds those of later runs that begin alike, of the same principal alone."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from typing import Any

from starlette.responses import Response
from support.app import ME, Place, rests, start_run, wait_for_step
from support.provider_server import Heard, Reply, Standin, calls, talks

from kairos_mcp.app.app import App
from kairos_mcp.core.limits import Limits
from kairos_mcp.core.run_spec import PlannerRequest
from kairos_mcp.settings.settings import Settings

READ = 700  # of each request, as the provider reports
NARROW = ("read_file",)


def settings_of(place: Place, server: Standin, **more: Any) -> Settings:
    server.will(*(talks("done", usage=(READ, 20, 0)) for _ in range(8)))
    return place.settings(model="openai:small", base_url=server.openai, **more)


def replies_after(event: asyncio.Event) -> Reply:
    """A reply that comes once the event is set."""

    async def reply(heard: Heard) -> Response:
        await event.wait()
        return await talks("done", usage=(READ, 20, 0))(heard)

    return reply


def held_first(place: Place) -> list[int]:
    """The input tokens that each run's first round was begun with."""
    return [tokens for (tokens,) in place.rows("select held ->> 2 from step where path = 'round-1' order by id")]


async def test_a_run_is_bounded_by_what_an_earlier_one_cost_in_whatever_process(place: Place, server: Standin) -> None:
    for goal in ("look at a", "look at b"):
        async with App.open(settings_of(place, server), via="mcp") as app:
            await start_run(app, goal, tools=NARROW)
            await start_run(app, f"{goal} again", tools=NARROW)
    unknown, *known = held_first(place)
    assert all(READ < tokens < READ + 1_000 < 2 * unknown // 3 for tokens in known)


async def test_a_limit_that_bought_no_round_buys_one_once_a_cost_is_known(place: Place, server: Standin) -> None:
    async with App.open(settings_of(place, server), via="mcp") as app:
        limits = Limits(total_tokens=2_000)
        small = await app.runs.report(await start_run(app, "first", tools=NARROW, limits=limits), ME)
        await start_run(app, "second", tools=NARROW)
        again = await app.runs.report(await start_run(app, "third", tools=NARROW, limits=limits), ME)
    assert (small.rounds, small.stop_reason) == (0, "budget")
    assert (again.rounds, again.stop_reason) == (1, "assistant_stop")


async def test_neither_other_tools_nor_another_model_address_or_principal_is_bounded_by_it(
    place: Place, server: Standin
) -> None:
    async with App.open(settings_of(place, server), via="mcp") as app:
        await start_run(app, "first", tools=NARROW)
        await start_run(app, "other tools", tools=("read_file", "search_files"))
        somebody = replace(ME, principal="somebody-else")
        run_id = (await app.runs.start(PlannerRequest("somebody's", tools=NARROW), somebody)).run_id
        await app.runs.wait([run_id], until="rest", wait_s=20, caller=somebody)
    async with App.open(replace(settings_of(place, server), model="openai:large"), via="mcp") as app:
        await start_run(app, "other model", tools=NARROW)
    other = settings_of(place, server)
    async with App.open(replace(other, base_url=f"{other.base_url}/"), via="mcp") as app:
        await start_run(app, "other address", tools=NARROW)
    first, *others = held_first(place)
    assert len(others) == 4
    assert all(tokens >= first - 64 for tokens in others)


async def test_each_cost_is_kept_once_with_its_answer_and_goes_with_its_run(place: Place, server: Standin) -> None:
    async with App.open(settings_of(place, server), via="mcp") as app:
        for goal in ("one", "two"):
            await start_run(app, goal, tools=NARROW)
        rows = "select step, tokens from prefix order by step"
        answers = "select step, spent ->> 2 from answer order by step"
        assert place.rows(rows) == place.rows(answers) != []
        place.rows("update run set ended_at = 1 where n = 1")
        await app.runs.prune(30, shrink=False)
        assert place.rows(rows) == place.rows(answers) != []


async def test_a_later_request_of_a_conversation_says_nothing_of_what_it_began_with(
    place: Place, server: Standin
) -> None:
    asked = calls(("read_file", {"path": "a.txt"}))
    server.will(talks(None, asked, finish="tool_calls", usage=(READ, 20, 0)), talks("done", usage=(5_000, 20, 0)))
    async with App.open(place.settings(model="openai:small", base_url=server.openai), via="mcp") as app:
        await start_run(app, tools=NARROW)
    assert place.rows("select tokens from prefix") == [(READ,)]


async def test_a_start_says_for_how_many_calls_a_limit_has_room_by_what_is_known_of_their_cost(
    place: Place, server: Standin
) -> None:
    told: list[str] = []
    async with App.open(settings_of(place, server), via="mcp") as app:
        for goal in ("nothing is known", "a cost is known"):
            answered = asyncio.Event()
            server.replies.appendleft(replies_after(answered))
            request = PlannerRequest(goal, tools=NARROW, limits=Limits(rounds=30, total_tokens=8_200))
            run_id = (await app.runs.start(request, ME)).run_id
            await wait_for_step(app, "round-1")
            told += [note for note in (await app.runs.report(run_id, ME)).degraded if "has room for" in note]
            answered.set()
            report = await rests(app, run_id)
            assert not [note for note in report.degraded if "has room for" in note]
    assert [int(re.findall(r"about (\d+) model call", note)[0]) for note in told] == [2, 6]
