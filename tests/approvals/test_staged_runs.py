"""A run in a stage: it edits and runs programs unasked, and a person decides once about one diff."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support import postgres
from support.app import ME, PERSON, Place, assert_all_lawful, rests, says, start_run

from kairos_mcp.app.app import App
from kairos_mcp.app.runs import RunPurpose
from kairos_mcp.core.errors import AlreadyAnswered, BadArguments
from kairos_mcp.core.limits import Limits
from kairos_mcp.core.messages import ToolSpec
from kairos_mcp.server.dialog_layout import find_screen
from kairos_mcp.server.elicitation import make_dialog
from kairos_mcp.settings.table_values import GateRule
from kairos_mcp.store.rules import RuleRequest
from kairos_mcp.tools.stage import copies

pytestmark = pytest.mark.sandbox
ALL = ("*",)
LAST = "submit-1/approval"


def calls(name: str, **arguments: Any) -> dict[str, Any]:
    """A line of a script: a turn that calls one tool."""
    return {"tool_calls": [{"name": name, "arguments": arguments}]}


EDIT = calls("edit_file", path="a.txt", old_string="alpha", new_string="omega")
PROGRAM = calls("run_command", argv=["sh", "-c", "cat a.txt; rm b.txt; echo new > c.txt"])


def staged(place: Place, *lines: dict[str, Any], **more: Any) -> Any:
    return place.settings(*lines, **{"stage": True, **more})


def files(place: Place) -> dict[str, str]:
    return {path.name: path.read_text() for path in sorted(place.workspace.iterdir()) if path.is_file()}


def asked(place: Place) -> list[str]:
    return [path for (path,) in place.rows("select path from approval join step on step.id = step order by step")]


def answers(place: Place) -> dict[str, dict[str, Any]]:
    rows = place.rows("select path, body from answer join step on step.id = answer.step")
    return {path: json.loads(body) for path, body in rows}


async def decide(app: App, run_id: str, verdict: str, words: str | None = None, key: str = LAST) -> Any:
    await app.answers.decide(run_id, key, verdict, words, PERSON)
    return await rests(app, run_id)


async def test_edits_and_programs_are_one_question_and_nothing_changes_before_its_answer(place):
    before = files(place)
    async with App.open(staged(place, EDIT, PROGRAM, says("done")), via="mcp") as app:
        run_id = await start_run(app, tools=ALL)
        assert asked(place) == ["submit-1"]
        assert files(place) == before
        assert "omega" in answers(place)["round-2/call-1"]["content"]
        (item,) = (await app.runs.report(run_id, ME)).waiting
        assert item["preview"].index("delete b.txt") < item["preview"].index("create c.txt")
        report = await decide(app, run_id, "approve")
        assert (report.status, report.summary) == ("completed", "done")
        assert files(place) == {"a.txt": "omega\n", "c.txt": "new\n"}
        await assert_all_lawful(app)


async def test_words_of_a_denial_are_a_turn_and_the_run_goes_on(place):
    again = calls("write_file", path="b.txt", content="other\n")
    async with App.open(staged(place, EDIT, says("done"), again, says("now")), via="mcp") as app:
        run_id = await start_run(app, tools=ALL)
        await decide(app, run_id, "deny", "b.txt as well")
        assert asked(place) == ["submit-1", "submit-2"]
        assert files(place)["a.txt"] == "alpha\n"
        report = await decide(app, run_id, "approve", key="submit-2/approval")
        assert report.status == "completed"
        assert files(place) == {"a.txt": "omega\n", "b.txt": "other\n"}
        await assert_all_lawful(app)


async def test_a_caller_s_tool_is_not_told_of_a_file_that_it_does_not_see_as_it_is(place):
    look = ToolSpec("lint", "Lint a file.", {"type": "object"}, effect="read", source="caller")
    other = calls("lint", path="b.txt")
    lines = (calls("lint", path="a.txt"), EDIT, calls("lint", path="a.txt"), other)
    async with App.open(staged(place, *lines), via="mcp") as app:
        run_id = await start_run(app, tools=ALL, caller_tools=(look,))
        await app.answers.submit(run_id, {"round-1/call-1": {"content": "fine"}}, ME)
        report = await rests(app, run_id)
        assert answers(place)["round-3/call-1"]["code"] == "stale_file"
        assert [item["key"] for item in report.waiting] == ["round-4/call-1"]


async def test_files_are_approved_alone_and_the_others_stay(place):
    more = calls("write_file", path="b.txt", content="other\n")
    async with App.open(staged(place, EDIT, more, says("done")), via="mcp") as app:
        run_id = await start_run(app, tools=ALL)
        for wrong in ([], ["c.txt"]):
            with pytest.raises(BadArguments):
                await app.answers.decide(run_id, LAST, "approve", None, PERSON, files=wrong)
        with pytest.raises(BadArguments):
            await app.answers.decide(run_id, LAST, "deny", None, PERSON, files=["a.txt"])
        await app.answers.decide(run_id, LAST, "approve", None, PERSON, files=["a.txt"])
        with pytest.raises(AlreadyAnswered):
            await app.answers.decide(run_id, LAST, "approve", None, PERSON)
        report = await rests(app, run_id)
        assert (report.status, files(place)) == ("completed", {"a.txt": "omega\n", "b.txt": "beta\nbeta\n"})
        assert answers(place)["submit-1"]["data"]["withheld"] == ["b.txt"]
        assert any("1 file that a person did not approve" in note for note in report.degraded)
        assert place.rows("select files from approval") == [('["a.txt"]',)]
        await assert_all_lawful(app)


async def test_a_dialog_counts_what_a_stage_changes_and_shows_a_small_diff_whole(place):
    """Claude Code's screen of four lines; of more the page has all."""
    cases = (((EDIT,), "whole", "edit a.txt  -1 +1"), ((EDIT, PROGRAM), "page", "submit_changes: 3 files: "))
    for lines, way, begins in cases:
        async with App.open(staged(place, *lines, says("done")), via="mcp") as app:
            run_id = await start_run(app, way, tools=ALL)
            row = await app.answers.find_approval(run_id, LAST, ME)
            purpose = RunPurpose(run_id, commands=("kairos-mcp approve",), page_link="http://127.0.0.1:1/")
            screen = find_screen("claude-code 2.1.332")
            asked_for, shown = make_dialog(purpose, row, screen)
            assert (shown.way, asked_for.params.message.startswith(begins)) == (way, True), asked_for.params.message
            await decide(app, run_id, "deny")


