"""Remembered approvals: what a person allowed from then on is done unasked, and nothing else is."""

from __future__ import annotations

import asyncio
import itertools
import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.app import ASK, ME, Place, asks, assert_all_lawful, rests, says
from support.reviewers import Person, accepts, connect_person

from approvals.test_approved_edits import EDIT, KEY, PERSON, edits
from kairos_mcp.app.app import App
from kairos_mcp.core.decision_rights import Caller
from kairos_mcp.core.errors import AlreadyAnswered, ApprovalRequired, BadArguments
from kairos_mcp.core.run_spec import PlannerRequest
from kairos_mcp.settings.settings import Settings
from kairos_mcp.settings.table_values import GateRule
from kairos_mcp.store.rules import RuleRequest
from kairos_mcp.views.trace import TraceQuery

FOR_PROJECT, FOR_RUN = RuleRequest("project"), RuleRequest("run")


def runs_program(*argv: str, **more: Any) -> dict[str, Any]:
    return {"tool_calls": [{"name": "run_command", "arguments": {"argv": list(argv), **more}}]}


def rows_of_rules(place: Place) -> list[tuple[Any, ...]]:
    return place.rows("select tool, run is null, removed is null, by, through from rule order by id")


def let_through(place: Place) -> list[tuple[Any, ...]]:
    """Each decision in the record: the step, what was decided, through what, and by which rule."""
    statement = "select path, verdict, through, approval.client from approval join step on step.id = step order by step"
    return place.rows(statement)


async def start_change_run(app: App, goal: str = "change it", **more: Any) -> str:
    request = PlannerRequest(goal, tools=("*",), caller_tools=(ASK,), **more)
    run_id = (await app.runs.start(request, ME)).run_id
    await rests(app, run_id)
    return run_id


async def approve_with_rule(app: App, run_id: str, rule: RuleRequest | None, key: str = KEY) -> str:
    await app.answers.decide(run_id, key, "approve", None, PERSON, rule=rule)
    return (await rests(app, run_id)).status


GOALS = (f"goal {number}" for number in itertools.count())  # an identical start would be the run of before


async def status_of_new_run(settings: Settings, **more: Any) -> str:
    async with App.open(settings, via="mcp") as app:
        return (await rests(app, await start_change_run(app, next(GOALS), **more))).status


@pytest.mark.sandbox
async def test_a_command_approved_for_the_project_runs_unasked_in_the_next_run(place):
    line = runs_program("touch", "made")
    settings = place.settings(line, says("done"))
    async with App.open(settings, via="mcp") as app:
        run_id = await start_change_run(app)
        assert not (place.workspace / "made").exists()
        assert await approve_with_rule(app, run_id, FOR_PROJECT) == "completed"
        (place.workspace / "made").unlink()
        second = await start_change_run(app, "again")
        assert (await rests(app, second)).status == "completed"
        assert (place.workspace / "made").exists()
        step = "round-1/call-1"
        assert let_through(place) == [
            (step, "approve", "command", "kairos-mcp"),
            (step, "approve", "rule", "rule 1"),
        ]
        events = (await app.records.trace(second, TraceQuery(view="calls"), ME))["items"]
        assert [(each["through"], each["client"]) for each in events[0]["decided"]] == [("rule", "rule 1")]
        (call,) = (await app.runs.report(second, ME)).calls
        assert call["rule"] == "rule 1"
        assert "rule" not in (await app.runs.report(run_id, ME)).calls[0]
        await assert_all_lawful(app)


@pytest.mark.sandbox
async def test_a_folder_that_a_person_lets_a_command_read_is_part_of_what_they_allow(place):
    """It is shown, and read without a restart; remembered with the command, it opens this folder and no other."""
    one, other = place.root / "one", place.root / "other"
    for folder in (one, other):
        folder.mkdir()
        (folder / "notes").write_text(f"notes of {folder.name}\n")

    def reads(folder: Path, *folders: Path) -> Settings:
        line = runs_program("cat", str(folder / "notes"), reads=[str(each) for each in folders])
        return place.settings(line, says("done"))

    async with App.open(reads(one, one), via="mcp") as app:
        run_id = await start_change_run(app)
        (item,) = (await app.runs.report(run_id, ME)).waiting
        assert f"ASKS TO READ, for this call {one}\n" in item["preview"]
        assert await approve_with_rule(app, run_id, RuleRequest("project", ("cat", "..."))) == "completed"
        (call,) = (await app.runs.report(run_id, ME)).calls
        assert "notes of one" in call["preview"]
        (listed,) = await app.answers.list_rules(PERSON)
        assert listed.rule.description == f"run_command: cat ..., which may read {one}"
    assert await status_of_new_run(reads(one, one)) == "completed"
    assert await status_of_new_run(reads(other)) == "completed"  # and finds no such file
    assert await status_of_new_run(reads(other, other)) == "input_required"
    assert await status_of_new_run(reads(one, one, other)) == "input_required"


