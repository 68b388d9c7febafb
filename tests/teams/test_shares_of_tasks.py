"""A wide team with little: what its budget can buy is bought, however many of its tasks run side by side."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.app import ME, Place, assert_all_lawful, outcome_of, rests, says, start_run
from support.branches import Team, assert_books_agree, looks, open_team_app
from support.daily_accounts import count_passed_caps, usage_of, watch_peaks
from support.team_lines import at, plan_line, task

from kairos_mcp.app.app import App
from kairos_mcp.core.limits import Limits
from kairos_mcp.core.outcomes import Outcome
from kairos_mcp.core.run_spec import TeamRequest
from kairos_mcp.core.steps import Flow
from kairos_mcp.flows.planner_input import PlannerInput

TASKS = 16
READ, WRITTEN = 900, 60  # of each call, as the provider reports


def lines_of(tasks: int, rounds: int) -> list[object]:
    """Tasks that go on as long as they may."""
    usage = usage_of(READ, WRITTEN)
    lines = [{**plan_line(*(task(f"t{n}", "general") for n in range(tasks))), **usage}]
    lines.append(at("synthesis", says("all of it", **usage)))
    for number in range(1, tasks + 1):
        path = f"task-{number}/try-1"
        lines += [at(f"{path}/round-{n}", {**looks(n), **usage}) for n in range(1, rounds + 1)]
        lines.append(at(f"{path}/closing", says(f"as far as {number} came", **usage)))
    return lines


async def count_bought(place: Place, side_by_side: int, tokens: int = 60_000) -> int:
    """Run the team, and return how many calls it made; what it may use is held against its rows."""
    async with App.open(place.settings(says("the store is made")), via="mcp") as app:
        await start_run(app)
    watch_peaks(place)
    async with App.open(place.settings(*lines_of(TASKS, 30)), via="mcp") as app:
        request = TeamRequest("Look at all of it.", limits=Limits(total_tokens=tokens), max_parallel=side_by_side)
        report = await rests(app, (await app.runs.start(request, ME)).run_id)
        await assert_all_lawful(app)
    assert_books_agree(place)
    assert count_passed_caps(place) == 0
    assert report.summary == "all of it"
    calls = report.usage["model_calls"]
    assert isinstance(calls, int)
    assert calls * (READ + WRITTEN) == report.usage["input_tokens"] + report.usage["output_tokens"] <= tokens
    return calls


@pytest.mark.parametrize("side_by_side", [1, 2, 4, 8, 16])
async def test_sixteen_tasks_buy_nine_tenths_of_what_a_small_budget_can_buy_and_the_answer(
    place: Place, side_by_side: int
) -> None:
    """The rest is what is set aside for the answer, which costs less, and what the last task leaves."""
    bought, most = await count_bought(place, side_by_side), 60_000 // (READ + WRITTEN)
    print(f"{side_by_side} side by side: {bought} of {most} calls")
    assert bought >= 0.9 * most


async def test_a_task_is_bounded_by_what_one_beside_it_cost_that_begins_alike(place: Place) -> None:
    await count_bought(place, 2)
    held = [
        tokens
        for (tokens,) in place.rows(
            "select held ->> 2 from step where path like 'task-%/round-1' and held is not null order by id"
        )
    ]
    assert held[0] > 5 * max(held[1:])


@pytest.mark.unreplayed
async def test_a_branch_that_waits_takes_no_line_of_a_script_from_one_that_runs(place: Place) -> None:
    pair = Team(tasks=2, synthesis=False)
    turns = [looks(n, READ) for n in range(4)]
    lines = [*turns, says("first", **usage_of(READ)), says("second", **usage_of(READ))]
    async with open_team_app(place.settings(*lines), pair) as app:
        run_id = await start_run(app, tools=("read_file",), limits=Limits(rounds=30, total_tokens=9_000))
        assert outcome_of(place, run_id)["summary"] == "task-1: assistant_stop\ntask-2: assistant_stop"
    taken = place.rows("select path, sent ->> 'line' from step where kind = 'round' order by id")
    assert [line for _, line in taken] == list(range(len(lines)))
    assert [path.partition("/")[0] for path, _ in taken] == ["task-1"] * 5 + ["task-2"]


class AskingBack(Team):
    """Tasks whose first turn without a call is followed at once by a second one."""

    def flow(self, brief: PlannerInput) -> Flow[Outcome]:
        return super().flow(replace(brief, asks_back=True))


@pytest.mark.unreplayed
async def test_branches_that_wait_take_no_line_before_one_that_goes_on_in_the_same_commit(place: Place) -> None:
    team = AskingBack(tasks=3, synthesis=False)
    lines = [says("hm", **usage_of(READ)), says("hm", **usage_of(READ)), *(looks(n, READ) for n in range(2))]
    lines += [says("done", **usage_of(READ))] * 3
    async with open_team_app(place.settings(*lines), team) as app:
        await start_run(app, tools=("read_file",), limits=Limits(rounds=30, total_tokens=9_000))
    taken = place.rows("select path, sent ->> 'line' from step where sent ->> 'line' is not null order by id")
    assert [path for path, _ in taken[:3]] == ["task-1/round-1", "task-1/round-2", "task-2/round-1"]
    assert [line for _, line in taken] == list(range(len(lines)))
