"""Mandates by command, and a server that is killed while a person is asked: approved elsewhere, it is done once."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.app import ME, Place, open_checked_app, outcome_of
from support.cycles import MANDATE, MENDED, PAGE, cycle, edit, gives, noop, page
from support.stdio_server import StdioClient

from kairos_mcp.app.app import App
from kairos_mcp.cli.main import run_command
from kairos_mcp.core.errors import Stale
from kairos_mcp.core.run_spec import CyclesRequest, MandateRef

MENDED_ONCE = PAGE.replace("oen.md", "one.md")


def script(place: Place, *lines) -> None:
    place.script.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture
def kairos(place: Place, capsys, monkeypatch) -> Callable[..., str]:
    """The words of a command over this place, in this process; it has to end with this code."""
    monkeypatch.setenv("KAIROS_SCRIPT", str(place.script))
    monkeypatch.setenv("KAIROS_HOME", str(place.home))
    monkeypatch.chdir(place.workspace)

    def command(*words: str, code: int = 0) -> str:
        capsys.readouterr()
        ended = run_command(words)
        said = capsys.readouterr()
        assert ended == code, (ended, said)
        return str(said.out)

    return command


def save_mandate(place: Place, kairos, **changes) -> Path:
    file = place.root / "links.json"
    file.write_text(json.dumps({**MANDATE, **changes}))
    kairos("mandate", "save", str(file))
    return file


def test_killed_while_a_person_is_asked_then_approved_it_is_applied_once(place, kairos):
    script(place, *cycle(edit("oen.md", "one.md")))
    with StdioClient.start(place) as client:
        waits = client.call("ooda_run", mandate={**MANDATE, "max_cycles": 1}, wait_s=15)
        (item,) = waits["waiting"]
        assert (waits["status"], item["key"]) == ("input_required", "cycle-1/act/call-1/approval")
        assert waits["output"]["act"]["status"] == "awaiting_approval"
        os.kill(client.pid, signal.SIGKILL)
        client.ends()
    assert page(place) == PAGE
    said = kairos("approve", waits["run_id"], item["key"], code=4)
    assert "max_cycles_reached" in said
    assert page(place) == MENDED_ONCE
    with StdioClient.start(place) as client:
        again = client.call("run_status", run_ids=[waits["run_id"]])["runs"][0]
        assert (again["status"], again["output"]["cycles"][0]["status"]) == ("stopped", "applied")
    calls = place.rows("select count(*) from answer join step on id = step where path = 'cycle-1/act/call-1'")
    assert calls == [(1,)]
    assert place.rows("select count(*) from attempt") == [(1,)]  # it waited open, and was begun once


def test_killed_while_a_person_is_asked_then_denied_nothing_is_changed(place, kairos):
    script(place, *cycle(edit("oen.md", "one.md")))
    with StdioClient.start(place) as client:
        waits = client.call("ooda_run", mandate={**MANDATE, "max_cycles": 1}, wait_s=15)
    kairos("deny", waits["run_id"], waits["waiting"][0]["key"], "--feedback", "call it first.md", code=4)
    assert page(place) == PAGE
    outcome = outcome_of(place, waits["run_id"])
    assert outcome["output"]["cycles"][0]["status"] == "denied"


def test_a_mandate_is_saved_listed_and_run_by_command(place, kairos):
    script(place, *MENDED)
    file = save_mandate(place, kairos)
    assert kairos("mandate", "save", str(file)).startswith("unchanged: links")
    assert "created" in kairos("mandate", "list")
    assert "+ See [one](one.md)" in kairos("mandate", "run", "links", code=3)
    ((run_id,),) = place.rows("select id from run")
    for number in (1, 2, 3):
        kairos("approve", run_id, f"cycle-{number}/act/call-1/approval", code=3 if number < 3 else 4)
        if number < 3:
            assert "paused_at_checkpoint" in kairos("mandate", "list")
            kairos("mandate", "run", "links", code=3)  # it attaches, and stays where it is
            assert f"cycle-{number + 1}/goal-1" not in str(place.rows("select path from step"))
            kairos("mandate", "run", "links", "--resume", code=3)
    assert "terminated (max_cycles_reached)" in kairos("mandate", "list")
    assert "oen" not in page(place)
    assert place.rows("select count(*) from run") == [(1,)]


def test_at_a_checkpoint_the_command_that_goes_on_is_said(place, kairos):
    """Copied as it stands it does go on; what the run's output holds is said in words, and whole by --json."""
    script(place, *MENDED)
    (place.home).mkdir()
    (place.home / "kairos.toml").write_text('[[gate]]\ntools = "edit_file"\nverdict = "allow"\n')
    save_mandate(place, kairos)
    output = kairos("mandate", "run", "links", code=3)
    (run_id,) = place.rows("select id from run")[0]
    assert "mandate links: paused_at_checkpoint\n- cycle 1: code_edit docs/index.md: applied; success, confid" in output
    assert '"mandate_status"' not in output
    assert "cycle-1 act " in kairos("show", run_id)
    for shown in (output, kairos("show", run_id)):
        (line,) = [line for line in shown.splitlines() if line.endswith("--resume")]
        assert line.split()[-4:] == ["mandate", "run", "links", "--resume"]
    kairos(*line.split()[-4:], code=3)
    assert page(place) == PAGE.replace("oen.md", "one.md").replace("tow.md", "two.md")
    ended = kairos("mandate", "run", "links", "--resume", code=4)
    assert "mandate links: terminated (max_cycles_reached)\nlesson: Names are swapped.\n" in ended
    assert json.loads(kairos("show", run_id, "--json"))["output"]["cycles"][0]["status"] == "applied"