@pytest.mark.sandbox
async def test_a_rule_that_was_removed_lets_nothing_through(place):
    settings = place.settings(runs_program("true"), says("done"))
    async with App.open(settings, via="mcp") as app:
        await approve_with_rule(app, await start_change_run(app), FOR_PROJECT)
        (listed,) = await app.answers.list_rules(PERSON)
        with pytest.raises(ApprovalRequired):
            await app.answers.remove_rule(listed.rule.id, ME)
        await app.answers.remove_rule(listed.rule.id, PERSON)
        assert await app.answers.list_rules(PERSON) == []
        assert (await rests(app, await start_change_run(app, "again"))).status == "input_required"
    assert rows_of_rules(place) == [("run_command", 1, 0, "local", "command")]  # kept: the record names it


async def test_an_edit_approved_for_the_project_covers_its_file_and_no_other(place):
    async with App.open(place.settings(EDIT, says("done")), via="mcp") as app:
        assert await approve_with_rule(app, await start_change_run(app), FOR_PROJECT) == "completed"
    assert await status_of_new_run(place.settings(edits("a.txt", "omega", "alpha"), says("done"))) == "completed"
    assert (place.workspace / "a.txt").read_text() == "alpha\n"
    other = place.settings(edits("b.txt", "beta\nbeta", "x"), says("done"))
    assert await status_of_new_run(other) == "input_required"
    writes = {"tool_calls": [{"name": "write_file", "arguments": {"path": "a.txt", "content": "new\n"}}]}
    assert await status_of_new_run(place.settings(writes, says("done"))) == "input_required"  # another tool


async def test_two_edits_of_a_file_in_one_round_are_both_made(place):
    """They were judged together, before either was made: the rule holds for no particular content."""
    async with App.open(place.settings(EDIT, says("done")), via="mcp") as app:
        await approve_with_rule(app, await start_change_run(app), FOR_PROJECT)
    first, second = edits("a.txt", "omega", "one"), edits("a.txt", "\n", " two\n")
    both = {"tool_calls": [*first["tool_calls"], *second["tool_calls"]]}
    assert await status_of_new_run(place.settings(both, says("done"))) == "completed"
    assert (place.workspace / "a.txt").read_text() == "one two\n"


@pytest.mark.parametrize("scope", ["run", "project"])
async def test_a_rule_for_a_run_ends_with_it(place, scope):
    """It holds within the run; neither another run nor one that goes on from it has it."""
    again = edits("a.txt", "omega", "alpha")
    async with App.open(place.settings(EDIT, again, says("done")), via="mcp") as app:
        first = await start_change_run(app)
        assert await approve_with_rule(app, first, RuleRequest(scope)) == "completed"
        assert [row[2:] for row in let_through(place)] == [("command", "kairos-mcp"), ("rule", "rule 1")]
        assert len(await app.answers.list_rules(PERSON)) == (scope == "project")
    lasts = "completed" if scope == "project" else "input_required"
    settings = place.settings(EDIT, says("done"))
    assert await status_of_new_run(settings) == lasts
    (place.workspace / "a.txt").write_text("alpha\n")
    assert await status_of_new_run(settings, continues=first) == lasts


async def test_a_rule_is_of_its_principal(place):
    settings = place.settings(EDIT, says("done"))
    async with App.open(settings, via="mcp") as app:
        await approve_with_rule(app, await start_change_run(app), FOR_PROJECT)
        (place.workspace / "a.txt").write_text("alpha\n")
        other = Caller("somebody")
        run_id = (await app.runs.start(PlannerRequest("change", tools=("*",)), other)).run_id
        await app.runs.wait([run_id], until="rest", wait_s=20, caller=other)
        assert (await app.runs.report(run_id, other)).status == "input_required"
        assert await app.answers.list_rules(replace(PERSON, principal="somebody")) == []


async def test_another_folder_of_the_same_path_is_another_project(place):
    settings = place.settings(EDIT, says("done"))
    async with App.open(settings, via="mcp") as app:
        await approve_with_rule(app, await start_change_run(app), FOR_PROJECT)
    shutil.rmtree(place.workspace)  # so that the new one may be given the same inode
    place.workspace.mkdir()
    (place.workspace / "a.txt").write_text("alpha\n")
    async with App.open(settings, via="mcp") as app:
        (listed,) = await app.answers.list_rules(PERSON)
        assert not listed.counts
        assert (await rests(app, await start_change_run(app, "again"))).status == "input_required"