async def test_words_with_some_files_are_a_turn_and_a_call_is_approved_whole(place):
    rules = (GateRule("write_file", "ask"),)
    lines = (EDIT, calls("write_file", path="b.txt", content="other\n"), says("done"), says("now"))
    async with App.open(staged(place, *lines, gate=rules), via="mcp") as app:
        run_id = await start_run(app, tools=ALL)
        with pytest.raises(BadArguments):
            await app.answers.decide(run_id, "round-2/call-1/approval", "approve", None, PERSON, files=["b.txt"])
        await decide(app, run_id, "approve", key="round-2/call-1/approval")
        await app.answers.decide(run_id, LAST, "approve", "the other is wrong", PERSON, files=["a.txt"])
        report = await rests(app, run_id)
        assert (report.summary, files(place)["b.txt"]) == ("now", "beta\nbeta\n")


async def test_a_denial_without_words_ends_it_and_the_next_run_takes_the_stage_over(place):
    async with App.open(staged(place, EDIT, says("done")), via="mcp") as app:
        run_id = await start_run(app, tools=ALL)
        report = await decide(app, run_id, "deny")
        assert report.status == "completed"
        assert files(place)["a.txt"] == "alpha\n"
        assert any("stays in the stage" in note for note in report.degraded)
    more = calls("edit_file", path="a.txt", old_string="omega", new_string="omega!")
    async with App.open(staged(place, more, says("now")), via="mcp") as app:
        second = await start_run(app, "go on", tools=ALL, continues=run_id)
        report = await decide(app, second, "approve")
        assert files(place)["a.txt"] == "omega!\n"
        await assert_all_lawful(app)
    async with App.open(staged(place, EDIT, says("now")), via="mcp") as app:  # `from` begins empty
        await start_run(app, "again", tools=ALL, continues=run_id, from_round="round-1")
        assert answers(place)["round-1/call-1"]["code"] == "match_none"


async def test_what_rules_let_each_tool_do_is_applied_unasked(place):
    rules = (GateRule("edit_file", "allow", paths=("a.txt",)),)
    async with App.open(staged(place, EDIT, says("done"), gate=rules), via="mcp") as app:
        report = await rests(app, await start_run(app, tools=ALL))
        assert (report.status, asked(place), files(place)["a.txt"]) == ("completed", [], "omega\n")
        assert "Nobody was asked" in answers(place)["submit-1"]["content"]
        await assert_all_lawful(app)


