"""What befalls one task of a team leaves the others alone: an approval that nobody gives in time, a provider's outage.

core/test_branches_apart.py and crash/test_team_reached.py have what reaches all of them: a cancel, a pause.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from starlette.responses import Response
from support.app import ME, PERSON, WITHIN_S, Place, answer_run, assert_all_lawful, reads, rests, says
from support.provider_server import Heard, Standin, refuses, talks
from support.team_lines import at, plan_line, plan_of, task

from kairos_mcp.app.app import App
from kairos_mcp.core.errors import ApprovalExpired
from kairos_mcp.core.limits import Limits
from kairos_mcp.core.run_spec import TeamRequest
from kairos_mcp.store.approvals import LAPSED
from kairos_mcp.views.run_report import RunReport

READ, EDIT = "task-1/try-1", "task-2/try-1"
CALL = f"{EDIT}/round-1/call-1"
KEY = f"{CALL}/approval"
PLAN = plan_of(task("read"), task("edit", "file_manager"))
LIMITS = Limits(rounds=20)
EDITS = {
    "tool_calls": [
        {"name": "edit_file", "arguments": {"path": "a.txt", "old_string": "alpha\n", "new_string": "omega\n"}}
    ]
}


async def start_waiting_team(app: App, place: Place) -> str:
    """A team whose first task waits for the caller, and whose second for a person."""
    run_id = (await app.runs.start(TeamRequest("Do both.", PLAN, route="caller", limits=LIMITS), ME)).run_id
    assert keys_of(await rests(app, run_id)) == {f"{READ}/round-1", f"{EDIT}/round-1"}
    await answer_run(app, run_id, **{f"{EDIT}/round-1": EDITS})
    assert keys_of(await rests(app, run_id)) == {f"{READ}/round-1", KEY}
    assert content(place) == "alpha\n"
    return run_id


async def lapse(app: App, place: Place, run_id: str) -> RunReport:
    """The report once the approval has lapsed."""
    place.rows("update approval set expires_at = 1")
    while not place.rows("select 1 from approval where verdict = 'expired'"):
        await app.runs.wait([run_id], until="news", wait_s=0.1, caller=ME)
    return await rests(app, run_id)


def keys_of(report: RunReport) -> set[str]:
    return {item["key"] for item in report.waiting}


def content(place: Place) -> str:
    return (place.workspace / "a.txt").read_text()


async def approve_again(app: App, place: Place, run_id: str) -> None:
    """Resume the run, approve what is asked then, and see the edit made."""
    await app.control.request(run_id, "resume", ME)
    report = await rests(app, run_id)
    assert f"{KEY}-2" in keys_of(report)
    with pytest.raises(ApprovalExpired):
        await app.answers.decide(run_id, KEY, "approve", None, PERSON)
    await app.answers.decide(run_id, f"{KEY}-2", "approve", None, PERSON)
    report = await rests(app, run_id)
    assert f"{EDIT}/round-2" in keys_of(report)
    assert content(place) == "omega\n"


async def test_a_task_whose_approval_lapsed_is_held_alone_and_the_run_pauses_once_no_other_waits(place: Place) -> None:
    async with App.open(place.settings(), via="mcp") as app:
        run_id = await start_waiting_team(app, place)
        await app.control.pause(run_id, ME)  # before it lapses: what is not overdue is not asked again
        await app.control.request(run_id, "resume", ME)
        report = await lapse(app, place, run_id)
        assert (report.status, keys_of(report)) == ("input_required", {f"{READ}/round-1"})
        assert place.rows("select paused from run") == [(None,)]
        assert any(CALL in text and "resume asks again" in text for text in report.degraded)
        await app.control.extend(run_id, LIMITS, ME)
        assert (await rests(app, run_id)).status == "input_required"
        report = await answer_run(app, run_id, **{f"{READ}/round-1": reads("b.txt")})
        assert (report.status, keys_of(report)) == ("input_required", {f"{READ}/round-2"})
        report = await answer_run(app, run_id, **{f"{READ}/round-2": says("It is read.")})
        assert (report.status, report.waiting) == ("paused", ())
        assert place.rows("select paused, resume_at, owner from run") == [(LAPSED, None, None)]
        assert report.next["arguments"] == {"run_id": run_id, "action": "resume"}
        await approve_again(app, place, run_id)
        await answer_run(app, run_id, **{f"{EDIT}/round-2": says("It is edited.")})
        report = await answer_run(app, run_id, synthesis=says("Both."))
        assert (report.status, report.summary) == ("completed", "Both.")
        await assert_all_lawful(app)


async def test_what_lapsed_is_asked_again_by_a_resume_while_the_other_task_still_waits(place: Place) -> None:
    async with App.open(place.settings(), via="mcp") as app:
        run_id = await start_waiting_team(app, place)
        await lapse(app, place, run_id)
        await approve_again(app, place, run_id)
        assert keys_of(await rests(app, run_id)) == {f"{READ}/round-1", f"{EDIT}/round-2"}
        assert place.rows("select count(*) from approval") == [(2,)]
        await assert_all_lawful(app)


async def test_a_command_asks_again_about_what_lapsed_in_one_task(place: Place) -> None:
    async with App.open(place.settings(), via="mcp") as app:
        run_id = await start_waiting_team(app, place)
        await lapse(app, place, run_id)
    async with App.open(place.settings(), via="command") as person:
        await person.control.resume(run_id, PERSON)
        await person.control.drive(run_id)
        assert f"{KEY}-2" in keys_of(await rests(person, run_id))


async def test_what_lapsed_while_no_server_lived_stays_held_in_the_next(place: Place) -> None:
    async with App.open(place.settings(), via="mcp") as app:
        run_id = await start_waiting_team(app, place)
    for number in (1, 2):
        async with App.open(place.settings(), via="mcp") as app:
            report = await lapse(app, place, run_id)
            assert (report.status, keys_of(report)) == ("input_required", {f"{READ}/round-{number}"})
            report = await answer_run(
                app, run_id, **{f"{READ}/round-{number}": reads("a.txt" if number > 1 else "b.txt")}
            )
            assert keys_of(report) == {f"{READ}/round-{number + 1}"}
            assert place.rows("select count(*) from approval") == [(1,)]
            await assert_all_lawful(app)


async def test_a_task_goes_on_by_itself_while_another_is_held_and_the_run_pauses_at_its_end(place: Place) -> None:
    lines = (
        plan_line(task("read"), task("edit", "file_manager")),
        at(f"{EDIT}/round-1", EDITS),
        at(f"{READ}/round-1", reads("b.txt")),
        at(f"{READ}/round-2", says("It is read.", delay_s=1.0)),
    )
    async with App.open(place.settings(*lines), via="mcp") as app:
        run_id = (await app.runs.start(TeamRequest("Do both."), ME)).run_id
        while not place.rows("select 1 from step where path = ?", f"{READ}/round-2") or not place.rows(
            "select 1 from approval"
        ):
            await app.runs.wait([run_id], until="news", wait_s=0.05, caller=ME)
        report = await lapse(app, place, run_id)
        while report.status == "working":
            await app.runs.wait([run_id], until="rest", wait_s=WITHIN_S, caller=ME)
            report = await rests(app, run_id)
        assert report.status == "paused"
        assert place.rows("select paused from run") == [(LAPSED,)]
        assert place.rows("select 1 from step join answer on step = step.id where path = ?", f"{READ}/round-2")
        await assert_all_lawful(app)


async def test_a_provider_that_fails_one_task_pauses_the_team_once_the_others_have_ended(
    place: Place, provider: Standin
) -> None:
    """The other one goes through all of its rounds; later the failed task is asked again, and the team ends."""
    storm = True

    async def reply(heard: Heard) -> Response:
        shown = json.dumps(heard.body)
        if "Do edit." in shown and "What the tasks came to" not in shown:
            return await (refuses(529, Retry_After="0") if storm else talks("It is calm."))(heard)
        return await talks("It is read.")(heard)

    provider.will(*[reply] * 40)
    settings = place.settings(model="openai:small", base_url=provider.openai)
    async with App.open(settings, via="mcp") as app:
        run_id = (await app.runs.start(TeamRequest("Do both.", PLAN), ME)).run_id
        report = await rests(app, run_id)
        assert (report.status, report.resume_at is not None) == ("paused", True)
        assert statuses(report) == {"read": "done", "edit": "working"}
        storm = False
        await app.control.request(run_id, "resume", ME)
        report = await rests(app, run_id)
        assert (report.status, report.stop_reason) == ("completed", "team_done")
        await assert_all_lawful(app)


def statuses(report: RunReport) -> dict[str, Any]:
    assert report.plan is not None
    return {each["id"]: each["status"] for each in report.plan}
