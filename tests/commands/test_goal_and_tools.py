"""A goal that is typed, piped or read from stdin, and the tools that `--write` and `--shell` add."""

from __future__ import annotations

import json

import pytest
from commands.conftest import Shell
from commands.test_asked_in_place import script_environ
from commands.test_short_names import script_of
from support.script_lines import says

READING = {"list_files", "file_tree", "read_file", "search_files"}
EDITING = {"edit_file", "write_file", "plan_edits", "apply_edit_plan"}
ANY_LOOP = {"request_more_rounds", "read_result", "read_skill"}


def goals(kairos: Shell) -> list[str]:
    return [json.loads(spec)["goal"] for (spec,) in kairos.rows("select spec from run order by n")]


@pytest.mark.parametrize("words", [("run", "-"), ("run",)])
def test_a_goal_is_read_from_stdin(kairos: Shell, words: tuple[str, ...]) -> None:
    script_environ(kairos, says("Ok."))
    assert kairos(*words, typed="Look at\nboth lines.\n", **script_of(kairos)).code == 0
    assert goals(kairos) == ["Look at\nboth lines."]


def test_an_empty_stdin_is_no_goal(kairos: Shell) -> None:
    assert kairos("run", "-", typed=" \n").code == 2
    assert kairos("run", typed="").code == 2
    assert not kairos.state.exists()


def test_what_is_piped_beside_a_goal_is_left_alone(kairos: Shell) -> None:
    script_environ(kairos, says("Ok."))
    assert kairos("run", "Look.", typed="Not this.", **script_of(kairos)).code == 0
    assert goals(kairos) == ["Look."]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--write",), READING | EDITING),
        (("--shell",), READING | {"run_command"}),
        (("--write", "--shell"), READING | EDITING | {"run_command"}),
        (("--write", "--tools", "run_command"), READING | EDITING | {"run_command"}),
    ],
)
def test_a_preset_adds_tools_to_those_that_read(kairos: Shell, words: tuple[str, ...], expected: set[str]) -> None:
    script_environ(kairos, says("Ok."))
    kairos("run", "Look.", *words, **script_of(kairos))
    ((body,),) = kairos.rows("select body from text, run where hash = json_extract(spec, '$.tools_text')")
    assert {tool["name"] for tool in json.loads(body)} - ANY_LOOP == expected