@pytest.mark.parametrize(
    "refusing",
    [
        {"gate": (GateRule("edit_file", "deny", paths=("a.txt",)),)},
        {"instructions": ("a.txt",)},
    ],
    ids=["a deny rule", "instructions to agents"],
)
async def test_what_is_denied_or_always_asked_about_later_is_not_let_through(place, refusing):
    async with App.open(place.settings(EDIT, says("done")), via="mcp") as app:
        await approve_with_rule(app, await start_change_run(app), FOR_PROJECT)
    (place.workspace / "a.txt").write_text("alpha\n")
    await status_of_new_run(place.settings(EDIT, says("done"), **refusing))
    assert (place.workspace / "a.txt").read_text() == "alpha\n"


async def test_a_rule_comes_before_configured_ones_that_ask(place):
    ask = (GateRule("edit_file", "ask"),)
    async with App.open(place.settings(EDIT, says("done"), gate=ask), via="mcp") as app:
        await approve_with_rule(app, await start_change_run(app), FOR_PROJECT)
    (place.workspace / "a.txt").write_text("alpha\n")
    assert await status_of_new_run(place.settings(EDIT, says("done"), gate=ask)) == "completed"


UNREMEMBERED: Mapping[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "instructions": (edits("AGENTS.md", "old", "new"), {}),
    "invisible characters": (edits("a.txt", "alpha", "al\u200bpha"), {}),
    "a program without a sandbox": (runs_program("true"), {"commands": "bare"}),
}


@pytest.mark.parametrize("case", UNREMEMBERED)
async def test_what_is_always_asked_about_can_be_approved_and_not_remembered(place, case):
    line, changes = UNREMEMBERED[case]
    (place.workspace / "AGENTS.md").write_text("old\n")
    async with App.open(place.settings(line, says("done"), **changes), via="mcp") as app:
        run_id = await start_change_run(app)
        with pytest.raises(BadArguments, match="asked about each call"):
            await app.answers.decide(run_id, KEY, "approve", None, PERSON, rule=FOR_RUN)
        assert (await rests(app, run_id)).status == "input_required"  # nothing was decided
        assert await approve_with_rule(app, run_id, None) == "completed"
    assert rows_of_rules(place) == []


async def test_a_plan_of_one_file_is_remembered_for_the_file_and_one_of_two_is_not(place):
    def plan(*paths: str) -> dict[str, Any]:
        changes = [{"path": path, "old_string": "a\n", "new_string": "A\n"} for path in paths]
        return {"tool_calls": [{"name": "plan_edits", "arguments": {"edits": changes}}]}

    def apply(place: Place) -> dict[str, Any]:
        ((name,),) = place.rows(
            "select name from tool_intent where name like 'plan %' and run = (select max(n) from run)"
        )
        return {"tool_calls": [{"name": "apply_edit_plan", "arguments": {"plan_id": name.removeprefix("plan ")}}]}

    (place.workspace / "c.txt").write_text("gamma\n")

    async def waits_to_apply(app: App, *paths: str) -> str:
        run_id = await start_change_run(app, " ".join(paths))
        await app.answers.submit(run_id, {"round-1": plan(*paths)}, ME)
        await rests(app, run_id)
        await app.answers.submit(run_id, {"round-2": apply(place)}, ME)
        await rests(app, run_id)
        return run_id

    key = "round-2/call-1/approval"
    async with App.open(place.settings(), via="mcp") as app:
        with pytest.raises(BadArguments, match="asked about each call"):
            await app.answers.decide(
                await waits_to_apply(app, "a.txt", "c.txt"), key, "approve", None, PERSON, rule=FOR_PROJECT
            )
        one = await waits_to_apply(app, "a.txt")
        await app.answers.decide(one, key, "approve", None, PERSON, rule=FOR_PROJECT)
        await rests(app, one)
        ((covered,),) = place.rows("select covered from rule")
        assert json.loads(covered)["path"] == "a.txt"
        assert (place.workspace / "a.txt").read_text() == "alphA\n"


async def test_only_a_persons_command_makes_a_rule(place):
    settings = place.settings(EDIT, says("done"), approvals="host")
    always = {"decision": "approve", "always": "project", "rule": "project"}
    async with App.open(settings, via="mcp") as app:
        run_id = await start_change_run(app)
        with pytest.raises(ApprovalRequired):
            await app.answers.decide(run_id, KEY, "approve", None, ME, rule=FOR_RUN)
        async with connect_person(app, "2025-11-25", Person([accepts(**always)])) as client:
            (item,) = (await rests(app, run_id)).waiting
            said = {KEY: always | {"digest": item["digest"]}}
            refused = await client.sdk_client.call_tool(
                "run_continue", {"run_id": run_id, "answers": said, "wait_s": 1}
            )
            assert refused.structured_content is not None
            assert refused.structured_content["code"] == "bad_arguments"
            await client.sdk_client.call_tool("run_continue", {"run_id": run_id, "wait_s": 2})
            assert (await rests(app, run_id)).status == "completed"  # by the dialog, which remembers nothing
    assert rows_of_rules(place) == []


