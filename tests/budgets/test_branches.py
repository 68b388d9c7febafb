"""Branches with limits of their own, in whole runs: each is refused for itself, and killed they go on as they were."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from killed import REQUEST, killed_after
from starlette.responses import Response
from support.app import ME, Place, outcome_of, place_in, rests, says, start_run, wait_for_step
from support.branches import DEEP, Team, branches_of, lines, looks, open_team_app, team_app
from support.daily_accounts import ZONE, Clock, count_passed_caps, days_of, usage_of, watch_peaks
from support.postgres import both_stores
from support.provider_server import WITHIN_S, Heard, Standin, silent, talks

from kairos_mcp.cli.budget import budget
from kairos_mcp.core.errors import StoreCorrupt
from kairos_mcp.core.limits import Limits
from kairos_mcp.core.outcomes import Outcome
from kairos_mcp.core.run_spec import PlannerRequest
from kairos_mcp.settings.settings import Flags
from kairos_mcp.store import integrity, queries

pytestmark = pytest.mark.unreplayed  # a flow of its own

NARROW = ("read_file",)
BRANCHES = 16


def spent_by(place: Place, run_id: str) -> Any:
    ((total, rounds),) = place.rows(
        "select spent_total_tokens, spent_rounds from account join run on account.id = account where run.id = ?", run_id
    )
    return total, rounds


async def test_each_branch_has_its_share_of_what_is_left_and_is_refused_for_itself(place: Place) -> None:
    settings = place.settings(*lines(), time_zone=ZONE)
    async with open_team_app(settings, Team(tasks=4)) as app:
        run_id = await start_run(app, tools=NARROW, limits=Limits(rounds=12, total_tokens=200_000))
        books = branches_of(place, run_id)
        assert [book.caps for book in books.values()] == [Limits(rounds=3, total_tokens=50_000)] * 4
        assert [book.spent.rounds for book in books.values()] == [3] * 4
        summary = outcome_of(place, run_id)["summary"]
        assert [line.endswith("max_rounds") for line in summary.splitlines()[:4]] == [True] * 4
    refused = place.rows("select path, body from step join answer on step = step.id where body like '%refused%'")
    assert sorted(path for path, _ in refused) == [f"task-{n}/round-4" for n in range(1, 5)]
    assert all(f'"scope":"branch {path.partition("/")[0]}"' in body for path, body in refused)


async def test_what_a_branch_asked_for_is_the_most_it_has_and_what_is_aside_stays_for_the_synthesis(
    place: Place,
) -> None:
    team = Team(tasks=3, limits=Limits(rounds=2), aside=Limits(model_calls=4))
    async with open_team_app(place.settings(*lines(), time_zone=ZONE), team) as app:
        run_id = await start_run(app, tools=NARROW, limits=Limits(rounds=40, model_calls=19))
        books = branches_of(place, run_id)
        assert [book.caps for book in books.values()] == [Limits(rounds=2, model_calls=5)] * 3
        assert [book.spent.rounds for book in books.values()] == [2] * 3
        assert [book.spent.model_calls for book in books.values()] == [3] * 3  # the closing call too
        assert outcome_of(place, run_id)["summary"].endswith("\nlook")


async def test_one_that_begins_later_has_its_share_of_what_the_others_left(place: Place) -> None:
    team = Team(tasks=3, side_by_side=1, synthesis=False)
    async with open_team_app(place.settings(looks(1), says("done"), *lines(), time_zone=ZONE), team) as app:
        run_id = await start_run(app, tools=NARROW, limits=Limits(rounds=12))
        books = branches_of(place, run_id)
        assert [book.caps.rounds for book in books.values()] == [6, 5, 5]  # 12 / 2, (12 - 2) / 2, 5 / 1
        assert [book.spent.rounds for book in books.values()] == [2, 5, 5]


async def test_without_limits_of_its_own_a_branch_has_no_account(place: Place) -> None:
    async with open_team_app(place.settings(*lines(), time_zone=ZONE), Team(tasks=3, limits=None)) as app:
        run_id = await start_run(app, tools=NARROW, limits=Limits(rounds=7))
        assert branches_of(place, run_id) == {}
        assert spent_by(place, run_id)[1] == 7


async def test_a_step_is_charged_to_every_account_above_it_four_deep(place: Place) -> None:
    clock = Clock()
    settings = place.settings(*lines(), day=Limits(model_calls=1_000), time_zone=ZONE)
    async with open_team_app(settings, DEEP, clock) as app:
        run_id = await start_run(app, tools=NARROW, limits=Limits(rounds=16))
        books = branches_of(place, run_id)
        assert {path: book.caps.rounds for path, book in books.items()} == {
            "task-1": 8,
            "task-2": 8,
            "task-1/try-1": 8,
            "task-2/try-1": 8,
            "task-1/try-2": 0,
            "task-2/try-2": 0,
        }
        inner = sum(book.spent.total_tokens for path, book in books.items() if "/" in path)
        outer = sum(book.spent.total_tokens for path, book in books.items() if "/" not in path)
        whole, rounds = spent_by(place, run_id)
        assert (inner, rounds) == (outer, 16)
        assert days_of(place)["2026-11-20"].spent.total_tokens == whole > outer  # the synthesis


async def test_the_standing_line_is_that_of_the_branch(place: Place) -> None:
    async with open_team_app(place.settings(*lines(), time_zone=ZONE), Team(tasks=2)) as app:
        run_id = await start_run(app, tools=NARROW, limits=Limits(rounds=8))
        found = place.rows(
            "select json_extract(sent, '$.tail') from step join run on run.n = run where run.id = ? and path like"
            " 'task-1/round-_' order by step.id",
            run_id,
        )
        assert [tail.partition(";")[0].strip("[]") for (tail,) in found[:4]] == [f"round {n} of 4" for n in range(1, 5)]


@pytest.mark.parametrize("tokens", [30_000, 120_000, 400_000])
async def test_sixteen_branches_at_once_are_never_over(place: Place, tokens: int) -> None:
    clock = Clock()
    async with open_team_app(place.settings(*lines(read=900), time_zone=ZONE), Team(BRANCHES, tries=1), clock) as app:
        await start_run(app, "the file is made", tools=NARROW, limits=Limits(rounds=1))
        watch_peaks(place)
        run_id = await start_run(app, "many", tools=NARROW, limits=Limits(total_tokens=tokens))
        assert len(branches_of(place, run_id)) == 2 * BRANCHES
        assert (await app.runs.report(run_id, ME)).status == "completed"
        assert spent_by(place, run_id)[0] <= tokens
    assert count_passed_caps(place) == 0


async def test_time_is_divided_among_branches_without_accounts_too(place: Place, server: Standin) -> None:
    server.will(*(talks("done", usage=(900, 10, 0)) for _ in range(5)))
    settings = place.settings(model="openai:small", base_url=server.openai, time_zone=ZONE)
    async with open_team_app(settings, Team(tasks=4, limits=None)) as app:
        run_id = await start_run(app, tools=NARROW, limits=Limits(milliseconds=40_000))
        assert (await app.runs.report(run_id, ME)).stop_reason == "assistant_stop"
    held = [ms for (ms,) in place.rows("select held ->> 7 from step where path like 'task-%' order by id")]
    assert len(held) == 4
    assert all(5_000 < ms <= 10_000 for ms in held)  # of what the plan's own call left


async def test_an_empty_day_pauses_the_run_and_its_branches_go_on_with_the_same_accounts(
    place: Place, tmp_path: Path
) -> None:
    reference, limits = place_in(tmp_path / "reference"), Limits(rounds=8)
    async with open_team_app(reference.settings(*lines(), time_zone=ZONE), DEEP) as app:
        unlimited = await start_run(app, tools=NARROW, limits=limits)
    clock = Clock()
    settings = place.settings(*lines(), day=Limits(model_calls=5), time_zone=ZONE)
    async with open_team_app(settings, DEEP, clock) as app:
        run_id = await start_run(app, tools=NARROW, limits=limits)
        before = branches_of(place, run_id)
        assert (await app.runs.report(run_id, ME)).status == "paused"
        report = await app.runs.report(run_id, ME)
        while report.status == "paused":
            clock.now = place.rows("select resume_at from run")[0][0]
            await app.runs.wait([run_id], until="attention", wait_s=WITHIN_S, caller=ME)
            report = await rests(app, run_id)
        after = branches_of(place, run_id)
        assert {path: after[path].caps for path in before} == {path: book.caps for path, book in before.items()}
        assert report.status == "completed"
    assert len(days_of(place)) >= 2
    spending = branches_of(reference, unlimited)
    assert {path: book.caps for path, book in after.items()} == {path: book.caps for path, book in spending.items()}


KILLS = [3, 8, 17, *(pytest.param(n, marks=pytest.mark.slow) for n in range(2, 34) if n not in (3, 8, 17))]


@pytest.mark.parametrize("commits", KILLS)
async def test_killed_after_any_commit_the_tree_adds_up_and_the_run_goes_on(place: Place, commits: int) -> None:
    await killed_after(place, commits)
    async with open_team_app(place.settings(*lines(), time_zone=ZONE), DEEP) as app:
        report = await rests(app, (await app.runs.start(REQUEST, ME)).run_id)
        assert (report.status, report.rounds) == ("completed", 6)
        assert app._store.find_damage(Outcome) == []
        assert len(branches_of(place, report.run_id)) == 6


async def test_a_lost_attempt_in_a_branch_stays_charged_to_every_account_above(place: Place, server: Standin) -> None:
    server.will(silent, silent, *(talks("done", usage=(900, 10, 0)) for _ in range(3)))
    settings = place.settings(model="openai:small", base_url=server.openai, time_zone=ZONE)
    request, team = (
        PlannerRequest("look", tools=NARROW, limits=Limits(total_tokens=90_000), key="one"),
        Team(2, tries=1),
    )
    app = team_app(settings, team, Clock(), lambda: "run-lost")
    run_id = (await app.runs.start(request, ME)).run_id
    await wait_for_step(app, "task-2/try-1/round-1")
    async with asyncio.timeout(WITHIN_S):
        while len(server.heard) < 2:  # noqa: ASYNC110 - another's count has no event
            await asyncio.sleep(0.005)
    await app._close()
    async with open_team_app(settings, team, Clock()) as second:
        await second.control.request(run_id, "resume", ME)
        assert (await rests(second, run_id)).status == "completed"
        for path, book in branches_of(place, run_id).items():
            assert book.spent.output_tokens > 4_000, path  # what the lost one might have written
            assert book.spent.model_calls == 2


@both_stores
async def test_a_cancelled_run_holds_nothing_in_any_branch(place: Place) -> None:
    async with open_team_app(place.settings(time_zone=ZONE), Team(3, tries=1)) as app:
        run_id = await start_run(app, route="caller", limits=Limits(rounds=9))
        assert {book.held.rounds for book in branches_of(place, run_id).values()} == {1}
        await app.answers.submit(run_id, {"task-2/try-1/round-1": {**looks(1), **usage_of(700, 300)}}, ME)
        await rests(app, run_id)
        assert branches_of(place, run_id)["task-2"].spent.total_tokens == 1_000
        await app.control.cancel(run_id, ME)
        await app.runs.wait([run_id], until="done", wait_s=WITHIN_S, caller=ME)
        assert {set(book.held) == {0} for book in branches_of(place, run_id).values()} == {True}


async def test_what_is_brought_beyond_a_branchs_cap_is_recorded_named_and_stops_it(place: Place) -> None:
    async with open_team_app(place.settings(time_zone=ZONE), Team(2, synthesis=False)) as app:
        run_id = await start_run(app, route="caller", limits=Limits(total_tokens=4_000))
        await app.answers.submit(run_id, {"task-1/round-1": {**looks(1), **usage_of(2_500, 300)}}, ME)
        report = await rests(app, run_id)
        assert [item["key"] for item in report.waiting] == ["task-2/round-1"]  # the other one goes on
        assert any("branch task-1.total_tokens is 2000" in text for text in report.degraded)
        await app.answers.submit(run_id, {"task-2/round-1": says("done", **usage_of(1_100))}, ME)
        assert (await rests(app, run_id)).status == "completed"
        assert outcome_of(place, run_id)["summary"] == "task-1: budget\ntask-2: assistant_stop"


async def test_a_branch_that_has_used_its_cap_waits_for_what_the_others_leave_and_gets_it(place: Place) -> None:
    async with open_team_app(place.settings(time_zone=ZONE), Team(2, synthesis=False)) as app:
        run_id = await start_run(app, route="caller", limits=Limits(total_tokens=4_000))
        await app.answers.submit(run_id, {"task-1/round-1": {**looks(1), **usage_of(1_900, 100)}}, ME)
        report = await rests(app, run_id)
        assert [item["key"] for item in report.waiting] == ["task-2/round-1"]
        assert place.rows("select path from step where path like 'task-1/%' and kind <> 'call'") == [
            ("task-1/round-1",)
        ]
        assert branches_of(place, run_id)["task-1"].caps.total_tokens == 2_000
        await app.answers.submit(run_id, {"task-2/round-1": says("done", **usage_of(400))}, ME)
        report = await rests(app, run_id)
        assert [item["key"] for item in report.waiting] == ["task-1/round-2"]
        assert branches_of(place, run_id)["task-1"].caps.total_tokens == 3_500
        await app.answers.submit(run_id, {"task-1/round-2": says("done too", **usage_of(1_400))}, ME)
        assert (await rests(app, run_id)).status == "completed"
        assert outcome_of(place, run_id)["summary"] == "task-1: assistant_stop\ntask-2: assistant_stop"


async def test_of_branches_that_all_wait_for_each_other_one_is_refused_and_the_others_have_what_it_leaves(
    place: Place,
) -> None:
    async with open_team_app(place.settings(time_zone=ZONE), Team(3, synthesis=False)) as app:
        run_id = await start_run(app, route="caller", limits=Limits(rounds=30, total_tokens=6_000))
        for n in (2, 1, 3):
            await app.answers.submit(run_id, {f"task-{n}/round-1": {**looks(1), **usage_of(1_900)}}, ME)
        report = await rests(app, run_id)
        refused = (
            "select path from step join answer on answer.step = step.id where json_extract(body, '$.kind') = 'refused'"
        )
        assert not report.waiting
        assert place.rows(f"{refused} order by step.id") == [
            *(("task-1/round-2",), ("task-1/closing",), ("task-2/round-2",)),
            *(("task-2/closing",), ("task-3/round-2",), ("task-3/closing",)),
        ]


async def test_what_was_asked_for_a_branch_itself_is_no_reason_to_wait_for_others(place: Place) -> None:
    team = Team(2, limits=Limits(rounds=1), synthesis=False)
    async with open_team_app(place.settings(time_zone=ZONE), team) as app:
        run_id = await start_run(app, route="caller", limits=Limits(rounds=9))
        await app.answers.submit(run_id, {"task-1/round-1": looks(1)}, ME)
        report = await rests(app, run_id)
        assert [item["key"] for item in report.waiting] == ["task-2/round-1", "task-1/closing"]


async def test_a_cap_that_an_honest_answer_crosses_after_one_beyond_its_hold_is_named(
    place: Place, server: Standin
) -> None:
    """What the others hold was reserved before that report came: none of them stands out when it is settled."""

    async def honest(heard: Heard) -> Response:
        async with asyncio.timeout(WITHIN_S):
            while not place.rows("select 1 from note where text like '%55000 tokens were reported%'"):  # noqa: ASYNC110
                await asyncio.sleep(0.005)  # a row of another has no event
        return await talks("done", usage=(4_000, 4_000, 0))(heard)

    server.will(talks("done", usage=(50_000, 5_000, 0)), honest)
    settings = place.settings(model="openai:small", base_url=server.openai, time_zone=ZONE)
    async with open_team_app(settings, Team(2, limits=None, synthesis=False)) as app:
        run_id = await start_run(app, tools=NARROW, limits=Limits(total_tokens=60_000))
        report = await app.runs.report(run_id, ME)
        assert report.usage["input_tokens"] + report.usage["output_tokens"] == 63_000
        assert any("limits.total_tokens is 60000; an answer that used more" in text for text in report.degraded)


async def test_a_branchs_account_that_was_changed_stops_the_run(place: Place) -> None:
    async with open_team_app(place.settings(time_zone=ZONE), Team(2)) as app:
        run_id = await start_run(app, route="caller", limits=Limits(rounds=9))
        account = "scope = 'branch' and name = 'task-1'"
        place.rows(f"update account set held_rounds = 0 where {account}")
        assert any("task-1 held rounds 0" in text for text in app._store.find_damage(Outcome))
        with place.session() as session:
            run = queries.run_by_id(session, run_id)
            with pytest.raises(StoreCorrupt):
                integrity.check_run_account(session, run.n, run.account)
            place.rows(f"update account set held_rounds = 1 where {account}")
            integrity.check_run_account(session, run.n, run.account)


async def test_the_tree_is_shown_and_whose_steps_they_were(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    settings = place.settings(*lines(), time_zone=ZONE)
    async with open_team_app(settings, Team(2, tries=1, agent="scout")) as app:
        run_id = await start_run(app, tools=NARROW, limits=Limits(rounds=4))
        spending = await app.records.read_spending(run_id, ME)
        assert [each["branch"] for each in spending["branches"]] == ["task-1", "task-1/try-1", "task-2", "task-2/try-1"]
        assert [each["limits"]["rounds"] for each in spending["branches"]] == [2] * 4
        assert {each["spent"]["rounds"] for each in spending["branches"]} == {2}
        by = {each["agent"]: each["attempts"] for each in (await app.records.read_spending("day", ME))["by"]}
        assert by == {"scout": 6, None: 1}  # two rounds and a closing each, then the synthesis
    await asyncio.to_thread(budget, run_id, flags=Flags(home=str(place.home)))
    said = capsys.readouterr().out
    assert said.index("  branch task-1\n") < said.index("    branch task-1/try-1\n")


async def test_a_run_can_be_extended_after_a_branch_was_refused_and_removed_with_its_accounts(place: Place) -> None:
    clock, team = Clock(), Team(2, side_by_side=1, synthesis=False)
    async with open_team_app(place.settings(time_zone=ZONE), team, clock) as app:
        run_id = await start_run(app, route="caller", limits=Limits(rounds=2))
        for path in ("round-1", "closing"):
            await app.answers.submit(run_id, {f"task-1/{path}": {**looks(1), **usage_of(10)}}, ME)
            await rests(app, run_id)
            if path == "round-1":
                await app.control.extend(run_id, Limits(rounds=6), ME)
        assert [book.caps.rounds for book in branches_of(place, run_id).values()] == [1, 7]  # 8, less the one used
        await app.answers.submit(run_id, {"task-2/round-1": says("done", **usage_of(10))}, ME)
        assert (await rests(app, run_id)).status == "completed"
    clock.now += 2 * 86_400_000
    app = team_app(place.settings(time_zone=ZONE), team, clock, lambda: "run-none")
    try:
        await app.runs.prune(1, shrink=False)
        assert place.rows("select count(*) from account where scope in ('branch', 'run')") == [(0,)]
    finally:
        await app._close()
