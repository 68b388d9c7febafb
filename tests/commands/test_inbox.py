"""The inbox: what waits for a person over all runs of this workspace, listed, and on a terminal decided."""

from __future__ import annotations

import time

import pytest
import typer
from commands.conftest import Shell
from commands.test_asked_in_place import QUESTION, script_environ, terminal, verdicts, writes
from commands.test_resume import END, MAKES, kill_run_once
from commands.test_short_names import script_of, slow
from support.script_lines import says

from kairos_mcp.cli.inbox import _parse_since


def waiting_runs(kairos: Shell, *names: str, **more: str) -> list[str]:
    """Runs that each want to write a file of this name, in this order."""
    found = []
    for name in names:
        script_environ(kairos, writes(name), says(f"Wrote {name}."))
        words = ("run", f"Write {name}.", "--tools", "write_file", "--json")
        found.append(kairos(*words, **script_of(kairos), **more).json["run_id"])
    return found


def test_without_a_terminal_it_lists_what_waits_with_goal_age_and_workspace(kairos: Shell) -> None:
    assert kairos("inbox").out == "Nothing waits for you.\n"
    one, two = waiting_runs(kairos, "one.txt", "two.txt")
    kairos("run", "Think.", "--route", "caller")  # it waits for a model, not for a person
    said = kairos("inbox")
    first, asked, command, second, _, _, note = said.out.splitlines()
    assert "/approval" in asked
    assert "one.txt" in asked  # what would be written where
    assert note.startswith("1 run waits for a model's answer: ")
    for line, run_id, goal in ((first, one, "Write one.txt."), (second, two, "Write two.txt.")):
        assert line.startswith(f"{run_id} · approval of write_file · goal: {goal} · ")
        assert line.endswith(" s old · project")
    assert f"show {one}" in command
    listed = kairos("inbox", "--since", "1h", "--json").json
    assert [event["name"] for event in listed["happened"]] == ["run.waiting"] * 2
    waits = listed["waiting"]
    assert [(item["run_id"], item["kind"]) for item in waits] == [(one, "approval"), (two, "approval")]
    assert all(item["digest"] and item["preview"] and item["goal"] and item["created_at"] for item in waits)
    assert verdicts(kairos) == [(None, None, None, None)] * 2


def test_a_time_is_an_age_or_iso_8601() -> None:
    now = time.time() * 1000
    for text, age_ms in (("90m", 5_400_000), ("8h", 28_800_000), ("2d", 172_800_000)):
        assert abs(now - age_ms - _parse_since(text)) < 60_000
    assert _parse_since("2026-11-27T18:00:00+00:00") == 1_795_802_400_000
    for wrong in ("soon", "", "h", "-1h", "2w"):
        with pytest.raises(typer.BadParameter):
            _parse_since(wrong)


def test_it_is_of_this_workspace_and_with_all_of_every_one(kairos: Shell) -> None:
    waiting_runs(kairos, "one.txt")
    other = kairos.home / "other"
    other.mkdir()
    assert kairos("inbox", "--json", cwd=other).json["waiting"] == []
    assert len(kairos("inbox", "--all", "--json", cwd=other).json["waiting"]) == 1
    assert kairos("inbox", "--principal", "bob", "--all", "--json").json["waiting"] == []


def test_on_a_terminal_all_is_decided_first_and_then_the_runs_go_on(kairos: Shell) -> None:
    waiting_runs(kairos, "one.txt", "two.txt", "three.txt")
    with terminal(kairos, "inbox") as person:
        for name, typed in (("one", "y"), ("two", "l"), ("three", "n")):
            shown = person.shows(QUESTION)
            change, added, purpose = (f"create {name}.txt  -0 +1", "+ hello", f"goal: Write {name}.txt.")
            assert shown.index(change) < shown.index(added) < shown.index(purpose)  # as in a dialog
            assert not (kairos.folder / "one.txt").exists()
            person.types(typed)
        person.shows("Wrote one.txt.")
        person.shows("Wrote three.txt.")
        assert person.ends() == 0
    assert [verdict for verdict, *_ in verdicts(kairos)] == ["approve", None, "deny"]
    assert [(kairos.folder / f"{name}.txt").exists() for name in ("one", "two", "three")] == [True, False, False]
    assert kairos.rows("select outcome is not null from run order by n") == [(1,), (0,), (1,)]


