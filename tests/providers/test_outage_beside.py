"""A provider's outage in one branch of a run: the others go on, and so does whoever answers for them."""

from __future__ import annotations

import asyncio
import time
from itertools import count
from typing import Any

import pytest
from starlette.responses import Response
from support.app import ME, PERSON, Place, rests, start_run
from support.branches import Team, open_team_app
from support.provider_server import Heard, Reply, Standin, calls, refuses, talks

from kairos_mcp.core.limits import Limits
from kairos_mcp.settings.settings import Settings

pytestmark = pytest.mark.unreplayed  # a flow of its own

TEAM = Team(goals=("calm", "stormy"), synthesis=False)


def now() -> int:
    return time.time_ns() // 1_000_000


class Weather:
    """Replies by the goal that a request is about: each goal's turns in their order, the last again and again."""

    def __init__(self, **turns: Any) -> None:
        self.turns = {goal: list(each) for goal, each in turns.items()}

    async def __call__(self, heard: Heard) -> Response:
        text = str(heard.body["messages"])
        goal = next(goal for goal in self.turns if goal in text)
        turns = self.turns[goal]
        return await (turns.pop(0) if len(turns) > 1 else turns[0])(heard)


BUSY = refuses(529, Retry_After="0")


def ends(storm: asyncio.Event) -> Reply:
    """The last refusal before the provider counts as out of reach."""

    async def refuse(heard: Heard) -> Response:
        storm.set()
        return await BUSY(heard)

    return refuse


def after(storm: asyncio.Event, reply: Reply) -> Reply:
    async def wait(heard: Heard) -> Response:
        await asyncio.wait_for(storm.wait(), 20)
        return await reply(heard)

    return wait


def reads(n: int) -> Reply:
    """A call that no other one is like."""
    return talks(None, calls(("read_file", {"path": "a.txt", "start_line": 1, "end_line": n})), finish="tool_calls")


EDITS = talks(
    None, calls(("edit_file", {"path": "a.txt", "old_string": "alpha", "new_string": "omega"})), finish="tool_calls"
)


def at(place: Place, server: Standin, weather: Weather) -> Settings:
    server.will(*[weather] * 100)
    return place.settings(model="openai:small", base_url=server.openai)


def answered_paths(place: Place) -> list[str]:
    return [path for (path,) in place.rows("select path from step join answer on answer.step = step.id order by path")]


def task_answers(place: Place) -> set[str]:
    """What the tasks ended with."""
    return {text for (text,) in place.rows("select json_extract(body, '$.content') from answer") if "It is" in text}


REQUEST: dict[str, Any] = {"tools": ("read_file", "edit_file"), "limits": Limits(rounds=30)}


async def test_the_other_branch_ends_before_the_run_is_paused(place: Place, server: Standin) -> None:
    storm = asyncio.Event()
    weather = Weather(
        calm=[after(storm, reads(1)), reads(2), reads(3), talks("It is calm.")],
        stormy=[BUSY] * 3 + [ends(storm), talks("It is over.")],
    )
    async with open_team_app(at(place, server, weather), TEAM, now) as app:
        run_id = await start_run(app, **REQUEST)
        report = await app.runs.report(run_id, ME)
        assert (report.status, report.resume_at is not None, report.waiting) == ("paused", True, ())
        assert [path for path in answered_paths(place) if path.startswith("task-1/round")] == sorted(
            [*(f"task-1/round-{n}" for n in (1, 2, 3, 4)), *(f"task-1/round-{n}/call-1" for n in (1, 2, 3))]
        )
        place.rows("update run set resume_at = 1")  # the time has come
        await app.runs.wait([run_id], until="done", wait_s=20, caller=ME)
        assert (await app.runs.report(run_id, ME)).status == "completed"
        assert task_answers(place) == {"It is calm.", "It is over."}


async def test_a_branch_that_waits_for_what_another_leaves_keeps_no_run_from_its_pause(
    place: Place, server: Standin
) -> None:
    weather = Weather(stormy=[BUSY] * 4 + [talks("It is over.")], calm=[talks("It is calm.")])
    team = Team(goals=("stormy", "calm"), synthesis=False)
    async with open_team_app(at(place, server, weather), team, now) as app:
        run_id = await start_run(app, tools=("read_file",), limits=Limits(total_tokens=9_000))
        report = await app.runs.report(run_id, ME)
        assert (report.status, report.resume_at is not None) == ("paused", True)
        assert place.rows("select path from step") == [("task-1/round-1",)]
        place.rows("update run set resume_at = 1")  # the time has come
        await app.runs.wait([run_id], until="done", wait_s=20, caller=ME)
        assert (await app.runs.report(run_id, ME)).status == "completed"
        assert task_answers(place) == {"It is calm.", "It is over."}


async def test_an_approval_given_meanwhile_lets_its_branch_go_on(place: Place, server: Standin) -> None:
    weather = Weather(calm=[EDITS, talks("It is calm.")], stormy=[BUSY] * 8 + [talks("It is over.")])
    async with open_team_app(at(place, server, weather), TEAM, now) as app:
        run_id = await start_run(app, **REQUEST)
        report = await app.runs.report(run_id, ME)
        assert (report.status, report.resume_at is not None) == ("paused", True)
        assert [item["key"] for item in report.waiting] == ["task-1/round-1/call-1/approval"]
        assert await app.overview.list_waiting_ids(ME) == [run_id]
        await app.answers.decide(run_id, report.waiting[0]["key"], "approve", None, PERSON)
        report = await rests(app, run_id)
        assert (place.workspace / "a.txt").read_text() == "omega\n"
        assert "task-1/round-2" in answered_paths(place)
        assert (report.status, report.resume_at is not None, report.waiting) == ("paused", True, ())
        place.rows("update run set resume_at = 1")
        await app.runs.wait([run_id], until="done", wait_s=20, caller=ME)
        assert (await app.runs.report(run_id, ME)).status == "completed"
        assert task_answers(place) == {"It is calm.", "It is over."}


async def test_while_another_branch_moves_the_provider_is_asked_again_in_time(place: Place, server: Standin) -> None:
    """The clock is five seconds later whenever it is read: a minute is over long before the other has ended."""
    clock = count(now(), 5_000).__next__
    weather = Weather(
        calm=[*map(reads, range(1, 26)), talks("It is calm.")], stormy=[BUSY] * 4 + [talks("It is over.")]
    )
    async with open_team_app(at(place, server, weather), TEAM, clock) as app:
        run_id = await start_run(app, **REQUEST | {"limits": Limits(rounds=60)})
        assert ((await app.runs.report(run_id, ME)).status, task_answers(place)) == (
            "completed",
            {"It is calm.", "It is over."},
        )
        found = place.rows("select path from step join answer on answer.step = step.id order by answer.at, step.id")
        order = [path for (path,) in found]
        assert order.index("task-2/round-1") < order.index("task-1/round-26")