def test_a_persons_word_renews_the_allowance(place, kairos):
    script(place, *MENDED)
    save_mandate(place, kairos, checkpoint_every=3)
    kairos("mandate", "run", "links", code=3)
    cap = "select cap_model_calls, spent_model_calls + held_model_calls from account where scope = 'run'"
    assert place.rows(cap) == [(60, 2)]
    ((run_id,),) = place.rows("select id from run")
    kairos("approve", run_id, "cycle-1/act/call-1/approval", code=3)
    assert place.rows(cap) == [(62, 5)]
    kairos("deny", run_id, "cycle-2/act/call-1/approval", code=3)
    assert place.rows(cap)[0][0] == 62


def test_a_remembered_approval_is_no_persons_word_and_renews_no_allowance(place, kairos):
    script(place, *MENDED)
    save_mandate(place, kairos, checkpoint_every=3)
    kairos("mandate", "run", "links", code=3)
    cap = "select cap_model_calls, spent_model_calls from account where scope = 'run'"
    ((run_id,),) = place.rows("select id from run")
    kairos("approve", run_id, "cycle-1/act/call-1/approval", "--always", "run", code=4)
    assert "oen" not in page(place)
    assert "trhee" not in page(place)  # the edits of the other cycles were made unasked
    assert place.rows("select through, count(*) from approval group by 1 order by 1") == [("command", 1), ("rule", 2)]
    assert place.rows(cap) == [(62, 9)]  # as the one approval left it


def test_what_is_due_is_run_once_for_each_time(place, kairos):
    lines = [line for _ in range(2) for line in cycle({"content": '{"action": "noop", "reason": "all well"}'})]
    script(place, *lines)
    save_mandate(place, kairos, max_cycles=1, schedule={"rule": "* * * * *", "catch_up": "bounded", "bound": 2})
    assert re.match(r"nothing is due; links is next due \S+:00Z, in \d+ (s|min)\n", kairos("mandate", "run", "--due"))
    set_back(place, minutes=5)
    assert "  schedule * * * * * (UTC): due since " in kairos("mandate", "list")
    output = json.loads(kairos("mandate", "run", "--due", "--json"))
    assert [run["status"] for run in output["runs"]] == ["completed", "completed"]
    ((last, runs),) = place.rows("select last_due, (select count(*) from run) from mandate")
    assert last % 60_000 == 0
    assert runs == 2
    (listed,) = json.loads(kairos("mandate", "list", "--json"))["mandates"]
    assert listed["next_due"] > listed["last_due"]
    assert output["next_due"]["mandate_id"] == "links"