async def test_what_a_person_remembered_is_applied_unasked(place):
    async with App.open(place.settings(EDIT, says("done")), via="mcp") as app:
        run_id = await start_run(app, tools=ALL)
        await app.answers.decide(
            run_id, "round-1/call-1/approval", "approve", None, PERSON, rule=RuleRequest("project")
        )
        await rests(app, run_id)
    back = calls("edit_file", path="a.txt", old_string="omega", new_string="alpha")
    async with App.open(staged(place, back, says("done")), via="mcp") as app:
        report = await rests(app, await start_run(app, "back", tools=ALL))
        assert (report.status, files(place)["a.txt"]) == ("completed", "alpha\n")
        assert place.rows("select through from approval join step on step.id = step where path = 'submit-1'") == [
            ("rule",)
        ]


@pytest.mark.parametrize("text", ["rm b.txt", "chmod +x a.txt", "echo x > AGENTS.md", "ln -s a.txt l"])
async def test_of_programs_that_a_rule_allows_some_changes_are_always_asked_about(place, text):
    rules = (GateRule("run_command", "allow", argv=("sh", "...")),)
    lines = (calls("run_command", argv=["sh", "-c", text]), says("done"))
    async with App.open(staged(place, *lines, gate=rules), via="mcp") as app:
        await start_run(app, tools=ALL)
        assert asked(place) == ["submit-1"]


async def test_a_program_that_a_rule_allows_changes_files_unasked(place):
    rules = (GateRule("run_command", "allow", argv=("sh", "...")),)
    lines = (calls("run_command", argv=["sh", "-c", "echo x >> a.txt"]), says("done"))
    async with App.open(staged(place, *lines, gate=rules), via="mcp") as app:
        assert (await rests(app, await start_run(app, tools=ALL))).status == "completed"
        assert (asked(place), files(place)["a.txt"]) == ([], "alpha\nx\n")


async def test_an_ask_rule_asks_in_the_stage_and_a_deny_rule_denies(place):
    rules = (GateRule("edit_file", "ask"), GateRule("run_command", "deny"))
    async with App.open(staged(place, EDIT, PROGRAM, says("done"), gate=rules), via="mcp") as app:
        run_id = await start_run(app, tools=ALL)
        assert asked(place) == ["round-1/call-1"]
        await decide(app, run_id, "approve", key="round-1/call-1/approval")
        assert answers(place)["round-2/call-1"]["code"] == "denied"
        assert files(place)["a.txt"] == "alpha\n"  # what was approved was the edit of the stage


async def test_an_edit_of_an_env_file_is_asked_before_it_says_anything_of_it(place):
    (place.workspace / ".env").write_text("TOKEN=alpha\n")
    guess = calls("edit_file", path=".env", old_string="TOKEN=alpha", new_string="TOKEN=omega")
    async with App.open(staged(place, guess, says("done")), via="mcp") as app:
        run_id = await start_run(app, tools=ALL)
        assert asked(place) == ["round-1/call-1"]
        (item,) = (await app.runs.report(run_id, ME)).waiting
        assert "does not fit" not in item["preview"]
        assert "digest" in item


async def test_a_program_is_let_read_an_env_file_in_the_stage_once_a_person_says_so(place):
    (place.workspace / ".env").write_text("GREETING=hello there\n")
    plain, asks = (calls("run_command", argv=["cat", ".env"], **more) for more in ({}, {"reads": [".env"]}))
    async with App.open(staged(place, plain, asks, says("done")), via="mcp") as app:
        run_id = await start_run(app, tools=ALL)
        (item,) = (await rests(app, run_id)).waiting
        assert (item["key"], "ASKS TO READ, for this call .env" in item["preview"]) == ("round-2/call-1/approval", True)
        report = await decide(app, run_id, "approve", key=item["key"])
        assert report.status == "completed"
        assert ["hello" in answers(place)[f"round-{n}/call-1"]["content"] for n in (1, 2)] == [False, True]
        await assert_all_lawful(app)


async def test_what_the_model_submits_itself_is_not_asked_about_again(place):
    lines = (EDIT, calls("submit_changes", summary="first"), says("done"))
    async with App.open(staged(place, *lines), via="mcp") as app:
        run_id = await start_run(app, tools=ALL)
        assert asked(place) == ["round-2/call-1"]
        report = await decide(app, run_id, "deny", "no", key="round-2/call-1/approval")
        assert (report.status, asked(place), files(place)["a.txt"]) == ("completed", ["round-2/call-1"], "alpha\n")


