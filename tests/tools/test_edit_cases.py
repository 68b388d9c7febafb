"""The EDIT cases of fault_cases.json and the writing ones of PATH; each followed by a call that works.

Not here, and why:
EDIT-031 and EDIT-033 are in test_writing.py, EDIT-018 and PATH-010 in test_concurrent_writers.py and
test_writing_race.py, PATH-025 in test_writing.py. EDIT-032, an approval that has expired, is the gate's.
EDIT-005 is `no_change` by the list of codes.
EDIT-034: the rebase itself is git's; what it needs of us, nothing in .git and no name that a glob takes, is here.
PATH-029 and the Windows half of PATH-027 and PATH-028: Windows. PATH-037 needs a disk that folds case; the rule that
compares names so is shown here without one.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
from support.tools import WorkspaceTools

from kairos_mcp.core.errors import KairosError
from kairos_mcp.core.patterns import compile_glob
from kairos_mcp.tools.files.staging import HALF, SWAP, fresh_name

TEXT = "a=1\nb=2\na=1\n"

EDITS: list[tuple[str, str | bytes | None, dict[str, Any], str]] = [
    ("EDIT-002", TEXT, {"old_string": "a=1", "new_string": "a=9"}, "match_many"),
    ("EDIT-003", TEXT, {"old_string": "", "new_string": "q"}, "bad_arguments"),
    ("EDIT-004", "", {"old_string": "", "new_string": "q"}, "bad_arguments"),
    ("EDIT-005", TEXT, {"old_string": "b=2", "new_string": "b=2"}, "no_change"),
    ("EDIT-010", bytes(range(256)), {"old_string": "abc", "new_string": "x"}, "binary_file"),
    ("EDIT-022", None, {"path": "no/such.py", "old_string": "x", "new_string": "y"}, "not_found"),
    ("EDIT-021", TEXT, {"path": "real", "old_string": "x", "new_string": "y"}, "not_regular_file"),
    ("EDIT-026", TEXT, {"old_string": "b=2", "new_string": "b=\ud800"}, "bad_arguments"),
    ("EDIT-035", TEXT, {"old_string": "(a=1|b=2)", "new_string": "\\1"}, "match_none"),
]

KEPT: list[tuple[str, bytes, str, str, bytes]] = [
    ("EDIT-011", b"a\r\nb\r\n", "a\nb", "a\nc", b"a\r\nc\r\n"),
    ("EDIT-011", b"a\r\nb\r\n", "b", "b\nc", b"a\r\nb\r\nc\r\n"),
    ("EDIT-012", b"a\r\nb\nc\r\n", "b\n", "c\n", b"a\r\nc\nc\r\n"),
    ("EDIT-013", b"\xef\xbb\xbfa=1\n", "a=1", "a=2", b"\xef\xbb\xbfa=2\n"),
    ("EDIT-016", b"a\nb", "b", "c", b"a\nc"),
    ("EDIT-035", b"b=2\n", "b=2", r"\1 $& \g<0> {0} %s", rb"\1 $& \g<0> {0} %s" + b"\n"),
]

PLANS: list[tuple[str, list[dict[str, str]], str]] = [
    (
        "EDIT-006",
        [{"old_string": "a=1\nb", "new_string": "x"}, {"old_string": "b=2\na", "new_string": "y"}],
        "overlapping_edits",
    ),
    (
        "EDIT-007",
        [{"old_string": "b=2", "new_string": "c=3"}, {"old_string": "c=3", "new_string": "d=4"}],
        "match_none",
    ),
]

PATHS = [
    ("PATH-002", "real/../../W-secret/f", "path_denied"),
    ("PATH-003", "../W-secret/f", "path_denied"),
    ("PATH-004", "/etc/passwd", "path_denied"),
    ("PATH-007", "lnd/f", "path_denied"),
    ("PATH-008", "inln", "path_denied"),
    ("PATH-009", "loop", "path_denied"),
    ("PATH-015", "real/f\x00.txt", "bad_arguments"),
    ("PATH-016", "x" * 300, "path_denied"),
    ("PATH-017", "a/" * 3000 + "b", "bad_arguments"),
    ("PATH-019", ".", "not_regular_file"),
    ("PATH-021", "fifo", "not_regular_file"),
    ("PATH-026", "C:\\Windows\\win.ini", "bad_arguments"),
    ("PATH-027", "..\\..\\evil", "bad_arguments"),
    ("PATH-028", "\\\\server\\share\\x", "bad_arguments"),
    ("PATH-031", "file:///etc/passwd", "bad_arguments"),
    ("PATH-037", ".KAIROS/policy.toml", "path_denied"),
    ("PATH-037", ".Git/config", "path_denied"),
    ("PATH-038", ".git/hooks/post-checkout", "path_denied"),
    ("PATH-038", "sub/.git/config", "path_denied"),
    ("PATH-041", "real/\udcff", "bad_arguments"),
]


def works(tools: WorkspaceTools) -> None:
    """The call afterwards."""
    tools.write({"works": "one"})
    assert not tools.call("edit_file", path="works", old_string="one", new_string="two").is_error
    assert (tools.workspace / "works").read_text() == "two"
    os.unlink(tools.workspace / "works")


def bytes_in(tools: WorkspaceTools) -> dict[str, bytes]:
    found = (path for path in tools.workspace.rglob("*") if path.is_file() and not path.is_symlink())
    return {str(path): path.read_bytes() for path in found}


@pytest.mark.parametrize(("case", "content", "edit", "code"), EDITS)
def test_an_edit_that_does_not_fit_is_refused_and_changes_nothing(
    writing_tools: WorkspaceTools, case: str, content: str | bytes | None, edit: dict[str, Any], code: str
) -> None:
    if content is not None:
        writing_tools.write({"t.py": content})
    before = bytes_in(writing_tools)
    arguments = {"path": "t.py"} | edit
    result = writing_tools.call("edit_file", **arguments)
    assert (result.is_error, result.code) == (True, code), case
    assert result.data["hint"]
    with pytest.raises(KairosError) as caught:  # nobody is asked about it either
        writing_tools.preview("edit_file", **arguments)
    assert caught.value.code == code
    assert bytes_in(writing_tools) == before
    works(writing_tools)


def test_edit_002_the_places_are_counted_and_named(writing_tools: WorkspaceTools) -> None:
    writing_tools.write({"t.py": TEXT})
    text = writing_tools.call("edit_file", path="t.py", old_string="a=1", new_string="a=9").content
    assert "2 times in t.py: line 1, 3." in text


@pytest.mark.parametrize(("case", "content", "old", "new", "after"), KEPT)
def test_every_byte_beside_the_edit_is_kept(
    writing_tools: WorkspaceTools, case: str, content: bytes, old: str, new: str, after: bytes
) -> None:
    writing_tools.write({"t.txt": content})
    assert not writing_tools.call("edit_file", path="t.txt", old_string=old, new_string=new).is_error, case
    assert (writing_tools.workspace / "t.txt").read_bytes() == after


@pytest.mark.parametrize("tool", ["plan_edits", "apply_edits"])
@pytest.mark.parametrize(("case", "edits", "code"), PLANS)
def test_a_plan_of_which_one_edit_does_not_fit_is_refused_whole(
    writing_tools: WorkspaceTools, case: str, edits: list[dict[str, str]], code: str, tool: str
) -> None:
    writing_tools.write({"t.py": TEXT, "u.py": "u"})
    also = {"path": "u.py", "old_string": "u", "new_string": "v"}
    result = writing_tools.call(tool, edits=[also, *({"path": "t.py", **edit} for edit in edits)])
    assert (result.is_error, result.code) == (True, code), case
    assert (writing_tools.content()["t.py"], writing_tools.content()["u.py"]) == (TEXT, "u")
    works(writing_tools)


def test_edit_019_a_link_that_took_the_file_s_place_is_not_followed(writing_tools: WorkspaceTools) -> None:
    writing_tools.write({"t.py": TEXT})
    edit = {"path": "t.py", "old_string": "b=2", "new_string": "b=3"}
    shown = writing_tools.preview("edit_file", **edit)
    secret = writing_tools.workspace.parent / "W-secret" / "f"
    secret.write_text(TEXT)
    os.unlink(writing_tools.workspace / "t.py")
    os.symlink("../W-secret/f", writing_tools.workspace / "t.py")
    assert writing_tools.call_approved("edit_file", shown, **edit).code == "path_denied"
    assert secret.read_text() == TEXT


def test_edit_029_a_plan_is_named_and_can_not_be_brought_along(writing_tools: WorkspaceTools) -> None:
    writing_tools.write({"t.py": TEXT})
    planned = writing_tools.call("plan_edits", edits=[{"path": "t.py", "old_string": "b=2", "new_string": "b=3"}])
    plan_id = planned.data["plan_id"]
    for evil in ({"new_string": "evil"}, {"edits": [{"path": "t.py", "old_string": "b=2", "new_string": "evil"}]}):
        assert writing_tools.call("apply_edit_plan", plan_id=plan_id, **evil).code == "bad_arguments"
    assert writing_tools.call("apply_edit_plan", plan_id="0" * 32).code == "not_found"
    assert writing_tools.content()["t.py"] == TEXT
    assert not writing_tools.call("apply_edit_plan", plan_id=plan_id).is_error
    assert "b=3" in writing_tools.content()["t.py"]


def test_edit_034_what_is_written_beside_a_file_is_taken_by_no_glob_over_sources() -> None:
    for name in (fresh_name("0123456789abcdef", HALF), fresh_name("0123456789abcdef", SWAP)):
        assert name.startswith(".")
        assert not any(compile_glob(pattern)(name) for pattern in ("*.py", "*.lock", "t*", "*.t*"))


@pytest.mark.parametrize(("case", "path", "code"), PATHS)
def test_a_bad_path_is_not_written(writing_tools: WorkspaceTools, case: str, path: str, code: str) -> None:
    before, outside = bytes_in(writing_tools), writing_tools.workspace.parent / "W-secret"
    results = [
        writing_tools.call("write_file", path=path, content="evil"),
        writing_tools.call("edit_file", path=path, old_string="SECRET", new_string="evil"),
        writing_tools.call("plan_edits", edits=[{"path": path, "old_string": "SECRET", "new_string": "evil"}]),
        writing_tools.call("apply_edits", edits=[{"path": path, "old_string": "SECRET", "new_string": "evil"}]),
    ]
    assert {result.code for result in results} == {code}, case
    assert all("SECRET" not in result.content and len(result.content) < 600 for result in results)
    assert bytes_in(writing_tools) == before
    assert (os.listdir(outside), (outside / "f").read_text()) == (["f"], "SECRET")
    works(writing_tools)


@pytest.mark.parametrize("path", ["~/.ssh/id_rsa", "$HOME/.ssh/id_rsa", "W-secret/f", "CON", "real/f::$DATA"])
def test_a_name_is_a_name_and_nothing_is_expanded(writing_tools: WorkspaceTools, path: str) -> None:
    """PATH-003, 029, 030, 032, 033: they lie in the workspace, like any other."""
    assert not writing_tools.call("write_file", path=path, content="x").is_error
    assert writing_tools.content()[path] == "x"
    assert (writing_tools.workspace.parent / "W-secret" / "f").read_text() == "SECRET"