def test_a_timer_takes_a_run_that_was_stopped_for_no_failure_and_is_told_which(place, kairos, capsys):
    """A run that did the cycles that were asked for is complete."""
    looks = gives({"action": "run_tool", "tool": "list_files", "arguments": {}, "intent": "look"})
    script(place, *cycle(looks))
    save_mandate(place, kairos, max_cycles=1, allowed_actions=["run_tool"], schedule={"rule": "* * * * *"})
    set_back(place, minutes=1)
    assert run_command(("mandate", "run", "--due")) == 0
    ((run_id,),) = place.rows("select id from run")
    assert f"run {run_id} was stopped: all cycles run" in capsys.readouterr().err
    assert kairos("mandate", "run", "links", "--cycles", "1", code=0)


async def test_a_time_of_a_schedule_is_run_for_once_though_two_timers_found_it_due(place):
    lines = cycle({"content": '{"action": "noop", "reason": "all well"}'})
    async with App.open(place.settings(*lines), via="command") as app:
        await app.mandates.save({**MANDATE, "max_cycles": 1, "schedule": {"rule": "* * * * *"}}, ME)
        ((saved_at,),) = place.rows("select saved_at from mandate")
        due = CyclesRequest(MandateRef("links"), due=saved_at + 60_000)
        started = await app.runs.start(due, ME)
        await app.runs.wait([started.run_id], until="done", wait_s=20, caller=ME)
        with pytest.raises(Stale, match="was run for this time before"):
            await app.runs.start(due, ME)
    assert place.rows("select count(*) from run") == [(1,)]
    assert place.rows("select last_due from mandate") == [(saved_at + 60_000,)]


def set_back(place: Place, minutes: int) -> None:
    """As if the mandate had been saved so long ago."""
    place.rows(f"update mandate set saved_at = saved_at - {minutes * 60_000}")


def test_a_mandate_is_shown_edited_and_removed_by_command(place, kairos, monkeypatch):
    script(place, *cycle(noop()))
    save_mandate(place, kairos, max_cycles=1)
    shown = json.loads(kairos("mandate", "show", "links"))
    assert shown["goal"] == MANDATE["goal"]
    assert kairos("mandate", "edit", "links", str(place.root / "links.json")).startswith("unchanged: links")

    changed = place.root / "changed.json"
    changed.write_text(json.dumps({**shown, "goal": "Every page has a title."}))
    assert kairos("mandate", "edit", "links", str(changed)).startswith("saved: links")
    editor = place.root / "editor.py"
    editor.write_text(
        "import pathlib, sys\np = pathlib.Path(sys.argv[1])\np.write_text(p.read_text().replace('title', 'name'))"
    )
    monkeypatch.setenv("EDITOR", f"{sys.executable} {editor}")
    kairos("mandate", "edit", "links")
    assert json.loads(kairos("mandate", "show", "links"))["goal"] == "Every page has a name."
    assert place.rows("select json_extract(body, '$.goal') from mandate") == [("Every page has a name.",)]

    for other in ({"id": "other"}, {"workspace": str(place.root)}, {"goal": ""}, {"gaol": "x"}):
        changed.write_text(json.dumps({**shown, **other}))
        kairos("mandate", "edit", "links", str(changed), code=2)
    assert json.loads(kairos("mandate", "show", "links"))["goal"] == "Every page has a name."

    kairos("mandate", "run", "links")
    assert kairos("mandate", "remove", "links") == "removed: links\n"
    assert place.rows("select id from mandate") == []
    assert place.rows("select mandate from run") == [("links",)]
    kairos("mandate", "remove", "links", code=2)
    kairos("mandate", "show", "links", code=2)


