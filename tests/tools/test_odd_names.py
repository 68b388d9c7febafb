"""No name in a workspace blinds a tool: bytes that are no UTF-8, control characters, line ends, very long ones."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from support.tools import WorkspaceTools

from kairos_mcp.core.redaction import Redactor
from kairos_mcp.tools import Workspace, builtin_tools
from kairos_mcp.tools.registry import ToolRegistry
from kairos_mcp.tools.skills import SkillFolders, skill_tool

NAMES = [b"caf\xe9.txt", b"\xff\xfe", b"new\nline.txt", b"\x1b[2J.txt", b"back\\slash.txt", b"http:", b"C:x",
         b"\xe2\x80\xaert.txt", b"n" * 251 + b".txt", b"~", b"-rf", b" lead", b"*"]  # fmt: skip


@pytest.fixture
def odd(tools: WorkspaceTools) -> WorkspaceTools:
    """Each name as a file and as a folder with a file in it, beside plain ones and a .gitignore."""
    root = os.fsencode(tools.workspace)
    for name in NAMES:
        (Path(os.fsdecode(root + b"/" + name))).write_text("needle\n")
        os.mkdir(root + b"/d-" + name[:200])
        Path(os.fsdecode(root + b"/d-" + name[:200] + b"/inner.txt")).write_text("needle\n")
        Path(os.fsdecode(root + b"/d-" + name[:200] + b"/left.pyc")).write_text("needle\n")
    tools.write({".gitignore": "*.pyc\nbuild/\n", "plain.txt": "needle\n", "x.pyc": "needle\n", "build/y": "needle\n"})
    Path(os.fsdecode(root + b"/\xe9.pyc")).write_text("needle\n")
    return tools


@pytest.mark.parametrize("kernel", [True, False])
def test_every_file_is_found_beside_names_that_are_no_text(odd: WorkspaceTools, kernel: bool) -> None:
    with Workspace(odd.workspace, walk=not kernel) as open_workspace:
        tools = WorkspaceTools(odd.workspace, ToolRegistry(builtin_tools(open_workspace, read_bytes=1 << 20)))
        searched = tools.call("search_files", pattern="needle")
        listed = tools.call("list_files", glob="**/*", limit=500)
        tree = tools.call("file_tree", depth=3)
        top = tools.call("list_files", limit=500)
    for result in (searched, listed, tree, top):
        assert not result.is_error
        json.dumps([result.content, result.data], ensure_ascii=False).encode()  # no half of a character in it
        assert any("spelled out" in note for note in result.data["notes"])
        assert "plain.txt" in result.content
        assert "caf\\xe9.txt" in result.content
        assert "new\\nline.txt" in result.content
        assert "\x1b" not in result.content
        assert "\u202e" not in result.content
    assert searched.data["matches"] == 2 * len(NAMES) + 1
    assert "unreadable" not in searched.content
    assert all(name not in searched.content for name in (".pyc", "build/y"))
    assert listed.data["total"] == 2 * len(NAMES) + 2  # and .gitignore itself
    assert tree.content.count("inner.txt") == len(NAMES)


def test_a_gitignore_in_a_folder_whose_name_is_no_text_counts(tools: WorkspaceTools) -> None:
    folder = Path(os.fsdecode(os.fsencode(tools.workspace) + b"/caf\xe9"))
    folder.mkdir()
    for name, text in ((".gitignore", "left.txt\n"), ("left.txt", "needle\n"), ("kept.txt", "needle\n")):
        (folder / name).write_text(text)
    found = tools.call("search_files", pattern="needle")
    assert tools.lines(found) == ["caf\\xe9/kept.txt:1: needle"]


def test_a_name_that_can_be_given_is_read_and_one_that_can_not_is_refused_with_the_reason(odd: WorkspaceTools) -> None:
    for name in ("new\nline.txt", "\u202ert.txt", "~", "-rf", " lead", "*", "n" * 251 + ".txt"):
        assert odd.call("read_file", path=name).content == "needle\n", name
    assert "surrogate" in odd.call("read_file", path="caf\udce9.txt").content
    assert "backslash" in odd.call("read_file", path="caf\\xe9.txt").content
    assert odd.call("read_file", path="n" * 256).code in ("path_denied", "not_found")


def test_a_file_of_a_skill_with_such_a_name_hides_no_other(tmp_path: Path) -> None:
    skill = tmp_path / "skills" / "tidy"
    skill.mkdir(parents=True)
    (skill / "SKILL.md").write_text("---\nname: tidy\ndescription: Tidies.\n---\nTidy.\n")
    (skill / "more.md").write_text("more\n")
    inner = Path(os.fsdecode(os.fsencode(skill) + b"/d\xff"))
    inner.mkdir()
    (inner / "deep.md").write_text("deep\n")
    Path(os.fsdecode(os.fsencode(skill) + b"/caf\xe9.md")).write_text("x\n")
    shelves = SkillFolders([tmp_path / "skills"])
    result = WorkspaceTools(tmp_path, ToolRegistry([skill_tool(shelves, 1 << 20, Redactor())])).call(
        "read_skill", name="tidy"
    )
    shelves.close()
    assert not result.is_error
    assert "more.md" in result.data["files"]
    json.dumps([result.content, result.data], ensure_ascii=False).encode()
