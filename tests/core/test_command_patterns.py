"""Patterns of commands: position by position and the whole list, and a program by the names that it really has."""

from __future__ import annotations

import os
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kairos_mcp.core.command_patterns import (
    GLOB_CHARS,
    MAX_GLOBS,
    OPEN_END,
    check_pattern,
    fits_pattern,
    format_pattern,
    literal_glob,
    parse_pattern,
)
from kairos_mcp.core.errors import BadArguments
from kairos_mcp.tools.commands.program_names import program_finder

words = st.text(alphabet="ab*?[]!./-. \n'", max_size=4) | st.sampled_from(["...", "-q", "pytest", "tests/a.py"])
names = words.filter(bool)
commands = st.lists(words, max_size=4)


@given(names, commands, names, commands)
def test_law_a_literal_pattern_matches_its_own_command_and_no_other(name, arguments, other, others):
    pattern = [literal_glob(text) for text in (name, *arguments)]
    assert "/" in name or fits_pattern(pattern, [name], arguments)
    if (other, others) != (name, arguments) and "/" not in name + other:
        assert not fits_pattern(pattern, [other], others)


@given(names, st.lists(words, min_size=1, max_size=4), commands)
def test_law_a_pattern_matches_by_position_and_the_whole_list(program, globs, arguments):
    if check_pattern([program, *globs]) is not None:
        return
    is_open = globs[-1] == OPEN_END
    fixed = globs[:-1] if is_open else globs
    lengths = len(arguments) >= len(fixed) if is_open else len(arguments) == len(fixed)
    expected = lengths and all(map(fnmatchcase, arguments, fixed))
    assert fits_pattern(["pytest", *globs], ["pytest"], arguments) == expected


@given(names, commands, st.lists(words, min_size=1, max_size=3))
def test_law_only_an_open_end_lets_further_arguments_in(name, arguments, more):
    pattern = [literal_glob(text) for text in (name, *arguments)]
    assert not fits_pattern(pattern, [name], [*arguments, *more])
    if "/" not in name:
        assert fits_pattern([*pattern, OPEN_END], [name], [*arguments, *more])


@given(st.lists(words, min_size=1, max_size=5))
def test_law_a_pattern_that_is_shown_is_read_as_the_same(globs):
    if check_pattern(globs) is None:
        assert parse_pattern(format_pattern(globs)) == tuple(globs)


@pytest.mark.parametrize(
    ("pattern", "names", "fits"),
    [
        ("pytest", ["pytest"], True),
        ("py*", ["pytest"], True),
        ("*", ["./build.sh"], False),  # a bare name is of a program outside the workspace
        ("./build.sh", ["./build.sh"], True),
        ("bin/*", ["./bin/tool"], True),
        ("./bin/*", ["./bin/tool"], True),
        ("bin/*", ["/bin/tool"], False),
        ("*/tool", ["./bin/tool"], True),
        ("/usr/bin/*", ["/usr/bin/tool"], True),
        ("tool", ["/usr/bin/tool"], False),
    ],
)
def test_a_bare_name_and_a_path_are_told_apart(pattern, names, fits):
    assert fits_pattern([pattern], names, []) == fits


def test_one_of_several_names_is_enough_and_an_empty_pattern_matches_nothing():
    assert fits_pattern(["pytest", "-q"], ["/usr/bin/pytest", "pytest"], ["-q"])
    assert not fits_pattern([], ["pytest"], [])


def test_a_pattern_has_bounds():
    assert check_pattern(["x"] * MAX_GLOBS) is None
    assert check_pattern(["x"] * (MAX_GLOBS + 1)) is not None
    assert check_pattern(["x", "a" * GLOB_CHARS]) is None
    assert check_pattern(["x", "a" * (GLOB_CHARS + 1), "b"]) is not None
    assert (MAX_GLOBS, GLOB_CHARS) == (100, 1_000)


def test_a_pattern_is_shown_as_it_is_typed():
    assert format_pattern(["pytest", "tests/[ab]*.py", "a b", "..."]) == "pytest tests/[ab]*.py 'a b' ..."


@pytest.mark.parametrize("text", ["", "...", "pytest ... -q", "'", "x " * 101])
def test_what_is_no_pattern_is_refused(text):
    with pytest.raises(BadArguments):
        parse_pattern(text)


# -- what a program is called ---------------------------------------------------------------------------------------


@pytest.fixture
def folders(tmp_path):
    """A workspace with a program, and a folder of programs outside that PATH names."""
    workspace, outside = tmp_path / "workspace", tmp_path / "bin"
    for folder, program in ((workspace, "tool"), (outside, "tool"), (outside, "other")):
        folder.mkdir(exist_ok=True)
        make_program(folder / program)
    return workspace, outside


def make_program(file: Path) -> None:
    file.write_text("#!/bin/sh\n")
    file.chmod(0o755)


def find_program(folders, program, **arguments):
    workspace, outside = folders
    find = program_finder(workspace, None, {"PATH": f"{workspace}{os.pathsep}{outside}"})
    return find({"argv": [program], **arguments})


def test_a_bare_name_is_of_a_program_outside_the_workspace_whatever_PATH_says(folders):
    outside = folders[1]
    assert find_program(folders, "tool").safe == ("tool", f"{outside}/tool")
    assert find_program(folders, f"{outside}/tool").safe == ("tool", f"{outside}/tool")


def test_a_program_of_the_workspace_has_no_bare_name_to_be_allowed_by(folders):
    workspace = folders[0]
    for name in ("./tool", f"{workspace}/tool"):
        assert find_program(folders, name).safe == ("./tool", f"{workspace}/tool")
        assert {"tool", "./tool"} <= set(find_program(folders, name).all)  # but one to be denied by
    (workspace / "sub").mkdir()
    assert find_program(folders, "../tool", cwd="sub").safe[0] == "./tool"


def test_a_name_that_finds_another_program_is_no_name_of_this_one(folders, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    make_program(elsewhere / "tool")
    assert find_program(folders, f"{elsewhere}/tool").safe == (f"{elsewhere}/tool",)


def test_a_link_outside_that_leads_into_the_workspace_is_allowed_by_no_name(folders):
    workspace, outside = folders
    (outside / "linked").symlink_to(workspace / "tool")
    assert find_program(folders, "linked").safe == ()
    assert {"linked", "tool", "./tool"} <= set(find_program(folders, "linked").all)


def test_a_path_that_goes_up_is_allowed_by_no_name(folders):
    outside = folders[1]
    assert find_program(folders, f"{outside}/../bin/tool").safe == ()
    assert "tool" in find_program(folders, f"{outside}/../bin/tool").all


def test_a_program_that_is_not_there_can_be_denied_by_its_name_alone(folders):
    assert find_program(folders, "RM").safe == ()
    assert set(find_program(folders, "RM").all) == {"RM", "rm"}
    assert find_program(folders, "\0").safe == ()
    assert find_program(folders, "./x", cwd="/nowhere").safe == ()