def test_what_an_editor_left_that_is_no_mandate_is_kept_and_said(place, kairos, monkeypatch, capsys):
    save_mandate(place, kairos)
    editor = place.root / "editor.py"
    editor.write_text('import pathlib, sys\npathlib.Path(sys.argv[1]).write_text(\'{"goal": "Half\')')
    monkeypatch.setenv("EDITOR", f"{sys.executable} {editor}")
    assert run_command(["mandate", "edit", "links"]) == 2
    words = capsys.readouterr().err.split()
    (file,) = [Path(word) for word in words if word.strip("`.").endswith("links.json") and "edit" not in word][-1:]
    kept = Path(str(file).strip("`."))
    assert kept.read_text() == '{"goal": "Half'
    kept.write_text('{"goal": "Half of it."}')
    command = " ".join(words).rpartition("mandate edit ")[2].strip("`.").split()
    kairos("mandate", "edit", *command)
    assert place.rows("select json_extract(body, '$.goal') from mandate") == [("Half of it.",)]


def test_a_mandate_with_an_open_run_is_not_removed(place, kairos):
    script(place, *MENDED)
    save_mandate(place, kairos)
    kairos("mandate", "run", "links", code=3)
    kairos("mandate", "remove", "links", code=1)
    assert place.rows("select id from mandate") == [("links",)]
    ((run_id,),) = place.rows("select id from run")
    kairos("cancel", run_id)
    kairos("mandate", "remove", "links")
    assert place.rows("select id from mandate") == []


def test_what_is_due_without_a_model_is_said_and_not_begun(place, kairos, monkeypatch, capsys):
    save_mandate(place, kairos, schedule={"rule": "* * * * *", "catch_up": "once"})
    monkeypatch.delenv("KAIROS_SCRIPT")
    set_back(place, minutes=5)
    assert run_command(["mandate", "run", "--due"]) == 3
    said = capsys.readouterr()
    assert "The mandate links is due since" in said.err
    assert said.out == ""
    assert place.rows("select (select count(*) from run), last_due from mandate") == [(0, None)]
    kairos("mandate", "run", "--due", "--route", "caller", code=3)
    assert place.rows("select count(*) from run") == [(1,)]
    assert run_command(["mandate", "run", "--due"]) == 0, "an agent is at it"


async def test_what_needs_a_person_about_mandates_is_one_list(place):
    async with open_checked_app(place.settings()) as app:
        await app.mandates.save({**MANDATE, "schedule": {"rule": "* * * * *", "catch_up": "once"}}, ME)
        assert await app.schedules.notes_for_person(ME) == []
        set_back(place, minutes=5)
        (note,) = await app.schedules.notes_for_person(ME)
        assert 'ooda_run {"mandate_id":"links"}' in note
        started = await app.runs.start(CyclesRequest(MandateRef("links")), ME)
        assert await app.schedules.notes_for_person(ME) == []
        await app.control.cancel(started.run_id, ME)
    async with open_checked_app(place.settings({"content": "x"})) as app:
        assert await app.schedules.notes_for_person(ME) == []


@pytest.mark.parametrize("text", ["", "[]", '{"goal": "x", "goal": "y"}', '{"goal": ""}', '{"gaol": "x"}'])
def test_what_is_no_mandate_is_refused(place, kairos, text):
    file = place.root / "bad.json"
    file.write_text(text)
    assert kairos("mandate", "save", str(file), code=2) == ""
    assert "mandates" in kairos("mandate", "list", "--json")
    assert place.rows("select id from mandate") == []


def test_a_mandate_may_be_toml(place, kairos):
    file = place.root / "tidy.toml"
    file.write_text('id = "tidy"\ngoal = "Tidy up."\n')
    assert kairos("mandate", "save", str(file)) == "saved: tidy (created)\n"
