"""Names that look the same and names of one file: a path is found by any spelling, a hard link is said."""

from __future__ import annotations

import os
import unicodedata

import pytest
from support.tools import WorkspaceTools

from kairos_mcp.core.messages import ToolSpec
from kairos_mcp.core.paths import Scopes
from kairos_mcp.gate import Gate
from kairos_mcp.gate_calls import GatedCall
from kairos_mcp.settings.table_values import GateRule

COMPOSED = "caf\u00e9/r\u00e9sum\u00e9.txt"
DECOMPOSED = unicodedata.normalize("NFD", COMPOSED)
EDIT = {"old_string": "alpha", "new_string": "beta"}


@pytest.mark.parametrize(("stored", "asked"), [(COMPOSED, DECOMPOSED), (DECOMPOSED, COMPOSED)])
def test_a_file_is_found_however_its_accents_are_spelled(tools: WorkspaceTools, stored: str, asked: str) -> None:
    tools.write({stored: b"alpha\n"})
    assert tools.call("read_file", path=asked).content == "alpha\n"
    assert stored in tools.call("list_files", path=asked.partition("/")[0]).content
    assert f"{stored}:1: alpha" in tools.call("search_files", path=asked, pattern="alpha").content
    assert not tools.call("edit_file", path=asked, **EDIT).is_error
    assert not tools.call("write_file", path=asked, content="gamma\n").is_error
    assert tools.content() == {stored: "gamma\n"}


def test_a_file_that_is_there_under_both_spellings_is_taken_by_its_own(tools: WorkspaceTools) -> None:
    tools.write({COMPOSED: b"one\n", DECOMPOSED: b"two\n"})
    if len(tools.content()) == 1:
        pytest.skip("this file system knows one spelling")
    assert tools.call("read_file", path=COMPOSED).content == "one\n"
    assert tools.call("read_file", path=DECOMPOSED).content == "two\n"


def test_a_rule_holds_for_a_path_however_its_accents_are_spelled() -> None:
    tool = ToolSpec("read_file", "", {"type": "object", "properties": {"path": {}}}, "read", source="builtin")
    for ruled, asked in ((COMPOSED, DECOMPOSED), (DECOMPOSED, COMPOSED)):
        gate = Gate([GateRule("read_file", "deny", (ruled,))], Scopes().scope_of)
        assert gate.judge(GatedCall(tool, {"path": asked})).decision == "deny"


def test_an_edit_of_a_file_with_another_name_says_that_this_one_keeps_the_old_text(tools: WorkspaceTools) -> None:
    tools.write({"a.txt": b"alpha\n"})
    os.link(tools.workspace / "a.txt", tools.workspace / "b.txt")
    assert "another name (a hard link)" in tools.preview("edit_file", path="a.txt", **EDIT).text
    result = tools.call("edit_file", path="a.txt", **EDIT)
    assert result.data["notes"] == ["a.txt has another name (a hard link), which keeps the old text"]
    assert tools.content() == {"a.txt": "beta\n", "b.txt": "alpha\n"}
    assert "notes" not in tools.call("edit_file", path="a.txt", old_string="beta", new_string="gamma").data


@pytest.mark.parametrize(
    ("text", "old", "named"),
    [
        ("in\u00a0current\n", "in current", ("U+00A0", "U+0020")),
        ("say \u201chi\u201d\n", 'say "hi"', ("U+201C", "U+0022")),
        ("a\tb\n", "a b", ("U+0009",)),
        ("a \u2013 b\n", "a - b", ("U+2013",)),
        ("ze\u200bro\n", "zero", ("U+200B",)),
        ("caf\u0065\u0301\n", "caf\u00e9", ("U+0301",)),
    ],
)
def test_a_text_that_only_looks_the_same_is_named_with_what_differs(
    tools: WorkspaceTools, text: str, old: str, named: tuple[str, ...]
) -> None:
    tools.write({"t.md": ("first\n" + text).encode()})
    refused = tools.call("edit_file", path="t.md", old_string=old, new_string="x")
    assert refused.code == "match_none"
    assert "Line 2" in refused.content
    assert [code for code in named if code not in refused.content] == []
    assert tools.call("edit_file", path="t.md", old_string="nowhere", new_string="x").code == "match_none"


def test_what_looks_like_a_secret_is_not_said_to(tools: WorkspaceTools) -> None:
    tools.write({"a.ini": "password = ze\u00a0bra\n".encode()})
    right, wrong = (
        tools.call("edit_file", path="a.ini", old_string=guess, new_string="x").content
        for guess in ("ze bra", "ze bro")
    )
    assert right == wrong
