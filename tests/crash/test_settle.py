"""A server killed in the middle of a call: what only reads is made again, an edit is looked at, a command is settled by
a person; nothing that can't be undone happens twice by itself."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import sandboxed
from support.app import ME, Books, Place, rests, says, start_run
from support.commits import leave_commits, refuse_commits
from support.forked_program import run_program
from support.stdio_server import StdioClient
from support.waiting import wait_until

from kairos_mcp.app.app import App
from kairos_mcp.core.decision_rights import Caller
from kairos_mcp.core.errors import ApprovalMismatch, NotWaiting, UnknownRun
from kairos_mcp.core.limits import NOTHING
from kairos_mcp.core.messages import canonical_json
from kairos_mcp.settings.table_values import GateRule
from kairos_mcp.store import integrity, queries, settlements
from kairos_mcp.store.accounts import unit_columns
from kairos_mcp.store.rows import encode_units
from kairos_mcp.store.settlements import SettlementRequest

WITHIN_S = 30.0
PERSON = Caller(via="command", client="kairos-mcp")
INTENT = "intent round-1/call-1"
ONCE = "echo made >> made.txt; test $(wc -l < made.txt) -gt 1 || sleep 60"


def commands(place: Place, approvals: str = "ask") -> None:
    """A run that makes one command, which leaves a line in a file and then hangs the first time."""
    call = {"name": "run_command", "arguments": {"argv": ["sh", "-c", ONCE]}}
    lines = [{"content": "", "tool_calls": [call]}, {"content": "done", "finish": "stop"}]
    place.script.write_text("".join(json.dumps(line) + "\n" for line in lines))
    place.home.mkdir(parents=True, exist_ok=True)
    rule = '[[gate]]\ntools = "run_command"\nverdict = "allow"\n'
    (place.home / "kairos.toml").write_text(f'approvals = "{approvals}"\n{rule}')


def count_made(place: Place) -> int:
    file = place.workspace / "made.txt"
    return file.read_text().count("\n") if file.exists() else 0


def killed_in_a_command(place: Place, approvals: str = "ask") -> str:
    """The run of a server that was killed while its command ran."""
    sandboxed.skip_if_missing()
    commands(place, approvals)
    with StdioClient.start(place) as first:
        run_id = first.call("planner_run", goal="make", tools=["run_command"], wait_s=0)["run_id"]
        wait_until(lambda: count_made(place), WITHIN_S, lambda: place.rows("select body from answer"))
        os.kill(first.pid, signal.SIGKILL)
        first.ends()
    return run_id


def waits_for_a_person(client: StdioClient, run_id: str) -> dict[str, Any]:
    report = client.call("run_status", run_ids=[run_id], until="attention", wait_s=20)["runs"][0]
    assert report["status"] == "input_required", report
    (item,) = report["waiting"]
    assert (item["kind"], item["name"]) == ("settle", "run_command")
    return item


def settle(client: StdioClient, way: str, run_id: str, key: str, settlement: str, digest: str) -> dict[str, Any]:
    said = {"settlement": settlement, "digest": digest}
    if way == "run_continue":
        return client.call("run_continue", run_id=run_id, answers={key: said}, wait_s=0)
    return client.call("run_control", run_id=run_id, action="settle", key=key, **said)


def traced_decisions(client: StdioClient, run_id: str) -> list[dict[str, Any]]:
    """What the trace says was decided about the call, but for when."""
    (call,) = client.call("run_trace", run_id=run_id, view="calls")["items"]
    return [{name: value for name, value in each.items() if name != "at"} for each in call["decided"]]


def kairos(place: Place, *words: str) -> subprocess.CompletedProcess[str]:
    return run_program([*words, "--home", str(place.home)], timeout=WITHIN_S)


@pytest.mark.parametrize(
    ("way", "settlement", "times"),
    [("run_control", "already_done", 1), ("run_continue", "already_done", 1), ("run_continue", "reattempt", 2)],
)
def test_a_command_whose_end_is_unknown_is_never_repeated_by_itself(
    place: Place, way: str, settlement: str, times: int
) -> None:
    run_id = killed_in_a_command(place, "host")
    with StdioClient.start(place) as second:
        item = waits_for_a_person(second, run_id)
        digest = item["digest"]
        assert count_made(place) == 1
        answered = second.call("run_continue", run_id=run_id, answers={item["key"]: {"content": "it was made"}})
        assert answered["code"] == "bad_arguments"
        for other in ("0" * 64, "f" * 64):
            assert settle(second, way, run_id, item["key"], settlement, other)["code"] == "approval_mismatch"
        assert settle(second, way, run_id, item["key"], settlement, digest).get("code") is None
        report = second.call("run_status", run_ids=[run_id], until="done", wait_s=20)["runs"][0]
        assert (report["status"], report["summary"]) == ("completed", "done"), report
        assert settle(second, way, run_id, item["key"], settlement, digest).get("code") is None  # the same again
        other = "reattempt" if settlement == "already_done" else "already_done"
        assert settle(second, way, run_id, item["key"], other, digest)["code"] == "already_answered"
        assert settle(second, way, run_id, "round-9/call-1/settle", settlement, digest)["code"] == "not_waiting"
        by = {"kind": "settlement", "said": settlement, "by": "local", "through": "mcp", "client": "client 1"}
        assert traced_decisions(second, run_id) == [by | {"note": None}]
    assert count_made(place) == times
    books = Books.of(place, run_id)
    assert (books.held, books.spent) == (books.held_by_rows, books.spent_by_rows)
    assert place.rows("select count(*) from inbox where kind = 'settle' and taken is not null") == [(1,)]


def test_a_person_settles_on_the_command_line_and_the_run_goes_on_there(place: Place) -> None:
    run_id = killed_in_a_command(place)
    with StdioClient.start(place) as second:
        item = waits_for_a_person(second, run_id)
    words = ("settle", run_id, item["key"], "already_done", "--note", "I saw the line", "--json")
    another = kairos(place, *words, "--digest", "0" * 64)
    assert (another.returncode, place.rows("select * from inbox where kind = 'settle'")) != (0, [])
    assert kairos(place, *words, "--principal", "bob").returncode != 0
    done = kairos(place, *words, "--digest", item["digest"])
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["summary"] == "done"
    assert count_made(place) == 1
    ((body,),) = place.rows("select body from answer join step on step.id = step where kind = 'call'")
    assert "I saw the line" in body


@pytest.mark.parametrize("approvals", ["ask", "person"])
def test_whoever_calls_a_tool_settles_nothing_and_is_told_the_command_that_does(place: Place, approvals: str) -> None:
    run_id = killed_in_a_command(place, approvals)
    with StdioClient.start(place) as second:
        item = waits_for_a_person(second, run_id)
        for way in ("run_continue", "run_control"):
            refused = settle(second, way, run_id, item["key"], "reattempt", item["digest"])
            assert refused["code"] == "approval_required"
            assert settling_words(refused["hint"]) == (run_id, item["key"], "already_done")
        run = second.call("run_status", run_ids=[run_id])["runs"][0]
        assert run["next"]["tool"] == "run_status"
        assert settling_words(run["next"]["why"]) == (run_id, item["key"], "already_done")
        shown = [line.strip() for line in kairos(place, "show", run_id).stdout.splitlines() if " settle --home" in line]
        assert [shlex.split(line)[-1] for line in shown] == ["already_done", "reattempt"]
        assert place.rows("select count(*) from inbox where kind = 'settle'") == [(0,)]
        pasted = subprocess.run(shlex.split(shown[0]), capture_output=True, timeout=WITHIN_S, check=False)
        assert pasted.returncode == 0, pasted.stderr
        by = {"kind": "settlement", "said": "already_done", "by": "local", "through": "command"}
        assert traced_decisions(second, run_id) == [by | {"client": "kairos-mcp", "note": None}]
    assert count_made(place) == 1


def settling_words(text: str) -> tuple[str, ...]:
    """What the command in a text settles, and as what."""
    (command,) = re.findall(r"`([^`]* settle [^`]*)`", text)
    return tuple(shlex.split(command)[-3:])


async def test_a_settlement_is_of_one_attempt_and_of_no_later_one(place: Place) -> None:
    settings, run_id, _file = await lost_and_changed_since(place)
    async with App.open(settings, via="mcp") as app:
        (item,) = (await rests(app, run_id)).waiting
    place.rows(  # lost once more, in no time
        "insert into attempt(step, fence, at, held, sent, lost, ended, waits_outside, shared)"
        " select step, fence, at, held, sent, ?, ended, waits_outside, shared from attempt",
        encode_units(NOTHING),
    )
    async with App.open(settings, via="mcp") as app:
        (again,) = (await rests(app, run_id)).waiting
        assert (again["key"], again["digest"] != item["digest"]) == (item["key"], True)
        with pytest.raises(ApprovalMismatch):
            await app.answers.settle(run_id, item["key"], "reattempt", PERSON, digest=item["digest"])


async def test_another_principal_settles_nothing(place: Place) -> None:
    settings, run_id, _file = await lost_and_changed_since(place)
    async with App.open(settings, via="mcp") as app:
        (item,) = (await rests(app, run_id)).waiting
        with pytest.raises(UnknownRun):
            await app.answers.settle(run_id, item["key"], "reattempt", replace(PERSON, principal="bob"))
        said = SettlementRequest("round-1/call-1", "reattempt", digest=item["digest"])
        with place.session() as session, pytest.raises(NotWaiting):  # what the job itself refuses
            settlements.must_record(session, queries.run_by_id(session, run_id), said, "bob")


def lose(place: Place) -> None:
    """As if the server had died after the edit and before its end was recorded: what the file held is still kept."""
    ((result,),) = place.rows("select body from answer where step = (select id from step where kind = 'call')")
    (changed,) = json.loads(result)["data"]["files"]
    file = {"path": "a.txt", "before": changed["before"], "after": changed["after"], "original": "alpha\n"}
    assert place.rows("select 1 from tool_intent") == []
    place.rows("insert into tool_intent(run, name, body) values (1, ?, ?)", INTENT, canonical_json({"files": [file]}))
    place.rows("delete from answer where step >= (select id from step where kind = 'call')")
    place.rows("delete from step where id > (select id from step where kind = 'call')")
    place.rows("update run set outcome = null, ended_at = null, owner = 0")
    with place.session() as session:
        spent, held = integrity.sum_rows(session, 1)
        changed = ", ".join(f"{name} = ?" for name in unit_columns("spent", "held"))
        session.rows(f"update account set {changed} where scope = 'run'", (*spent, *held))


async def edited_once(place: Place) -> tuple[Any, str, Path]:
    arguments = {"path": "a.txt", "old_string": "alpha", "new_string": "alpha alpha"}
    settings = place.settings(
        {"tool_calls": [{"name": "edit_file", "arguments": arguments}]},
        says("done"),
        gate=(GateRule("edit_file", "allow"),),
    )
    async with App.open(settings, via="mcp") as app:
        run_id = await start_run(app, tools=("edit_file",))
        assert (await app.runs.report(run_id, ME)).summary == "done"
    return settings, run_id, place.workspace / "a.txt"


async def test_an_edit_that_was_made_before_the_crash_is_not_made_again(place: Place) -> None:
    settings, run_id, file = await edited_once(place)
    assert file.read_text() == "alpha alpha\n"
    lose(place)
    async with App.open(settings, via="mcp") as app:
        report = await rests(app, run_id)
        await app.runs.wait([run_id], until="done", wait_s=WITHIN_S, caller=ME)
        report = await app.runs.report(run_id, ME)
        assert (report.status, report.summary) == ("completed", "done"), report.degraded
    assert file.read_text() == "alpha alpha\n"


async def test_an_edit_that_was_not_made_before_the_crash_is_made_now(place: Place) -> None:
    settings, run_id, file = await edited_once(place)
    file.write_text("alpha\n")
    lose(place)
    async with App.open(settings, via="mcp") as app:
        await rests(app, run_id)
        await app.runs.wait([run_id], until="done", wait_s=WITHIN_S, caller=ME)
        assert (await app.runs.report(run_id, ME)).status == "completed"
    assert file.read_text() == "alpha alpha\n"


async def lost_and_changed_since(place: Place) -> tuple[Any, str, Path]:
    """A run whose edit a person has to settle: what was kept of it is not what the law of edits gives now."""
    settings, run_id, file = await edited_once(place)
    lose(place)
    ((body,),) = place.rows("select body from tool_intent")
    place.rows("update tool_intent set body = ?", body.replace(json.loads(body)["files"][0]["after"], "0" * 64))
    return settings, run_id, file


async def test_what_a_file_held_goes_with_a_run_that_is_cancelled_while_its_edit_waits_to_be_settled(
    place: Place,
) -> None:
    settings, run_id, _file = await lost_and_changed_since(place)
    async with App.open(settings, via="mcp") as app:
        report = await rests(app, run_id)
        assert [item["kind"] for item in report.waiting] == ["settle"]
        assert place.rows("select name from tool_intent") == [(INTENT,)]  # a person may still need it
        await app.control.cancel(run_id, ME)
        assert (await rests(app, run_id)).status == "cancelled"
    assert place.rows("select name from tool_intent") == []


async def test_an_edit_that_a_person_has_made_again_stands_on_what_the_file_holds_now(place: Place) -> None:
    settings, run_id, file = await lost_and_changed_since(place)
    file.write_text("alpha, and more\n")
    async with App.open(settings, via="mcp") as app:
        (item,) = (await rests(app, run_id)).waiting
        await app.answers.settle(run_id, item["key"], "reattempt", PERSON)
        await app.runs.wait([run_id], until="done", wait_s=WITHIN_S, caller=ME)
        assert (await app.runs.report(run_id, ME)).status == "completed"
    assert file.read_text() == "alpha alpha, and more\n"
    assert place.rows("select name from tool_intent") == []


async def test_what_a_person_settled_holds_though_the_commits_that_follow_fail(place: Place) -> None:
    settings, run_id, file = await lost_and_changed_since(place)
    file.write_text("alpha, and more\n")
    async with App.open(settings, via="mcp") as app:
        (item,) = (await rests(app, run_id)).waiting
        refuse_commits(app, after=2)  # the settlement, and what the run's owner reads of it
        await app.answers.settle(run_id, item["key"], "reattempt", PERSON)
        await rests(app, run_id)
        leave_commits(app)
        await app.control.request(run_id, "resume", ME)
        await app.runs.wait([run_id], until="done", wait_s=WITHIN_S, caller=ME)
        assert (await app.runs.report(run_id, ME)).status == "completed"
    assert file.read_text() == "alpha alpha, and more\n"
