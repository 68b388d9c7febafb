"""A team's tasks in one stage, and the cycles of a mandate: what they do is one question of the whole run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from support import postgres
from support.app import ME, PERSON, Place, assert_all_lawful, outcome_of, rests, says
from support.cycles import MANDATE, PAGE, cycle, edit, gives, page
from support.team_lines import answers, at, plan_line, task

from kairos_mcp.app.app import App
from kairos_mcp.core.run_spec import CyclesRequest, MandateRef, TeamRequest
from kairos_mcp.settings.table_values import GateRule

pytestmark = pytest.mark.sandbox
LAST = "submit-1/approval"


def does(step: str, tool: str, /, **arguments: Any) -> Mapping[str, Any]:
    return at(step, {"tool_calls": [{"name": tool, "arguments": arguments}]})


def asked(place: Place) -> list[str]:
    return [path for (path,) in place.rows("select path from approval join step on step.id = step order by step")]


def code_at(place: Place, path: str) -> Any:
    ((body,),) = place.rows("select body from step join answer on answer.step = step.id where path = ?", path)
    return json.loads(body).get("code")


async def decide(app: App, run_id: str, verdict: Any, words: str | None = None, key: str = LAST) -> Any:
    await app.answers.decide(run_id, key, verdict, words, PERSON)
    return await rests(app, run_id)


FIRST, SECOND = "task-1/try-1/round-", "task-2/try-1/round-"
TASKS = (
    plan_line(task("a", "file_manager"), task("b", "file_manager", after=("a",))),
    does(f"{FIRST}1", "edit_file", path="a.txt", old_string="alpha", new_string="omega"),
    does(f"{SECOND}1", "read_file", path="a.txt"),
    does(f"{SECOND}2", "edit_file", path="a.txt", old_string="omega", new_string="omega!"),
    does(f"{SECOND}3", "delete_file", path="b.txt"),
    *answers(f"{FIRST}2", f"{SECOND}4", "synthesis"),
)


async def test_tasks_of_a_team_share_a_stage_which_the_team_submits_once(place: Place) -> None:
    async with App.open(place.settings(*TASKS, stage=True), via="mcp") as app:
        run_id = (await app.runs.start(TeamRequest("Mend it."), ME)).run_id
        await rests(app, run_id)
        assert asked(place) == ["submit-1"]
        assert (place.workspace / "a.txt").read_text() == "alpha\n"
        report = await decide(app, run_id, "approve")
        assert report.stop_reason == "team_done"
        assert (place.workspace / "a.txt").read_text() == "omega!\n"
        assert not (place.workspace / "b.txt").exists()
        await assert_all_lawful(app)


async def test_a_task_of_a_team_has_no_submit_of_its_own(place: Place) -> None:
    lines = (
        plan_line(task("a", "file_manager")),
        does(f"{FIRST}1", "submit_changes"),
        *answers(f"{FIRST}2", "synthesis"),
    )
    async with App.open(place.settings(*lines, **postgres.named_place()), via="mcp") as app:
        await rests(app, (await app.runs.start(TeamRequest("Mend it.", stage=True), ME)).run_id)
        assert (code_at(place, f"{FIRST}1/call-1"), asked(place)) == ("tool_not_offered", [])


async def test_a_task_does_not_overwrite_unseen_what_another_changed_in_the_stage(place: Place) -> None:
    lines = (
        plan_line(task("a", "file_manager"), task("b", "file_manager")),
        does(f"{FIRST}1", "edit_file", path="a.txt", old_string="alpha", new_string="omega"),
        does(f"{SECOND}1", "read_file", path="b.txt"),
        does(f"{SECOND}2", "write_file", path="a.txt", content="mine\n"),
        *answers(f"{FIRST}2", f"{SECOND}3", "synthesis"),
    )
    async with App.open(place.settings(*lines, stage=True), via="mcp") as app:
        run_id = (await app.runs.start(TeamRequest("Mend it.", max_parallel=1), ME)).run_id
        await rests(app, run_id)
        assert code_at(place, f"{SECOND}2/call-1") == "stale_file"


def mandate(**more: Any) -> CyclesRequest:
    return CyclesRequest(MandateRef(mandate={**MANDATE, **more}))


HOLDS = [{"check": "file_contains", "path": "docs/index.md", "text": "one.md"}]


@pytest.fixture
def place(place: Place) -> Place:
    (place.workspace / "docs").mkdir()
    (place.workspace / "docs" / "index.md").write_text(PAGE)
    return place


async def test_a_goal_that_the_stage_reaches_counts_once_it_is_applied(place: Place) -> None:
    lines = cycle(edit("oen.md", "one.md"))
    async with App.open(place.settings(*lines, stage=True), via="mcp") as app:
        run_id = (await app.runs.start(mandate(acceptance=HOLDS), ME)).run_id
        report = await rests(app, run_id)
        assert (report.status, asked(place), page(place)) == ("input_required", ["submit-1"], PAGE)
        report = await decide(app, run_id, "approve")
        assert (report.status, report.stop_reason) == ("completed", "goal_achieved")
        assert "one.md" in page(place)
        ((status),) = {each["status"] for each in outcome_of(place, run_id)["output"]["cycles"]}
        assert status == "staged"
        await assert_all_lawful(app)


async def test_a_goal_whose_changes_are_denied_is_not_achieved(place: Place) -> None:
    async with App.open(place.settings(*cycle(edit("oen.md", "one.md")), stage=True), via="mcp") as app:
        run_id = (await app.runs.start(mandate(acceptance=HOLDS), ME)).run_id
        await rests(app, run_id)
        report = await decide(app, run_id, "deny")
        assert (report.status, report.stop_reason, page(place)) == ("stopped", "not_applied", PAGE)


async def test_words_of_a_denial_are_a_lesson_and_the_cycles_go_on(place: Place) -> None:
    lines = (*cycle(edit("oen.md", "one.md")), *cycle(edit("tow.md", "two.md")))
    async with App.open(place.settings(*lines, stage=True), via="mcp") as app:
        run_id = (await app.runs.start(mandate(acceptance=HOLDS, max_cycles=2), ME)).run_id
        await rests(app, run_id)
        await decide(app, run_id, "deny", "two.md as well")
        assert asked(place) == ["submit-1", "submit-2"]
        report = await decide(app, run_id, "approve", key="submit-2/approval")
        assert report.stop_reason == "goal_achieved"
        assert "[two](two.md)" in page(place)
        assert any("two.md as well" in each for each in outcome_of(place, run_id)["output"]["lessons"])


async def test_to_decide_at_a_checkpoint_resumes_it_and_what_rules_apply_does_not(place: Place) -> None:
    lines = (*cycle(edit("oen.md", "one.md")), *cycle(edit("tow.md", "two.md")))
    async with App.open(place.settings(*lines, stage=True), via="mcp") as app:
        run_id = (await app.runs.start(mandate(checkpoint_every=1, max_cycles=2), ME)).run_id
        await rests(app, run_id)
        report = await decide(app, run_id, "approve")  # and the second cycle begins
        assert (report.status, asked(place)) == ("input_required", ["submit-1", "submit-2"])


async def test_a_checkpoint_at_which_rules_applied_everything_pauses(place: Place) -> None:
    rules = (GateRule("edit_file", "allow"),)
    async with App.open(place.settings(*cycle(edit("oen.md", "one.md")), stage=True, gate=rules), via="mcp") as app:
        report = await rests(app, (await app.runs.start(mandate(checkpoint_every=1), ME)).run_id)
        assert (report.status, asked(place)) == ("paused", [])
        assert "one.md" in page(place)


async def test_checks_judge_the_stage_and_what_they_alone_write_stays_there(place: Place) -> None:
    check = {"check": "command_succeeds", "argv": ["sh", "-c", "echo ran > report.txt; grep -q one.md docs/index.md"]}
    async with App.open(place.settings(*cycle(edit("oen.md", "one.md")), stage=True), via="mcp") as app:
        run_id = (await app.runs.start(mandate(acceptance=[check]), ME)).run_id
        await rests(app, run_id)
        assert asked(place) == ["submit-1"]
        assert (await decide(app, run_id, "approve")).stop_reason == "goal_achieved"
        assert not (place.workspace / "report.txt").exists()


async def test_a_program_in_the_stage_is_of_low_risk(place: Place) -> None:
    program = gives(
        {
            "action": "run_tool",
            "tool": "run_command",
            "arguments": {"argv": ["sh", "-c", "echo x > new"]},
            "intent": "x",
        }
    )
    more = {"allowed_actions": ["run_tool"], "tools": ["run_command"], "risk_budget": "low", "max_cycles": 1}
    async with App.open(place.settings(*cycle(program), stage=True), via="mcp") as app:
        run_id = (await app.runs.start(mandate(**more), ME)).run_id
        await rests(app, run_id)
        assert asked(place) == ["submit-1"]
        await decide(app, run_id, "approve")
        assert (place.workspace / "new").read_text() == "x\n"


async def test_a_fork_of_a_team_begins_with_an_empty_stage(place: Place) -> None:
    async with App.open(place.settings(*TASKS, stage=True), via="mcp") as app:
        run_id = (await app.runs.start(TeamRequest("Mend it."), ME)).run_id
        await rests(app, run_id)
        await decide(app, run_id, "deny")
    from support.app import start_run

    again = (says("anew"),)
    async with App.open(place.settings(*again, stage=True), via="mcp") as app:
        fork = await start_run(app, "", continues=run_id, from_round="synthesis")
        report = await rests(app, fork)
        assert (report.stop_reason, asked(place)) == ("team_done", ["submit-1"])  # that of the first run
        assert (place.workspace / "b.txt").exists()
