"""What is printed reads well on terminals of 60 and of 100 columns; commands stay whole, to be copied."""

from __future__ import annotations

import re

import pytest
from commands.conftest import Shell
from commands.test_asked_in_place import QUESTION, terminal, writes
from commands.test_short_names import slow
from support.script_lines import looks, says

from kairos_mcp.cli.output import call_line
from kairos_mcp.cli.terminal import fold

GOAL = "Look through the whole folder, find what has no test yet, and write down what there is to do about it"
ANSWER = "There is a file without a test, and it would be good to write one; the other file needs none. " * 3
LINES = (
    looks(),
    writes("new.txt", said="Now I write down what I have found in the folder, as I was told."),
    says(ANSWER),
)
COMMAND = re.compile(r"^  \S+ (-P -m kairos_mcp )?(show|approve|deny|resume|run|answer) ")


def too_long(text: str, columns: int) -> list[str]:
    """Lines that the terminal has to break, other than commands, single words and the line that moves."""
    settled = re.sub(r".*[⠀-⣿] [^\n]*", "", text)
    return [line for line in settled.splitlines() if len(line) > columns and " " in line and not COMMAND.match(line)]


@pytest.mark.parametrize("columns", [60, slow(100)])
def test_no_line_is_broken_by_the_terminal(kairos: Shell, columns: int) -> None:
    words = ("run", GOAL, "--tools", "write_file", "--tools", "list_files")
    with terminal(kairos, *words, lines=LINES, columns=columns) as person:
        person.shows(QUESTION)
        for looking in (["inbox"], ["runs"], ["show", "last"]):
            with terminal(kairos, *looking, columns=columns) as other:
                if looking == ["inbox"]:
                    other.shows(QUESTION)
                    other.types("l")
                other.ends()
                assert too_long(other.text, columns) == [], looking
        person.types("y")
        assert person.ends() == 0
        assert too_long(person.text, columns) == []
        assert ANSWER.rsplit(maxsplit=1)[-1] in person.text


@pytest.mark.parametrize(
    ("text", "columns", "lines"),
    [
        ("one two three", 7, ["one two", "three"]),
        ("one two three", 100, ["one two three"]),
        ("one two three", None, ["one two three"]),
        ("  one two", 5, ["  one", "  two"]),
        ("a `kairos-mcp show last` b", 8, ["a", "`kairos-mcp show last`", "b"]),
        ("unbreakable", 4, ["unbreakable"]),
        ("a  b\n\nc", 3, ["a", "b", "", "c"]),
        ("", 5, [""]),
    ],
)
def test_lines_end_between_words_and_never_within_a_command(text: str, columns: int | None, lines: list[str]) -> None:
    assert fold(text, columns).split("\n") == lines


@pytest.mark.parametrize("columns", [60, 100, None])
@pytest.mark.parametrize("name", ["edit_file", "files__a_tool_whose_name_fills_more_than_half_of_the_line"])
def test_the_line_of_a_call_is_as_long_with_a_rule_as_without(name: str, columns: int | None) -> None:
    call = {"ok": True, "round": 3, "ref": "round-3/call-1", "name": name, "ms": 12, "preview": "Changed it. " * 9}
    full, allowed = call_line(call), {**call, "rule": "rule 1"}
    assert len(call_line(call, columns)) == len(call_line(allowed, columns)) == min(len(full), columns or len(full))
    assert "  [rule 1] Changed it." in call_line(allowed)


def test_what_goes_into_a_pipe_is_not_folded(kairos: Shell) -> None:
    with terminal(kairos, "run", GOAL, lines=(says(ANSWER),)) as person:
        assert person.ends() == 0
    assert f"\n{ANSWER}\n" in kairos("show", "last").out


def test_the_status_names_who_has_the_file_open_in_words(kairos: Shell) -> None:
    with terminal(
        kairos, "run", "-i", "--tools", "write_file", "Go.", lines=(writes("new.txt"), says("Ok."))
    ) as person:
        person.shows(QUESTION)
        ((number, pid),) = kairos.rows("select id, pid from owner")
        shown = kairos("status")
        assert f"servers\n  {number}: command, process {pid}, 0 open runs\nruns\n  total: 1\n" in shown.out
        assert "{" not in shown.out
        assert "exists: yes" in shown.out
        assert [server["pid"] for server in kairos("status", "--json").json["servers"]] == [pid]


def test_a_request_that_waits_for_whoever_reads_it_is_folded_and_its_command_is_not(kairos: Shell) -> None:
    with terminal(kairos, "run", GOAL, "--route", "caller", lines=(says("unused"),), columns=60) as person:
        assert person.ends() == 3
        assert too_long(person.text, 60) == []
        commands = [line for line in person.text.splitlines() if " answer " in line and line.endswith("'")]
        assert len(commands) == 2
        assert min(map(len, commands)) > 60