def test_ctrl_c_leaves_all_that_is_not_decided_yet(kairos: Shell) -> None:
    decided, *_ = waiting_runs(kairos, "one.txt", "two.txt", "three.txt")
    with terminal(kairos, "inbox") as person:
        assert "1 of 3 (Ctrl-C leaves the rest for later)" in person.shows(QUESTION)
        person.types("y")
        person.shows(QUESTION)
        person.interrupts()
        assert person.ends() == 0
        assert f" resume {decided}\n" in person.text
        assert "3 of 3" not in person.text
    assert [verdict for verdict, *_ in verdicts(kairos)] == ["approve", None, None]
    assert not (kairos.folder / "one.txt").exists()
    assert kairos("resume", decided, **script_of(kairos)).code == 0
    assert (kairos.folder / "one.txt").exists()


@pytest.mark.state_file("in a database a stage needs a place that is named")
@pytest.mark.sandbox
def test_some_files_of_a_stage_are_chosen_by_number_or_path(kairos: Shell) -> None:
    script_environ(kairos, *map(writes, ("one.txt", "three.txt", "two.txt")), says("Done."))
    words = ("run", "Write.", "--tools", "write_file", "--stage", "--json")
    run_id = kairos(*words, **script_of(kairos)).json["run_id"]
    which = "separated by spaces? "
    with terminal(kairos, "inbox") as person:
        assert "some files [f]" in person.shows(QUESTION)
        person.types("f")
        person.shows(which)
        person.types("4")
        assert "4 is not one of them." in person.shows(which)
        person.types("")  # that takes the choice back
        person.shows(QUESTION)
        person.types("f")
        shown = person.shows(which)
        assert all(f"{n}  {name}" in shown for n, name in enumerate(("one.txt", "three.txt", "two.txt"), 1))
        person.types("1, two.txt")
        assert person.ends() == 0
    there = [name for name in ("one.txt", "two.txt", "three.txt") if (kairos.folder / name).exists()]
    assert there == ["one.txt", "two.txt"]
    assert kairos.rows("select verdict, files from approval") == [("approve", '["one.txt","two.txt"]')]
    assert kairos("show", run_id, "--json").json["status"] == "completed"


def test_a_paused_run_is_listed_and_not_asked_about(kairos: Shell) -> None:
    (run_id,) = waiting_runs(kairos, "one.txt")
    kairos("deny", run_id, "--digest", kairos("inbox", "--json").json["waiting"][0]["digest"], "--no-drive")
    assert kairos("pause", run_id).code == 0
    (item,) = kairos("inbox", "--json").json["waiting"]
    assert (item["run_id"], item["kind"]) == (run_id, "pause")
    with terminal(kairos, "inbox") as person:
        person.shows(f"{run_id} · pause · goal: Write one.txt.")
        assert person.ends() == 0


@pytest.mark.parametrize("words", [["inbox"], slow(["settle", "last"]), slow(["settle", "last", "already_done"])])
def test_a_lost_call_is_settled_where_it_is_shown(kairos: Shell, words: list[str]) -> None:
    kairos.state.mkdir(mode=0o700)
    rule = 'commands = "bare"\n[[gate]]\ntools = "run_command"\nverdict = "allow"\n'
    (kairos.state / "kairos.toml").write_text(rule)
    made = kairos.folder / "made.txt"
    kill_run_once(
        kairos,
        ["run", "Make.", "--tools", "run_command"],
        [MAKES, END],
        lambda: made.exists() and made.read_text() != "",
    )
    assert kairos("resume", "last", **script_of(kairos)).code == 3
    question = "Is it already_done? [y/N] " if "already_done" in words else "again [r]? "
    with terminal(kairos, *words) as person:
        assert "echo made" in person.shows(question)
        person.types("y" if "already_done" in words else "d")
        assert person.ends() == 0
    assert kairos.rows("select count(*) from inbox where kind = 'settle'") == [(1,)]
    assert made.read_text() == "made\n"
