"""A fork of a plan, a team, a phase or cycles: a new run of the same flow with that run's answers before a step."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from support.app import (
    ME,
    Place,
    answer_run,
    assert_all_lawful,
    open_checked_app,
    outcome_of,
    reads,
    rests,
    says,
    start_run,
)
from support.cycles import PAGE, edit, judgement_line, noop, orientation_line
from support.team_lines import plan_of, task

from kairos_mcp.app.app import App
from kairos_mcp.core.errors import BadArguments, Stale
from kairos_mcp.core.limits import Limits
from kairos_mcp.core.run_spec import CyclesRequest, MandateRef, PhaseRequest, PlannerRequest, TeamRequest
from kairos_mcp.settings.table_values import GateRule

TWO_TASKS = {"content": json.dumps(plan_of(task("a"), task("b", "file_manager")))}
ONE_TASK = {"content": json.dumps(plan_of(task("only")))}
MANDATE = {
    "id": "links",
    "goal": "Every link in docs leads to a file.",
    "observe": [{"tool": "read_file", "args": {"path": "docs/index.md"}}],
    "checkpoint_every": 3,
    "max_cycles": 2,
}


async def fork(app: App, run_id: str, path: str, words: str = "", **more: Any) -> str:
    return await start_run(app, words, route="caller", continues=run_id, from_round=path, **more)


async def waits_for(app: App, run_id: str) -> dict[str, Mapping[str, Any]]:
    return {item["key"]: item for item in (await app.runs.report(run_id, ME)).waiting}


async def asked_at(app: App, run_id: str, path: str) -> list[dict[str, Any]]:
    """The conversation of this step, which waits, without its system prompt and the line of what is left."""
    messages: list[dict[str, Any]] = (await waits_for(app, run_id))[path]["messages"]
    return [message | {"content": message["content"].rpartition("\n\n[")[0]} for message in messages]


async def team_at_its_synthesis(app: App, place: Place) -> tuple[str, dict[str, list[dict[str, Any]]]]:
    """A team that waits for its synthesis; and what was asked at its plan and there."""
    run_id = (await app.runs.start(TeamRequest("What is in the files?", route="caller"), ME)).run_id
    await rests(app, run_id)
    asked = {"plan": await asked_at(app, run_id, "plan")}
    await app.answers.submit(run_id, {"plan": TWO_TASKS}, ME)
    await rests(app, run_id)
    await app.answers.submit(run_id, {"task-1/try-1/round-1": reads("a.txt"), "task-2/try-1/round-1": says("B.")}, ME)
    await rests(app, run_id)
    await app.answers.submit(run_id, {"task-1/try-1/round-2": says("A holds alpha.")}, ME)
    await rests(app, run_id)
    asked["synthesis"] = await asked_at(app, run_id, "synthesis")
    return run_id, asked


@pytest.mark.parametrize("ended", [False, True])
async def test_a_synthesis_is_asked_again_with_all_results_and_nothing_else(place: Place, ended: bool) -> None:
    async with open_checked_app(place.settings()) as app:
        run_id, asked = await team_at_its_synthesis(app, place)
        if ended:
            await answer_run(app, run_id, synthesis=says("Told."))
        same, otherwise = await fork(app, run_id, "synthesis"), await fork(app, run_id, "synthesis", "In one word.")
        assert await asked_at(app, same, "synthesis") == asked["synthesis"]
        told = await asked_at(app, otherwise, "synthesis")
        assert told[:-1] == [*asked["synthesis"][:-1], told[-2]]
        assert told[-1]["content"].startswith("In one word.")
        report = await answer_run(app, otherwise, synthesis=says("Letters."))
        assert (report.flow, report.stop_reason, report.summary) == ("team", "team_done", "Letters.")
        tasks = outcome_of(place, otherwise)["output"]["tasks"]
        assert [(each["id"], each["status"]) for each in tasks] == [("a", "done"), ("b", "done")]
        # Nothing of that run is charged to this one, and none of its steps is a row of it.
        assert (report.usage["model_calls"], report.rounds) == (1, 0)
        rows = place.rows("select path from step where run = (select n from run where id = ?)", otherwise)
        assert rows == [("synthesis",)]


async def test_the_whole_result_of_a_task_before_is_read_under_its_ref(place: Place) -> None:
    async with open_checked_app(place.settings()) as app:
        run_id, _ = await team_at_its_synthesis(app, place)
        forked = await fork(app, run_id, "synthesis")
        await answer_run(app, forked, synthesis=says("Letters."))
        ref = outcome_of(place, forked)["output"]["tasks"][0]["ref"]
        assert ref == "task-1/try-1/round-2"
        number = place.rows("select n from run where id = ?", forked)[0][0]
        with place.session() as session:
            assert app._store.read_full_text(session, number, ref) == "A holds alpha."


async def test_a_team_goes_on_from_its_plan_with_another_one(place: Place) -> None:
    async with open_checked_app(place.settings()) as app:
        run_id, asked = await team_at_its_synthesis(app, place)
        forked = await fork(app, run_id, "plan", "One task is enough.")
        told = await asked_at(app, forked, "plan")
        assert [message["content"] for message in told[:-2]] == [each["content"] for each in asked["plan"][:-1]]
        # A repair goes on with the same conversation, so what was said there is part of it.
        await answer_run(app, forked, plan=says("No plan at all."))
        repair = (await waits_for(app, forked))["plan/repair-1"]["messages"]
        assert [message["content"] for message in repair].count("One task is enough.") == 1
        await app.answers.submit(forked, {"plan/repair-1": ONE_TASK}, ME)
        await rests(app, forked)
        report = await answer_run(app, forked, task_1__try_1__round_1=says("All."))
        assert (report.stop_reason, report.summary) == ("team_done", "All.")


async def test_a_plan_alone_is_made_again(place: Place) -> None:
    async with open_checked_app(place.settings()) as app:
        request = TeamRequest("Look.", route="caller", plans_only=True)
        run_id = (await app.runs.start(request, ME)).run_id
        await rests(app, run_id)
        asked = await asked_at(app, run_id, "plan")
        await answer_run(app, run_id, plan=TWO_TASKS)
        forked = await fork(app, run_id, "plan")
        assert await asked_at(app, forked, "plan") == asked
        report = await answer_run(app, forked, plan=ONE_TASK)
        assert (report.flow, len(outcome_of(place, forked)["output"]["tasks"])) == ("plan", 1)


async def test_what_replaces_failed_tasks_is_planned_again(place: Place) -> None:
    async with open_checked_app(place.settings()) as app:
        run_id = (await app.runs.start(TeamRequest("Look.", route="caller"), ME)).run_id
        await rests(app, run_id)
        await answer_run(app, run_id, plan=TWO_TASKS)
        refused = says("", finish="refusal")
        await app.answers.submit(run_id, {f"task-{n}/try-1/round-1": refused for n in (1, 2)}, ME)
        await rests(app, run_id)
        await app.answers.submit(run_id, dict.fromkeys(await waits_for(app, run_id), refused), ME)
        await rests(app, run_id)
        asked = await asked_at(app, run_id, "replan-1")
        forked = await fork(app, run_id, "replan-1")
        assert await asked_at(app, forked, "replan-1") == asked
        await app.answers.submit(forked, {"replan-1": {"content": json.dumps(plan_of(task("c")))}}, ME)
        await rests(app, forked)
        await app.answers.submit(forked, {"task-3/try-1/round-1": says("Found.")}, ME)
        report = await rests(app, forked)
        report = await answer_run(app, forked, synthesis=says("It is found.")) if report.waiting else report
        assert report.stop_reason == "team_done"


async def start_cycles(app: App, **more: Any) -> str:
    request = CyclesRequest(MandateRef(mandate=MANDATE), route="caller", **more)
    return (await app.runs.start(request, ME)).run_id


async def answer_cycle(app: App, run_id: str, number: int, *lines: Mapping[str, Any]) -> None:
    for phase, line in zip(("orient", "decide", "reflect"), lines, strict=False):
        await rests(app, run_id)
        await app.answers.submit(run_id, {f"cycle-{number}/{phase}": line}, ME)
    await rests(app, run_id)


@pytest.fixture
def page(place: Place) -> Place:
    (place.workspace / "docs").mkdir()
    (place.workspace / "docs" / "index.md").write_text(PAGE)
    return place


ALLOWED = (GateRule("edit_file", "allow"),)


async def test_a_cycle_goes_on_from_its_decision_with_another_one(page: Place) -> None:
    async with open_checked_app(page.settings(gate=ALLOWED)) as app:
        run_id = await start_cycles(app)
        await answer_cycle(app, run_id, 1, orientation_line(), edit("oen.md", "one.md"), judgement_line())
        await rests(app, run_id)
        await app.answers.submit(run_id, {"cycle-2/orient": orientation_line()}, ME)
        await rests(app, run_id)
        asked = await asked_at(app, run_id, "cycle-2/decide")
        await app.answers.submit(run_id, {"cycle-2/decide": noop()}, ME)
        await rests(app, run_id)
        await app.answers.submit(run_id, {"cycle-2/reflect": judgement_line()}, ME)
        await rests(app, run_id)
        forked = await fork(app, run_id, "cycle-2/decide", "Mend the second link.")
        told = await asked_at(app, forked, "cycle-2/decide")
        assert [each["content"] for each in told[:-2]] == [each["content"] for each in asked[:-1]]
        await app.answers.submit(forked, {"cycle-2/decide": edit("tow.md", "two.md")}, ME)
        await rests(app, forked)
        await app.answers.submit(forked, {"cycle-2/reflect": judgement_line()}, ME)
        report = await rests(app, forked)
        assert (report.flow, report.stop_reason) == ("ooda_run", "max_cycles_reached")
        assert [each["status"] for each in outcome_of(page, forked)["output"]["cycles"]] == ["applied", "applied"]
    text = (page.workspace / "docs" / "index.md").read_text()
    assert ("one.md" in text, "two.md" in text) == (True, True)
    runs = page.rows("select mandate, json_extract(spec, '$.from_round') from run order by n")
    assert runs == [("links", None), ("links", "cycle-2/decide")]


async def cycles_that_ended(app: App) -> str:
    run_id = await start_cycles(app, cycles=1)
    await answer_cycle(app, run_id, 1, orientation_line(), noop(), judgement_line())
    return run_id


async def test_a_whole_cycle_is_done_again_from_its_beginning(page: Place) -> None:
    async with open_checked_app(page.settings()) as app:
        run_id = await cycles_that_ended(app)
        (page.workspace / "docs" / "index.md").write_text("# Another page\n")
        forked = await fork(app, run_id, "cycle-1/observe")
        shown = json.dumps((await waits_for(app, forked))["cycle-1/orient"]["messages"])
        assert ("Another page" in shown, "oen.md" in shown) == (True, False)
        assert (await app.runs.report(forked, ME)).usage["tool_calls"] == 1


async def test_what_that_run_observed_is_read_under_its_ref(page: Place) -> None:
    async with open_checked_app(page.settings()) as app:
        run_id = await cycles_that_ended(app)
        forked = await fork(app, run_id, "cycle-1/orient")
        assert "oen.md" in json.dumps((await waits_for(app, forked))["cycle-1/orient"]["messages"])
        number = page.rows("select n from run where id = ?", forked)[0][0]
        with page.session() as session:
            assert "oen.md" in (app._store.read_full_text(session, number, "cycle-1/observe/call-1") or "")


async def test_a_phase_alone_is_asked_again(page: Place) -> None:
    async with open_checked_app(page.settings()) as app:
        reference = MandateRef(goal="Look.")
        observed = (await app.runs.start(PhaseRequest("observe", reference), ME)).run_id
        await rests(app, observed)
        run_id = (await app.runs.start(PhaseRequest("orient", reference, observed, route="caller"), ME)).run_id
        await rests(app, run_id)
        asked = await asked_at(app, run_id, "orient")
        await answer_run(app, run_id, orient=orientation_line())
        forked = await fork(app, run_id, "orient")
        assert await asked_at(app, forked, "orient") == asked
        report = await answer_run(app, forked, orient=orientation_line(risk_level="high"))
        assert outcome_of(page, forked)["output"]["risk_level"] == "high"
        assert report.flow == "ooda_orient"


async def test_cycles_are_forked_only_while_no_run_of_their_mandate_is_open(page: Place) -> None:
    async with open_checked_app(page.settings()) as app:
        run_id = await start_cycles(app)
        await rests(app, run_id)
        with pytest.raises(Stale, match="open run"):
            await fork(app, run_id, "cycle-1/orient")
        await app.control.cancel(run_id, ME)
        await rests(app, run_id)
        assert "cycle-1/orient" in await waits_for(app, await fork(app, run_id, "cycle-1/orient"))


async def test_cycles_of_a_mandate_that_was_changed_are_not_forked(page: Place) -> None:
    async with open_checked_app(page.settings()) as app:
        run_id = await cycles_that_ended(app)
        await app.mandates.save(MANDATE | {"allowed_actions": ["noop"]}, ME)
        with pytest.raises(Stale, match="changed since"):
            await fork(app, run_id, "cycle-1/orient")
        assert page.rows("select count(*) from run") == [(1,)]


async def test_a_fork_of_cycles_is_charged_to_the_day_of_its_mandate(page: Place) -> None:
    mandate = MANDATE | {"day": {"model_calls": 4}}
    async with open_checked_app(page.settings()) as app:
        request = CyclesRequest(MandateRef(mandate=mandate), cycles=1, route="caller")
        run_id = (await app.runs.start(request, ME)).run_id
        await answer_cycle(app, run_id, 1, orientation_line(), noop(), judgement_line())
        forked = await fork(app, run_id, "cycle-1/decide")
        await app.answers.submit(forked, {"cycle-1/decide": noop()}, ME)
        report = await rests(app, forked)
        assert report.status == "paused"  # the fifth call is not of this day


async def test_a_fork_of_a_fork_keeps_what_was_said_in_both(place: Place) -> None:
    async with open_checked_app(place.settings()) as app:
        run_id, asked = await team_at_its_synthesis(app, place)
        first = await fork(app, run_id, "synthesis", "In one word.")
        again = await fork(app, first, "synthesis", "In Latin.")
        told = [message["content"] for message in (await waits_for(app, again))["synthesis"]["messages"]]
        assert told[-2:][0] == "In one word."
        assert told[-1].startswith("In Latin.")
        assert len(told) == len(asked["synthesis"]) + 2
        assert (await answer_run(app, again, synthesis=says("Litterae."))).summary == "Litterae."


async def test_another_process_goes_on_with_a_fork(place: Place) -> None:
    async with App.open(place.settings(), via="mcp") as app:
        run_id, asked = await team_at_its_synthesis(app, place)
        forked = await fork(app, run_id, "synthesis")
    async with open_checked_app(place.settings()) as app:
        assert await asked_at(app, forked, "synthesis") == asked["synthesis"]
        assert (await answer_run(app, forked, synthesis=says("Letters."))).summary == "Letters."


@pytest.mark.parametrize("path", ["task-1/try-1/round-1/call-1", "task-2/try-1/closing", "synthesis-2", "task-1"])
async def test_where_more_was_under_way_nothing_is_forked(place: Place, path: str) -> None:
    async with open_checked_app(place.settings()) as app:
        run_id, _ = await team_at_its_synthesis(app, place)
        with pytest.raises(BadArguments) as refused:
            await fork(app, run_id, path)
        assert refused.value.hint.startswith("Its steps: plan, synthesis.")
        assert place.rows("select count(*) from run") == [(1,)]


@pytest.mark.parametrize("more", [{"system": "x"}, {"context": "x"}, {"tools": ("read_file",)}, {"agent": "general"}])
async def test_a_fork_names_nothing_that_it_has_from_its_run(place: Place, more: dict[str, Any]) -> None:
    async with open_checked_app(place.settings()) as app:
        run_id, _ = await team_at_its_synthesis(app, place)
        with pytest.raises(BadArguments, match="has those of its run"):
            await fork(app, run_id, "synthesis", "Again.", **more)


async def test_a_run_that_a_fork_is_of_is_not_removed(place: Place) -> None:
    async with open_checked_app(place.settings()) as app:
        run_id, _ = await team_at_its_synthesis(app, place)
        await answer_run(app, run_id, synthesis=says("Told."))
        await fork(app, run_id, "synthesis")
        assert (await app.runs.prune(0, shrink=False)).runs == 0
        await assert_all_lawful(app)


async def test_a_fork_has_limits_of_its_own(place: Place) -> None:
    async with open_checked_app(place.settings()) as app:
        run_id, _ = await team_at_its_synthesis(app, place)
        forked = await fork(app, run_id, "synthesis", limits=Limits(model_calls=1))
        assert (await app.runs.report(forked, ME)).remaining["model_calls"] == 0
        with pytest.raises(BadArguments):
            await app.runs.start(PlannerRequest("", continues=forked), ME)


@pytest.mark.parametrize(("limits", "granted"), [(Limits(), 1), (Limits(rounds=40), 0)])
async def test_a_fork_whose_rounds_are_limited_grants_no_more(place: Place, limits: Limits, granted: int) -> None:
    async with open_checked_app(place.settings()) as app:
        run_id, _ = await team_at_its_synthesis(app, place)
        forked = await fork(app, run_id, "plan", limits=limits)
        await app.answers.submit(forked, {"plan": ONE_TASK}, ME)
        await rests(app, forked)
        words = "One file was read so far, and it holds alpha. The others below it are to be read in the same way, too."
        more = {"additional": 1, "justification": words, "progress_summary": words}
        asked = {"content": "", "tool_calls": [{"name": "request_more_rounds", "arguments": more}]}
        for path, answer in (("round-1", reads("a.txt")), ("round-2", asked)):
            await app.answers.submit(forked, {f"task-1/try-1/{path}": answer}, ME)
            await rests(app, forked)
        messages = (await waits_for(app, forked))["task-1/try-1/round-3"]["messages"]
        assert f"[round 3 of {10 + granted}" in messages[-1]["content"]
