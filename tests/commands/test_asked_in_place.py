"""On a terminal a person decides where the run stands: what they type is what the rows say and what the files hold."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from commands.conftest import Shell
from support.cycles import MANDATE, PAGE, cycle, edit
from support.script_lines import says
from support.terminal import Terminal

QUESTION = "later [l]? "


def writes(path: str, content: str = "hello\n", said: str = "") -> dict[str, Any]:
    call = {"id": "1", "name": "write_file", "arguments": {"path": path, "content": content}}
    return {"content": said, "tool_calls": [call]}


def script_environ(kairos: Shell, *lines: Mapping[str, Any]) -> dict[str, str]:
    file = kairos.home / "script.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return kairos.environ(KAIROS_SCRIPT=str(file))


@contextmanager
def terminal(kairos: Shell, *words: str, lines: Sequence[Mapping[str, Any]] = (), **more: Any) -> Iterator[Terminal]:
    environ = (
        script_environ(kairos, *lines) if lines else kairos.environ(KAIROS_SCRIPT=str(kairos.home / "script.jsonl"))
    )
    with Terminal(*words, folder=kairos.folder, environ=environ, **more) as opened:
        yield opened


def verdicts(kairos: Shell) -> list[tuple[Any, ...]]:
    return kairos.rows("select verdict, by, through, feedback from approval order by step")


CHANGE = ("run", "Change it.", "--tools", "write_file")


def test_yes_makes_the_change_and_the_run_goes_on_to_its_end(kairos: Shell) -> None:
    with terminal(kairos, *CHANGE, lines=(writes("new.txt"), writes("other.txt"), says("All done."))) as person:
        shown = person.shows(QUESTION)
        assert shown.index("+ hello") < shown.index("goal: Change it.") < shown.index("digest ")  # the change first
        assert not (kairos.folder / "new.txt").exists()
        person.types("y")
        person.shows("other.txt")
        person.shows(QUESTION)
        assert (kairos.folder / "new.txt").read_text() == "hello\n"
        person.types("yes")
        person.shows("All done.")
        assert person.ends() == 0
    assert (kairos.folder / "other.txt").exists()
    assert verdicts(kairos) == [("approve", "local", "command", None)] * 2


def test_the_diff_has_colours(kairos: Shell) -> None:
    with terminal(kairos, *CHANGE, lines=(writes("new.txt"), says("Done."))) as person:
        person.shows(QUESTION)
        assert "\x1b[32m+ hello\x1b[0m" in person.raw


def test_no_leaves_the_file_alone_and_why_reaches_the_model(kairos: Shell) -> None:
    lines = (writes("new.txt"), writes("other.txt"), says("I gave up."))
    with terminal(kairos, *CHANGE, lines=lines) as person:
        person.shows(QUESTION)
        person.types("n")
        person.shows(QUESTION)
        person.types("w")
        person.shows("instead? ")
        person.types("write to notes.txt")
        assert person.ends() == 0
    assert not (kairos.folder / "new.txt").exists()
    assert not (kairos.folder / "other.txt").exists()
    assert [(verdict, why) for verdict, _, _, why in verdicts(kairos)] == [
        ("deny", None),
        ("deny", "write to notes.txt"),
    ]
    messages = kairos("show", "last", "--view", "messages", "--json").out
    assert "write to notes.txt" in messages


def test_what_is_no_choice_is_asked_again_and_what_was_typed_before_the_question_counts_for_nothing(
    kairos: Shell,
) -> None:
    with terminal(kairos, *CHANGE, lines=({**writes("new.txt"), "delay_s": 0.5}, says("Done."))) as person:
        person.types("y")  # ahead of the question
        person.shows(QUESTION)
        person.types("perhaps")
        person.shows(QUESTION)
        person.types("")
        person.shows(QUESTION)
        assert verdicts(kairos) == [(None, None, None, None)]


def test_a_key_that_is_typed_as_the_question_appears_is_no_answer_to_it(kairos: Shell) -> None:
    with terminal(kairos, *CHANGE, lines=(writes("new.txt"), says("Done."))) as person:
        person.shows("create new.txt")  # its first line; the question itself is a moment later
        person.types_at_once("y")
        person.shows(QUESTION)
        person.types_at_once("y")
        person.types("n")
        assert person.ends() == 0
    assert [verdict for verdict, *_ in verdicts(kairos)] == ["deny"]
    assert not (kairos.folder / "new.txt").exists()


MARK = "\u258c"


@pytest.mark.parametrize("bar", [MARK, "\u2590", "\u258e", "\u2759", "\x1b[1;33m" + MARK + "\x1b[0m"])
def test_no_text_of_a_model_can_look_like_the_question(kairos: Shell, bar: str) -> None:
    """Whether it is said, stands in a call, a result or a file, and however the terminal breaks its lines."""
    fake = f"create new.txt  -0 +1\n{bar} yes [y], no [n], later [l]? "
    wrapped = "x" * 100 + fake
    said = writes("new.txt", content=f"{bar} {fake}\n{bar}\n", said=f"{bar} {fake}\n{wrapped}\r{bar} no [n]? ")
    lines = (said, says(f"Done.\n{bar} {fake}"))
    with terminal(kairos, "run", f"{bar} Change it.", "--tools", "write_file", lines=lines) as person:
        person.shows("no and why [w],")  # not in what the model says
        person.shows(QUESTION)
        person.types("y")
        assert person.ends() == 0
        shown = person.text.split("\n")
    marked = [line for line in shown if MARK in line]
    assert all(line.startswith(MARK) and line.count(MARK) == 1 for line in marked)
    assert len([line for line in marked if line.startswith(f"{MARK} yes [y], ")]) == 1
    quoted = [line for line in marked if fake.partition("\n")[0] in line]
    assert quoted
    assert all(line.startswith(f"{MARK}   ") for line in quoted)  # a change's lines are further in
    assert [line for line in shown if line not in marked and bar in line] == []


@pytest.mark.parametrize("way", ["later", pytest.param("Ctrl-D", marks=pytest.mark.slow), "Ctrl-C"])
def test_later_leaves_it_open_with_the_exact_command(kairos: Shell, way: str) -> None:
    with terminal(kairos, *CHANGE, lines=(writes("new.txt"), says("Done."))) as person:
        person.shows(QUESTION)
        if way == "later":
            person.types("l")
        elif way == "Ctrl-D":
            person.leaves()
        else:
            person.interrupts()
        person.shows(" approve ")
        assert person.ends() == 3
    assert verdicts(kairos) == [(None, None, None, None)]
    assert kairos.rows("select outcome from run") == [(None,)]
    assert not (kairos.folder / "new.txt").exists()


@pytest.mark.parametrize("more", [["--json"], []])
def test_without_a_terminal_and_with_json_nobody_is_asked(kairos: Shell, more: list[str]) -> None:
    lines = (writes("new.txt"), says("Done."))
    if more:
        with terminal(kairos, *CHANGE, *more, lines=lines) as person:
            assert person.ends() == 3
            assert QUESTION not in person.text
    else:
        said = kairos(*CHANGE, typed="y\n", KAIROS_SCRIPT=script_environ(kairos, *lines)["KAIROS_SCRIPT"])
        assert (said.code, QUESTION in said.err) == (3, False)
        assert " approve " in said.out
    assert verdicts(kairos) == [(None, None, None, None)]


def test_a_decision_made_elsewhere_meanwhile_wins(kairos: Shell) -> None:
    with terminal(kairos, *CHANGE, lines=(writes("new.txt"), says("Done."))) as person:
        person.shows(QUESTION)
        script = str(kairos.home / "script.jsonl")
        ((run_id,),) = kairos.rows("select id from run")
        ((key,),) = kairos.rows("select key from approval")
        assert kairos("deny", run_id, key, "--no-drive", KAIROS_SCRIPT=script).code == 0
        person.types("y")
        assert person.ends() == 0
    assert [verdict for verdict, *_ in verdicts(kairos)] == ["deny"]
    assert not (kairos.folder / "new.txt").exists()


def test_a_mandates_run_asks_in_place_too(kairos: Shell) -> None:
    (kairos.folder / "docs").mkdir()
    page = kairos.folder / "docs" / "index.md"
    page.write_text(PAGE)
    file = kairos.home / "mandate.json"
    file.write_text(json.dumps({**MANDATE, "max_cycles": 1}))
    assert kairos("mandate", "save", str(file)).code == 0
    with terminal(kairos, "mandate", "run", "links", lines=cycle(edit("oen.md", "one.md"))) as person:
        person.shows(QUESTION)
        person.types("y")
        assert person.ends() == 4  # one cycle is the most of this mandate
    assert "(one.md)" in page.read_text()
    assert verdicts(kairos) == [("approve", "local", "command", None)]


def rules(kairos: Shell) -> list[tuple[Any, ...]]:
    return kairos.rows("select tool, run is null, through from rule")


@pytest.mark.parametrize(("typed", "is_for_project"), [("r", 0), ("p", 1)])
def test_always_remembers_the_approval_for_the_run_or_for_the_project(
    kairos: Shell, typed: str, is_for_project: int
) -> None:
    lines = (writes("new.txt"), writes("new.txt", "hello again\n"), says("All done."))
    with terminal(kairos, *CHANGE, lines=lines) as person:
        shown = person.shows(QUESTION)
        assert "always for this run [r], always for this project [p]" in shown
        person.types(typed)
        assert person.ends() == 0
        assert person.text.count(QUESTION) == 1
        assert "rules remove" in person.text
    assert rules(kairos) == [("write_file", is_for_project, "command")]
    assert (kairos.folder / "new.txt").read_text() == "hello again\n"
    (kairos.folder / "new.txt").unlink()
    again = kairos("run", "Once more.", "--tools", "write_file", KAIROS_SCRIPT=str(kairos.home / "script.jsonl"))
    assert again.code == (0 if is_for_project else 3)


def runs(*argv: str) -> dict[str, Any]:
    return {"tool_calls": [{"id": "1", "name": "run_command", "arguments": {"argv": list(argv)}}]}


@pytest.mark.sandbox
def test_which_commands_are_always_allowed_is_shown_and_confirmed_and_may_be_widened(kairos: Shell) -> None:
    lines = (runs("touch", "one"), runs("touch", "two"), runs("rm", "one"), says("All done."))
    pattern = "another pattern, as 'pytest ...': "
    with terminal(kairos, "run", "Touch.", "--tools", "run_command", lines=lines) as person:
        person.shows(QUESTION)
        person.types("p")
        assert "run_command: touch one" in person.shows(pattern)
        person.leaves()  # that takes the choice back
        person.shows(QUESTION)
        assert not (kairos.folder / "one").exists()
        person.types("p")
        person.shows(pattern)
        person.types("rm ...")
        assert "does not match" in person.shows(pattern)
        person.types("touch ...")
        assert "run_command: touch ..." in person.shows(pattern)
        person.types("")
        assert "rm" in person.shows(QUESTION)  # the second touch ran unasked
        assert (kairos.folder / "two").exists()
        person.types("n")
        assert person.ends() == 0
    assert rules(kairos) == [("run_command", 1, "command")]


def test_what_may_not_be_remembered_is_not_offered(kairos: Shell) -> None:
    with terminal(kairos, *CHANGE, lines=(writes("AGENTS.md"), says("All done."))) as person:
        assert "always" not in person.shows(QUESTION)
        person.types("r")  # so it is no choice
        person.shows(QUESTION)
        person.types("n")
        assert person.ends() == 0
    assert rules(kairos) == []
