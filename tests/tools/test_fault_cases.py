"""The PATH and SEARCH cases of fault_cases.json, as far as reading goes; each followed by a call that works.

Not here, and why:
PATH-010 is in test_race.py, PATH-014 and PATH-045 in test_workspace.py and test_files.py.
PATH-025 (editing a hard link), PATH-037, PATH-038 are in test_writing.py and test_edit_cases.py.
  Reading a hard link is allowed: no policy forbids it, and package stores link whole trees.
PATH-029, and the Windows half of PATH-026 and PATH-030: Windows.
PATH-043, the roots of a client, is in tests/server/test_roots.py: no part reads them.
SEARCH-006 and SEARCH-012 are in test_search.py with smaller trees.
SEARCH-014: no ripgrep is started, so nothing reads its configuration.
The cases' `bad_pattern` is `bad_arguments` by their own code map.
"""

from __future__ import annotations

import time

import pytest
from support.tools import WorkspaceTools

PATHS = [
    ("PATH-002", "real/../../ws-secret/f", "path_denied"),
    ("PATH-002", "real/../../W-secret/f", "path_denied"),
    # As written it names W/W-secret/f, which is not there; the sibling itself is ../W-secret/f.
    ("PATH-003", "W-secret/f", "not_found"),
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
    ("PATH-026", "C:win.ini", "bad_arguments"),
    ("PATH-027", "..\\..\\evil", "bad_arguments"),
    ("PATH-028", "\\\\server\\share\\x", "bad_arguments"),
    ("PATH-030", "real/f::$DATA", "not_found"),
    ("PATH-031", "file:///etc/passwd", "bad_arguments"),
    ("PATH-032", "~/.ssh/id_rsa", "not_found"),
    ("PATH-033", "$HOME/.ssh/id_rsa", "not_found"),
    ("PATH-041", "real/\udcff", "bad_arguments"),
]

PATTERNS = [
    ("SEARCH-002", r"(\w+)\1"),
    ("SEARCH-003", "((a{1,100}){1,100}){1,100}"),
    ("SEARCH-004", "(" * 10_000),
    ("SEARCH-004", "(" * 1_000),
]


@pytest.mark.parametrize(("case", "path", "code"), PATHS)
def test_a_bad_path_is_refused_by_reading_and_the_next_call_works(
    trapped_tools: WorkspaceTools, case: str, path: str, code: str
) -> None:
    result = trapped_tools.call("read_file", path=path)
    assert (result.is_error, result.code) == (True, code), case
    assert "SECRET" not in result.content
    assert len(result.content) < 600
    assert trapped_tools.call("read_file", path="real/f").content == "inside"


@pytest.mark.parametrize("tool", ["list_files", "file_tree", "search_files"])
@pytest.mark.parametrize(("case", "path", "code"), [row for row in PATHS if row[1] not in (".", "fifo")])
def test_a_bad_path_is_refused_by_listing_and_searching(
    trapped_tools: WorkspaceTools, tool: str, case: str, path: str, code: str
) -> None:
    more = {"pattern": "."} if tool == "search_files" else {}
    result = trapped_tools.call(tool, path=path, **more)
    assert (result.is_error, result.code) == (True, code), case
    assert trapped_tools.call("list_files", path="real").content == "real/f"


def test_a_fifo_is_refused_at_once(trapped_tools: WorkspaceTools) -> None:
    began = time.monotonic()
    assert trapped_tools.call("read_file", path="fifo").code == "not_regular_file"
    assert time.monotonic() - began < 1  # PATH-021 says 100 ms; a blocked open would never end


def test_a_search_of_everything_stays_inside_and_follows_no_link(trapped_tools: WorkspaceTools) -> None:
    (trapped_tools.workspace / "hard").unlink()  # a second name of the secret itself, no way out of the workspace
    result = trapped_tools.call("search_files", pattern="inside|SECRET")
    assert trapped_tools.lines(result) == ["real/f:1: inside"]


@pytest.mark.parametrize(("case", "pattern"), PATTERNS)
def test_a_bad_pattern_is_refused_and_the_next_call_works(tools: WorkspaceTools, case: str, pattern: str) -> None:
    tools.write({"a": "a" * 30 + "!"})
    tools.kept["ref"] = "text"
    for tool, more in (
        ("search_files", {"pattern": pattern}),
        ("read_result", {"ref": "ref", "grep": pattern}),
    ):
        result = tools.call(tool, **more)
        assert (result.is_error, result.code) == (True, "bad_arguments"), case
        assert len(result.content) < 400
    assert tools.call("search_files", pattern="a!").data["matches"] == 1


def test_search_001_a_bait_for_backtracking_ends_at_once(tools: WorkspaceTools) -> None:
    tools.write({"a": "a" * 30 + "!"})
    tools.call("search_files", pattern="warm")
    began = time.monotonic()
    result = tools.call("search_files", pattern="(a+)+$")
    assert time.monotonic() - began < 1  # by backtracking it takes over 10 s
    assert result.data["matches"] == 0


@pytest.mark.parametrize("bomb", ["**/" * 200, "**/" * 9, "a" * 257, "{" * 40])
def test_search_013_a_glob_bomb_is_refused(tools: WorkspaceTools, bomb: str) -> None:
    assert tools.call("list_files", glob=bomb).code == "bad_arguments"
    assert tools.call("search_files", pattern="x", glob=bomb).code == "bad_arguments"
    assert not tools.call("list_files", glob="**/*.py").is_error