async def test_a_question_outlives_the_server_that_asked_it(place):
    settings = staged(place, EDIT, PROGRAM, says("done"))
    async with App.open(settings, via="mcp") as app:
        run_id = await start_run(app, tools=ALL)
    async with App.open(settings, via="mcp") as app:
        assert (await decide(app, run_id, "approve")).status == "completed"
        assert files(place) == {"a.txt": "omega\n", "c.txt": "new\n"}
        await assert_all_lawful(app)


async def test_a_file_that_changed_since_it_was_shown_is_named_and_nothing_is_applied(place):
    async with App.open(staged(place, EDIT, PROGRAM, says("done")), via="mcp") as app:
        run_id = await start_run(app, tools=ALL)
        (place.workspace / "a.txt").write_text("alpha\nmine\n")
        report = await decide(app, run_id, "approve")
        assert answers(place)["submit-1"]["code"] == "stale_file"
        assert "b.txt" in files(place)
        assert any("a.txt" in note for note in report.degraded)


async def test_where_no_call_is_left_the_stage_stays_and_the_result_says_so(place):
    async with App.open(staged(place, EDIT, says("done")), via="mcp") as app:
        report = await rests(app, await start_run(app, tools=ALL, limits=Limits(tool_calls=1)))
        assert (report.status, report.waiting) == ("completed", ())
        assert any("left no call" in note for note in report.degraded)
        assert files(place)["a.txt"] == "alpha\n"


async def test_a_run_that_only_reads_has_no_stage(place):
    async with App.open(staged(place, calls("read_file", path="a.txt"), says("done")), via="mcp") as app:
        report = await rests(app, await start_run(app))
        assert report.status == "completed"
        assert not (place.home / "stages").joinpath(report.run_id).exists()


@pytest.mark.parametrize("mode", ["auto", True])
async def test_where_there_can_be_no_stage_the_reason_is_said_or_the_run_refused(place, mode, monkeypatch):
    monkeypatch.setattr(copies, "CLONED_FILES", 0)
    monkeypatch.setattr(copies, "COPIED_FILES", 0)
    async with App.open(staged(place, EDIT, says("done"), stage=mode, commands="bare"), via="mcp") as app:
        if mode is True:
            with pytest.raises(BadArguments, match="without a sandbox"):
                await start_run(app, tools=ALL)
            return
        report = await rests(app, await start_run(app, tools=ALL))
        assert asked(place) == ["round-1/call-1"]
        assert any(note.startswith("not staged: programs run without a sandbox, and") for note in report.degraded)


async def test_without_a_sandbox_it_works_in_a_copy_and_each_program_asks(place):
    before = files(place)
    async with App.open(staged(place, EDIT, PROGRAM, says("done"), commands="bare"), via="mcp") as app:
        run = await start_run(app, tools=ALL)
        assert asked(place) == ["round-2/call-1"]
        report = await decide(app, run, "approve", key="round-2/call-1/approval")
        assert "staged in a copy of the workspace: programs run without a sandbox" in report.degraded
        assert "omega" in answers(place)["round-2/call-1"]["content"]
        assert files(place) == before
        assert asked(place) == ["round-2/call-1", "submit-1"]
        await decide(app, run, "approve")
    assert files(place) == {"a.txt": "omega\n", "c.txt": "new\n"}


async def test_a_call_says_otherwise_than_the_setting(place):
    async with App.open(place.settings(EDIT, says("done"), **postgres.named_place()), via="mcp") as app:
        await start_run(app, tools=ALL, stage=True)
        assert asked(place) == ["submit-1"]
        await start_run(app, "another", tools=ALL)
        assert asked(place) == ["submit-1", "round-1/call-1"]


async def test_more_than_thirty_calls_a_minute_are_free_in_a_stage(place):
    edits = [calls("write_file", path="a.txt", content=f"{number}\n") for number in range(32)]
    async with App.open(staged(place, *edits, says("done")), via="mcp") as app:
        await start_run(app, tools=ALL, limits=Limits(rounds=40))
        assert asked(place) == ["submit-1"]
        assert not any(answer.get("code") for answer in answers(place).values())


async def test_the_stage_of_an_ended_run_goes_once_it_is_applied(place):
    settings = staged(place, EDIT, says("done"))
    async with App.open(settings, via="mcp") as app:
        first = await start_run(app, tools=ALL)
        await decide(app, first, "approve")
        second = await start_run(app, "again", tools=ALL)
        assert {path.name for path in (place.home / "stages").iterdir()} == {second}
