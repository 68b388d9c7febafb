"""Calls of one turn that need a person are shown at once, as those before them leave the files, and made in order."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from support.app import ME, PERSON, Place, assert_all_lawful, reads, rests, says
from support.reviewers import APPROVE, DENY, Person, accepts, connect_person

from kairos_mcp.app.app import App
from kairos_mcp.core.errors import NotWaiting
from kairos_mcp.core.run_spec import PlannerRequest
from kairos_mcp.store.approvals import LAPSED

KEYS = [f"round-1/call-{n}/approval" for n in (1, 2, 3)]
CHECK = "assert open('a.txt').read() == 'gamma\\n'\nprint('checked')\n"


def edit(path: str, old: str, new: str) -> dict[str, Any]:
    return {"name": "edit_file", "arguments": {"path": path, "old_string": old, "new_string": new}}


COMMAND = {"name": "run_command", "arguments": {"argv": ["python3", "check.py"]}}
EDITS = {
    "tool_calls": [edit("a.txt", "alpha", "beta"), edit("a.txt", "beta", "gamma"), edit("a.txt", "gamma", "delta")]
}
TURN = {"tool_calls": [edit("a.txt", "alpha", "beta"), edit("a.txt", "beta", "gamma"), COMMAND]}


async def start(app: App, **more: Any) -> str:
    run_id = (await app.runs.start(PlannerRequest("mend it", tools=("*",), **more), ME)).run_id
    await rests(app, run_id)
    return run_id


async def decides(app: App, run_id: str, key: str, verdict: Any, feedback: str | None = None) -> None:
    await app.answers.decide(run_id, key, verdict, feedback, PERSON)


def content(place: Place) -> str:
    return (place.workspace / "a.txt").read_text()


def results(place: Place) -> dict[str, dict[str, Any]]:
    found = place.rows("select path, body from answer join step on step.id = answer.step where kind = 'call'")
    return {path: json.loads(body) for path, body in found}


@pytest.fixture
def settings(place: Place) -> dict[str, Any]:
    (place.workspace / "check.py").write_text(CHECK)
    return {"commands": "bare"}


async def test_all_are_shown_at_once_as_the_ones_before_leave_the_files(place, settings):
    async with App.open(place.settings(TURN, says("done"), **settings), via="mcp") as app:
        run_id = await start(app)
        report = await app.runs.report(run_id, ME)
        assert [item["key"] for item in report.waiting] == KEYS
        assert ["-alpha\n+beta" in item["preview"] for item in report.waiting] == [True, False, False]
        assert "-beta\n+gamma" in report.waiting[1]["preview"]
        assert content(place) == "alpha\n"
        for key in KEYS:
            await decides(app, run_id, key, "approve")
        report = await rests(app, run_id)
        assert (report.status, content(place)) == ("completed", "gamma\n")
        assert "checked" in results(place)["round-1/call-3"]["content"]
        await assert_all_lawful(app)


async def test_they_are_made_in_order_whatever_is_decided_first(place, settings):
    async with App.open(place.settings(TURN, says("done"), **settings), via="mcp") as app:
        run_id = await start(app)
        for key in reversed(KEYS[1:]):
            await decides(app, run_id, key, "approve")
        report = await rests(app, run_id)
        assert (report.status, [item["key"] for item in report.waiting]) == ("input_required", KEYS[:1])
        assert (content(place), results(place)) == ("alpha\n", {})
        await decides(app, run_id, KEYS[0], "approve")
        assert (await rests(app, run_id)).status == "completed"
        assert content(place) == "gamma\n"
        ended = place.rows(
            "select path from answer join step on step.id = answer.step where kind = 'call' order by answer.at, step.id"
        )
        assert [path for (path,) in ended] == [f"round-1/call-{n}" for n in (1, 2, 3)]
        await assert_all_lawful(app)


@pytest.mark.parametrize("restarts", [False, True])
async def test_a_denial_withdraws_the_later_ones(place, settings, restarts):
    line = says("I leave it.")
    async with App.open(place.settings(TURN, line, **settings), via="mcp") as app:
        run_id = await start(app)
        await decides(app, run_id, KEYS[2], "approve")
        await rests(app, run_id)
        if not restarts:
            await decides(app, run_id, KEYS[0], "deny", "not so")
            await rests(app, run_id)
    if restarts:
        async with App.open(place.settings(TURN, line, **settings), via="mcp") as app:
            await decides(app, run_id, KEYS[0], "deny", "not so")
            assert (await rests(app, run_id)).status == "completed"
    found = results(place)
    assert (found["round-1/call-1"]["code"], "not so" in found["round-1/call-1"]["content"]) == ("denied", True)
    assert [found[f"round-1/call-{n}"]["code"] for n in (2, 3)] == ["cancelled"] * 2
    assert "round-1/call-1 was denied" in found["round-1/call-2"]["content"]
    assert content(place) == "alpha\n"
    assert place.rows("select verdict from approval order by step") == [("deny",), ("withdrawn",), ("approve",)]
    async with App.open(place.settings(TURN, line, **settings), via="mcp") as app:
        with pytest.raises(NotWaiting):
            await decides(app, run_id, KEYS[1], "approve")
        await assert_all_lawful(app)


async def test_a_denial_of_a_later_one_leaves_those_before_it(place, settings):
    async with App.open(place.settings(TURN, says("done"), **settings), via="mcp") as app:
        run_id = await start(app)
        await decides(app, run_id, KEYS[1], "deny")
        report = await rests(app, run_id)
        assert [item["key"] for item in report.waiting] == KEYS[:1]
        await decides(app, run_id, KEYS[0], "approve")
        assert (await rests(app, run_id)).status == "completed"
        assert (content(place), results(place)["round-1/call-3"]["code"]) == ("beta\n", "cancelled")
        await assert_all_lawful(app)


async def test_a_call_that_fails_withdraws_the_later_ones(place, settings):
    async with App.open(place.settings(TURN, says("done"), **settings), via="mcp") as app:
        run_id = await start(app)
        (place.workspace / "a.txt").write_text("alpha and more\n")
        for key in KEYS:
            await decides(app, run_id, key, "approve")
        assert (await rests(app, run_id)).status == "completed"
        assert content(place) == "alpha and more\n"
        codes = [results(place)[f"round-1/call-{n}"]["code"] for n in (1, 2, 3)]
        assert codes == ["stale_file", "cancelled", "cancelled"]
        await assert_all_lawful(app)


async def test_a_read_between_them_sees_what_was_changed_and_the_last_is_shown_all_the_same(place, settings):
    turn = {"tool_calls": [TURN["tool_calls"][0], *reads("a.txt")["tool_calls"], TURN["tool_calls"][1]]}
    async with App.open(place.settings(turn, says("done"), **settings), via="mcp") as app:
        run_id = await start(app)
        keys = [item["key"] for item in (await app.runs.report(run_id, ME)).waiting]
        assert keys == [KEYS[0], KEYS[2]]
        for key in keys:
            await decides(app, run_id, key, "approve")
        assert (await rests(app, run_id)).status == "completed"
        assert ("beta" in results(place)["round-1/call-2"]["content"], content(place)) == (True, "gamma\n")
        await assert_all_lawful(app)


async def test_what_a_call_before_it_makes_can_be_edited(place, settings):
    write = {"name": "write_file", "arguments": {"path": "new.py", "content": "x = 1\n"}}
    turn = {"tool_calls": [write, edit("new.py", "1", "2")]}
    async with App.open(place.settings(turn, says("done"), **settings), via="mcp") as app:
        run_id = await start(app)
        report = await app.runs.report(run_id, ME)
        assert "-x = 1\n+x = 2" in report.waiting[1]["preview"]
        for item in report.waiting:
            await decides(app, run_id, item["key"], "approve")
        assert (await rests(app, run_id)).status == "completed"
        assert (place.workspace / "new.py").read_text() == "x = 2\n"


async def test_a_program_that_a_call_before_it_changes_is_asked_about_once_it_is_there(place, settings):
    program = place.workspace / "tell.sh"
    program.write_text("#!/bin/sh\necho old\n")
    program.chmod(0o755)
    run = {"name": "run_command", "arguments": {"argv": ["./tell.sh"]}}
    turn = {"tool_calls": [edit("tell.sh", "old", "new"), run]}
    async with App.open(place.settings(turn, says("done"), **settings), via="mcp") as app:
        run_id = await start(app)
        for key in KEYS[:2]:
            (item,) = (await app.runs.report(run_id, ME)).waiting
            assert item["key"] == key
            await decides(app, run_id, key, "approve")
            report = await rests(app, run_id)
        assert (report.status, "new" in results(place)["round-1/call-2"]["content"]) == ("completed", True)


@pytest.mark.parametrize("approved_before", [(), KEYS[1:2]])
async def test_those_that_lapse_are_asked_about_again_as_they_were(place, settings, approved_before):
    async with App.open(place.settings(TURN, says("done"), **settings), via="mcp") as app:
        run_id = await start(app)
        for key in approved_before:
            await decides(app, run_id, key, "approve")
            await rests(app, run_id)
        place.rows("update approval set expires_at = 1 where verdict is null")
        async with asyncio.timeout(20):
            while (await app.runs.report(run_id, ME)).status != "paused":
                await app.runs.wait([run_id], until="done", wait_s=0.1, caller=ME)
        assert place.rows("select paused from run") == [(LAPSED,)]
        await app.control.request(run_id, "resume", ME)
        report = await rests(app, run_id)
        assert [item["key"] for item in report.waiting] == [f"{key}-2" for key in KEYS if key not in approved_before]
        assert approved_before or "-beta\n+gamma" in report.waiting[1]["preview"]
        for item in report.waiting:
            await decides(app, run_id, item["key"], "approve")
        assert ((await rests(app, run_id)).status, content(place)) == ("completed", "gamma\n")
        await assert_all_lawful(app)


async def test_a_client_s_user_decides_all_of_them_in_one_call(place, era, settings):
    person = Person([accepts(**APPROVE)] * 3)
    async with App.open(place.settings(**settings), via="mcp") as app, connect_person(app, era, person) as client:
        run = await client.ask("planner_run", {"goal": "mend it", "tools": ["*"], "route": "caller"})
        run = await client.ask("run_continue", {"run_id": run["run_id"], "answers": {"round-1": EDITS}})
        assert (len(person.seen), content(place)) == (3, "delta\n")
        assert [call["ok"] for call in run["calls"]] == [True] * 3
        assert run["waiting"][0]["key"] == "round-2"
        await client.ask("run_continue", {"run_id": run["run_id"], "answers": {"round-2": says("done")}})
        await assert_all_lawful(app)


async def test_a_client_s_user_who_denies_the_first_is_left_alone(place, era, settings):
    person = Person([accepts(**DENY)] * 3)
    async with App.open(place.settings(**settings), via="mcp") as app, connect_person(app, era, person) as client:
        run = await client.ask("planner_run", {"goal": "mend it", "tools": ["*"], "route": "caller"})
        run = await client.ask("run_continue", {"run_id": run["run_id"], "answers": {"round-1": EDITS}})
        assert (run["waiting"][0]["key"], content(place)) == ("round-2", "alpha\n")
        await client.ask("run_continue", {"run_id": run["run_id"], "answers": {"round-2": says("done")}})
        await assert_all_lawful(app)
