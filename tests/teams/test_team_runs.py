"""Whole runs of teams, through the app on a real store: what is enforced, spent, frozen and refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from support.app import ME, Place, asked_digests, assert_all_lawful, outcome_of, reads, rests, says
from support.branches import assert_books_agree, branches_of
from support.provider_server import Heard, Standin, talks
from support.team_lines import answers, at, plan_line, plan_of, task

from kairos_mcp.app.app import App
from kairos_mcp.core.errors import BadArguments, ConfigError, UnknownAgent
from kairos_mcp.core.limits import Limits
from kairos_mcp.core.run_spec import TeamRequest
from kairos_mcp.views.run_report import RunReport

TWO = plan_line(task("a"), task("b", "file_manager"))
ENDS = answers("task-1/try-1/round-1", "task-2/try-1/round-1", "synthesis")
WRITES = {"tool_calls": [{"name": "write_file", "arguments": {"path": "new.txt", "content": "new"}}]}


async def team(app: App, goal: str = "What is in the two files?", **more: Any) -> RunReport:
    """The report of a team that has gone as far as it can by itself."""
    return await rests(app, (await app.runs.start(TeamRequest(goal, **more), ME)).run_id)


def answer_at(place: Place, path: str) -> Mapping[str, Any]:
    ((body,),) = place.rows("select body from step join answer on answer.step = step.id where path = ?", path)
    found: Mapping[str, Any] = json.loads(body)
    return found


def sent_at(place: Place, path: str) -> Mapping[str, Any]:
    ((sent,),) = place.rows("select sent from step where path = ?", path)
    found: Mapping[str, Any] = json.loads(sent)
    return found


async def test_a_tool_that_its_agent_does_not_have_is_not_called_though_another_agent_has_it(place: Place) -> None:
    lines = (TWO, at("task-1/try-1/round-1", WRITES), at("task-1/try-1/round-2", says("I can't.")), *ENDS[1:])
    async with App.open(place.settings(*lines, approvals="host"), via="mcp") as app:
        report = await team(app)
        await assert_all_lawful(app)
    assert report.stop_reason == "team_done"
    assert answer_at(place, "task-1/try-1/round-1/call-1")["code"] == "tool_not_offered"
    assert not (place.workspace / "new.txt").exists()
    assert place.rows("select count(*) from approval") == [(0,)]


async def test_the_same_call_of_an_agent_that_has_the_tool_asks_a_person(place: Place) -> None:
    lines = (TWO, ENDS[0], at("task-2/try-1/round-1", WRITES))
    async with App.open(place.settings(*lines), via="mcp") as app:
        report = await team(app)
    (item,) = report.waiting
    assert (report.status, item["kind"]) == ("input_required", "approval")
    assert item["key"].startswith("task-2/try-1/round-1/call-1")


async def test_a_reading_task_that_fails_comes_into_no_hands_that_may_write(place: Place) -> None:
    """file_manager is listed before search_specialist, and has all tools of both."""
    failed = at("task-1/try-1/round-1", says("", finish="refusal"))
    lines = (plan_line(task("a")), failed, at("task-1/try-2/round-1", says("Found.")))
    async with App.open(place.settings(*lines), via="mcp") as app:
        report = await team(app)
        await assert_all_lawful(app)
    assert report.stop_reason == "team_done"
    assert sent_at(place, "task-1/try-1/round-1")["agent"] == "code_analyzer"
    assert sent_at(place, "task-1/try-2/round-1")["agent"] == "search_specialist"


async def test_steps_are_of_their_agent_in_the_record_and_in_the_report_of_spending(place: Place) -> None:
    async with App.open(place.settings(TWO, *ENDS), via="mcp") as app:
        await team(app)
        spent = await app.records.read_spending(None, ME)
    assert sent_at(place, "task-1/try-1/round-1")["agent"] == "code_analyzer"
    assert sent_at(place, "task-2/try-1/round-1")["agent"] == "file_manager"
    assert "file_manager" in json.dumps(spent)


@pytest.mark.parametrize("at_once", [1, 2, 8])
async def test_how_many_run_at_once_changes_no_path_no_digest_and_no_outcome(place: Place, at_once: int) -> None:
    names = ("t1", "t2", "t3", "t4", "t5")
    after = {"t3": ("t1",), "t5": ("t2", "t3")}
    delays = {"task-1": 0.03, "task-2": 0.0, "task-4": 0.02}
    lines = [
        plan_line(*(task(name, "general", after.get(name, ())) for name in names)),
        at("synthesis", says("all of it")),
    ]
    for number in range(1, 6):
        path = f"task-{number}/try-1"
        lines.append(at(f"{path}/round-1", reads("a.txt", delay_s=delays.get(f"task-{number}", 0.01))))
        lines.append(at(f"{path}/round-2", says(f"result {number}")))
    async with App.open(place.settings(*lines), via="mcp") as app:
        report = await team(app, max_parallel=at_once)
        await assert_all_lawful(app)
    assert_books_agree(place)
    assert report.summary == "all of it"
    expected = ["plan", "synthesis"]
    expected += [f"task-{n}/try-1/{step}" for n in range(1, 6) for step in ("round-1", "round-1/call-1", "round-2")]
    digests = asked_digests(place, report.run_id)
    assert sorted(digests) == sorted(expected)
    assert digests["task-5/try-1/round-1"].hex() == DIGEST_OF_THE_LAST_TASK.setdefault(
        "t5", digests["task-5/try-1/round-1"].hex()
    )


DIGEST_OF_THE_LAST_TASK: dict[str, str] = {}
"""Of the first of the three runs above; the others have to have the same."""


async def test_the_limits_of_a_team_are_sums_and_what_is_left_pays_the_answer(place: Place) -> None:
    lines = [plan_line(*(task(f"t{n}", "general") for n in range(3))), at("synthesis", says("what there is"))]
    for number in range(1, 4):
        for n in range(1, 10):
            lines.append(at(f"task-{number}/try-1/round-{n}", reads("a.txt", "b.txt" if n % 2 else "missing.txt")))
        lines.append(at(f"task-{number}/try-1/closing", says(f"half of {number}")))
    async with App.open(place.settings(*lines), via="mcp") as app:
        report = await team(app, limits=Limits(model_calls=13))
        await assert_all_lawful(app)
    assert_books_agree(place)
    books = branches_of(place, report.run_id)
    caps = [books[f"task-{n}"].caps.model_calls or 0 for n in range(1, 4)]
    assert caps == [3, 4, 4]  # of the 12 that are left after the plan, one is kept for the answer
    assert all(book.spent.model_calls <= (book.caps.model_calls or 0) for book in books.values())
    assert report.usage["model_calls"] == 1 + 11 + 1
    assert report.summary == "what there is"
    assert [each["status"] for each in report.output["tasks"]] == ["stopped"] * 3
    assert (report.status, report.stop_reason) == ("stopped", "budget")


async def test_each_agent_may_use_its_own_rounds(place: Place) -> None:
    folder = place.home / "config" / "agents"
    folder.mkdir(parents=True)
    (folder / "brief.md").write_text("---\nname: brief\ndescription: Is brief.\nmax_rounds: 1\n---\nBe brief.\n")
    lines = (
        plan_line(task("a", "brief"), task("b")),
        at("task-1/try-1/round-1", reads("a.txt")),
        at("task-1/try-1/closing", says("alpha, as far as I saw")),
        *ENDS[1:],
    )
    async with App.open(place.settings(*lines), via="mcp") as app:
        report = await team(app)
    first, second = report.output["tasks"]
    assert (first["status"], second["status"]) == ("stopped", "done")
    assert first["open"] == "out of rounds"
    assert branches_of(place, report.run_id)["task-1/try-1"].caps.rounds == 1


async def test_an_agent_s_own_model_is_asked_for_its_steps_and_no_others(place: Place, provider: Standin) -> None:
    folder = place.home / "config" / "agents"
    folder.mkdir(parents=True)
    (folder / "other.md").write_text(
        "---\nname: other\ndescription: Is other.\nmodel: openai:large\n---\nYou are other.\n"
    )

    async def reply(heard: Heard) -> Any:
        is_plan = "You plan." in json.dumps(heard.body)
        said = plan_line(task("a"), task("b", "other"))["content"] if is_plan else "done"
        return await talks(said)(heard)

    provider.will(*[reply] * 12)  # more than are asked for: a slow machine repeats one
    settings = place.settings(model="openai:small", base_url=provider.openai)
    async with App.open(settings, via="mcp") as app:
        report = await team(app)
    assert report.stop_reason == "team_done", report.summary
    by_prompt = {
        ("You are other." in json.dumps(body), "You plan." in json.dumps(body)): body["model"]
        for body in provider.bodies
    }
    assert by_prompt == {(False, True): "small", (False, False): "small", (True, False): "large"}
    assert sent_at(place, "task-2/try-1/round-1")["model"] == "openai:large"


async def test_a_plan_that_was_given_is_refused_with_every_fault_and_starts_nothing(place: Place) -> None:
    wrong = plan_of(task("a", "nobody"), task("b", after=("b",)), task("b", needs=["write_file"]))
    async with App.open(place.settings(), via="mcp") as app:
        await team(app, route="caller")
        with pytest.raises(BadArguments) as refused:
            await team(app, plan=wrong)
        assert place.rows("select count(*) from run") == [(1,)]
    for fault in ("'nobody'", "depends on itself", "given twice", "no tool that fits write_file"):
        assert fault in refused.value.message
    assert "code_analyzer" in refused.value.hint


async def test_agents_may_be_chosen_and_an_unknown_or_disabled_one_is_refused(place: Place) -> None:
    folder = place.home / "config" / "agents"
    folder.mkdir(parents=True)
    (folder / "bad.md").write_text("---\nname: bad\ndescription: Is bad.\nmax_rounds: many\n---\nYou are bad.\n")
    lines = (plan_line(task("a", "file_manager")), plan_line(task("a"), path="plan/repair-1"), ENDS[0])
    async with App.open(place.settings(*lines), via="mcp") as app:
        report = await team(app, agents=("code_analyzer",))
        assert report.output["tasks"][0]["agent"] == "code_analyzer"
        assert place.rows("select count(*) from step where path = 'plan/repair-1'") == [(1,)]
        with pytest.raises(UnknownAgent):
            await team(app, agents=("code_analyser",))
        with pytest.raises(ConfigError):
            await team(app, agents=("bad",))
        with pytest.raises(BadArguments):
            await team(app, agents=("planner",))


async def test_tools_narrow_each_agent_and_one_without_any_left_is_not_chosen(place: Place) -> None:
    lists = {"tool_calls": [{"name": "list_files", "arguments": {}}, reads("a.txt")["tool_calls"][0]]}
    lines = (
        plan_line(task("a", "file_manager")),
        at("task-1/try-1/round-1", lists),
        at("task-1/try-1/round-2", says("x")),
    )
    async with App.open(place.settings(*lines), via="mcp") as app:
        await team(app, tools=("write_file", "read_file"))
        with pytest.raises(BadArguments):
            await team(app, tools=("write_file",), agents=("code_analyzer",))
    assert answer_at(place, "task-1/try-1/round-1/call-1")["code"] == "tool_not_offered"
    assert answer_at(place, "task-1/try-1/round-1/call-2")["content"].startswith("alpha")


async def test_a_task_that_is_alone_has_its_account_from_its_first_step_on(place: Place) -> None:
    lines = (
        plan_line(task("a")),
        at("task-1/try-1/round-1", reads("a.txt")),
        at("task-1/try-1/round-2", says("alpha")),
    )
    async with App.open(place.settings(*lines), via="mcp") as app:
        report = await team(app)
    books = branches_of(place, report.run_id)
    assert {path: book.spent.rounds for path, book in books.items()} == {"task-1": 2, "task-1/try-1": 2}


async def test_an_identical_start_finds_the_open_run_and_a_plan_alone_is_another(place: Place) -> None:
    async with App.open(place.settings(), via="mcp") as app:
        first = await app.runs.start(TeamRequest("Do it.", route="caller"), ME)
        again = await app.runs.start(TeamRequest("Do it.", route="caller"), ME)
        plan = await app.runs.start(TeamRequest("Do it.", route="caller", plans_only=True), ME)
    assert (again.run_id, again.attached, first.attached) == (first.run_id, True, False)
    assert plan.run_id != first.run_id


async def test_the_planner_is_shown_the_files_and_what_the_agents_did_before(place: Place) -> None:
    async with App.open(place.settings(TWO, *ENDS), via="mcp") as app:
        await team(app)
    async with App.open(place.settings(), via="mcp") as app:
        (item,) = (await team(app, route="caller")).waiting
    user = item["messages"][-1]["content"]
    assert "> a.txt" in user.replace("  ", " ") or "a.txt" in user
    assert "- code_analyzer: 1 of 1 tasks done" in user
    assert "- general:" in user
    assert item["schema"]["required"] == ["analysis", "strategy", "tasks"]


async def test_a_plan_alone_has_the_plan_as_its_output_which_a_team_takes_when_it_was_edited(place: Place) -> None:
    async with App.open(place.settings(TWO, *ENDS), via="mcp") as app:
        plan = await team(app, plans_only=True)
        assert [each["id"] for each in plan.output["tasks"]] == ["a", "b"]
        edited = plan.output | {"tasks": plan.output["tasks"][:1], "strategy": "single_task"}
        report = await team(app, plan=edited)
    assert report.summary == "answer of task-1/try-1/round-1"
    assert outcome_of(place, report.run_id)["stop_reason"] == "team_done"
    assert place.rows("select count(*) from step where path = 'plan'") == [(1,)]


async def test_the_whole_result_of_a_task_is_read_under_its_ref_by_the_tasks_after_it(place: Place) -> None:
    long = "head " + "x" * 9_000 + " tail"
    wants = {"tool_calls": [{"name": "read_result", "arguments": {"ref": "task-1/try-1/round-1"}}]}
    lines = (
        plan_line(task("a"), task("b", after=("a",))),
        at("task-1/try-1/round-1", says(long)),
        at("task-2/try-1/round-1", wants),
        at("task-2/try-1/round-2", says("seen")),
        ENDS[2],
    )
    async with App.open(place.settings(*lines), via="mcp") as app:
        report = await team(app)
    assert report.status == "completed"
    assert answer_at(place, "task-2/try-1/round-1/call-1")["content"].startswith("head xxx")
