"""The README tells the truth: its tables, its outputs, its commands."""

import re

import pytest
from readme import PARTS, README, TOOLS_PAGE, part_of, tools_page

CHANGING = [
    (r"digest [0-9a-f]{16}", "digest"),  # of the workspace too, which is another folder each time
    (r"run-[0-9a-f]{12}", "run-ID"),
    (r"\b\d{4}-\d\d-\d\dT[\d:]+Z", "THEN"),
    (r"\b\d+ ms\b", "N ms"),
    (r"\b[\d.]+ s\b", "N s"),
    (r" {2,}", " "),
    (r'"/?[^"]*/hello"', '"~/hello"'),
]


def normalised(text: str) -> str:
    """The text without what differs from run to run."""
    for pattern, replacement in CHANGING:
        text = re.sub(pattern, replacement, text)
    return text


@pytest.mark.parametrize("name", PARTS)
def test_a_part_of_the_readme_is_what_is_made_today(name: str) -> None:
    assert normalised(part_of(README.read_text(), name)[1]) == normalised(PARTS[name]())


def test_the_page_of_the_tools_is_what_is_made_today() -> None:
    assert TOOLS_PAGE.read_text() == tools_page()


def test_the_two_commands_stand_alone_in_their_blocks() -> None:
    readme = README.read_text()
    for name in ("main command", "test command"):
        block = re.search(rf"<!-- {name} -->\n```sh\n(.*?)\n```", readme, re.DOTALL)
        assert block is not None
        assert "\n" not in block[1]


def test_every_command_of_the_readme_is_one_that_there_is() -> None:
    from kairos_mcp.cli.command_table import COMMANDS, GROUPS

    known = {*COMMANDS, *GROUPS}
    named = set(re.findall(r"kairos-mcp ([a-z]+)", README.read_text()))
    assert named <= known