async def test_a_denial_is_not_remembered_and_a_rule_comes_with_the_approval(place):
    async with App.open(place.settings(EDIT, says("done")), via="mcp") as app:
        run_id = await start_change_run(app)
        with pytest.raises(BadArguments):
            await app.answers.decide(run_id, KEY, "deny", None, PERSON, rule=FOR_RUN)
        await app.answers.decide(run_id, KEY, "approve", None, PERSON)
        with pytest.raises(AlreadyAnswered):
            await app.answers.decide(run_id, KEY, "approve", None, PERSON, rule=FOR_RUN)
    assert rows_of_rules(place) == []


async def test_of_two_people_one_makes_the_rule(place):
    async with App.open(place.settings(EDIT, says("done")), via="mcp") as app:
        run_id = await start_change_run(app)
        twice = [app.answers.decide(run_id, KEY, "approve", None, PERSON, rule=FOR_PROJECT) for _ in range(2)]
        await asyncio.gather(*twice)
        assert len(rows_of_rules(place)) == 1


async def test_a_call_of_the_callers_own_tool_is_handed_out_under_a_rule(place):
    ask = (GateRule("ask_person", "ask"),)
    settings = place.settings(asks("why"), says("done"), gate=ask)
    async with App.open(settings, via="mcp") as app:
        run_id = await start_change_run(app)
        await approve_with_rule(app, run_id, FOR_PROJECT)
        second = await start_change_run(app, "again")
        (item,) = (await rests(app, second)).waiting
        assert (item["kind"], item["arguments"]) == ("tool_call", {"question": "why"})
        await app.answers.submit(second, {item["key"]: {"content": "because"}}, ME)
        assert (await rests(app, second)).status == "completed"
    assert await status_of_new_run(place.settings(asks("what"), says("done"), gate=ask)) == "input_required"
    assert [row[2] for row in let_through(place)] == ["command", "rule", None]


async def test_a_rule_that_can_not_be_read_lets_nothing_through_and_doctor_names_it(place):
    async with App.open(place.settings(EDIT, says("done")), via="mcp") as app:
        await approve_with_rule(app, await start_change_run(app), FOR_PROJECT)
    (place.workspace / "a.txt").write_text("alpha\n")
    ((readable,),) = place.rows("select covered from rule")
    place.rows("update rule set covered = '{'")
    settings = place.settings(EDIT, says("done"))
    assert await status_of_new_run(settings) == "input_required"
    async with App.open(settings, via="mcp") as app:
        assert await app.answers.list_rules(PERSON) == []
        (damage,) = (await app.health(thorough=True))["damage"]
        assert "remembered approval" in damage
        assert "rule 1" in damage
    place.rows("update rule set covered = ?", readable)  # what a test leaves has no damage


async def test_a_rule_for_a_run_goes_with_the_run_and_one_for_the_project_stays(place):
    again = edits("a.txt", "omega", "alpha")
    async with App.open(place.settings(EDIT, says("done")), via="mcp") as app:
        await approve_with_rule(app, await start_change_run(app), FOR_RUN)
    async with App.open(place.settings(again, says("done")), via="mcp") as app:
        await approve_with_rule(app, await start_change_run(app, "back"), FOR_PROJECT)
        place.rows("update run set ended_at = 0")
        assert (await app.runs.prune(30, shrink=False)).runs == 2
        assert [listed.rule.description for listed in await app.answers.list_rules(PERSON)] == ["edit_file: a.txt"]
    assert rows_of_rules(place) == [("edit_file", 1, 1, "local", "command")]
    assert await status_of_new_run(place.settings(EDIT, says("done"))) == "completed"


async def test_an_expired_approval_is_renewed_by_a_rule(place):
    """The first run's question expired; meanwhile such edits were allowed. Once resumed, it goes on unasked."""
    settings = place.settings(EDIT, says("done"))
    async with App.open(settings, via="mcp") as app:
        late = await start_change_run(app)
        await approve_with_rule(app, await start_change_run(app, "the other"), FOR_PROJECT)
        (place.workspace / "a.txt").write_text("alpha\n")
        place.rows("update approval set expires_at = asked_at where verdict is null")
        with pytest.raises(Exception, match="expired"):
            await app.answers.decide(late, KEY, "approve", None, PERSON)
        assert (await rests(app, late)).status == "paused"
        await app.control.resume(late, PERSON)
        await app.control.drive(late)
        assert (await rests(app, late)).status == "completed"
        ((key, through, client),) = place.rows(
            "select key, through, client from approval where verdict = 'approve' and run = 1"
        )
        assert (key, through, client) == (f"{KEY}-2", "rule", "rule 1")
        await assert_all_lawful(app)
