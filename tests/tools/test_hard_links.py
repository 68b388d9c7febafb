"""Another name of a file like .env is opened by no tool and covered for programs, and costs others nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.tools import WorkspaceTools

from kairos_mcp.core.env_files import is_env_file
from kairos_mcp.core.errors import PathDenied
from kairos_mcp.core.redaction import Redactor
from kairos_mcp.tools.commands.protected_paths import ProtectionRules, survey_protected_paths
from kairos_mcp.tools.files import hard_links
from kairos_mcp.tools.files.workspace import Workspace
from kairos_mcp.tools.mandate_tools import check_file_tool

ENV = b"PIN=quaggazebra\n"
EDIT = {"old_string": "PIN=quagga", "new_string": "x"}


@pytest.fixture
def linked(tools: WorkspaceTools) -> WorkspaceTools:
    """A workspace in which `src/notes.txt` is another name of `.env`."""
    tools.write({".env": ENV, "src/a.txt": b"PIN=1\n"})
    os.link(tools.workspace / ".env", tools.workspace / "src/notes.txt")
    return tools


def test_no_tool_opens_another_name_of_a_file_like_env(linked: WorkspaceTools) -> None:
    for name, arguments in (
        ("read_file", {}),
        ("search_files", {"pattern": "quagga"}),
        ("edit_file", EDIT),
        ("write_file", {"content": "x"}),
        ("plan_edits", {"edits": [{"path": "src/notes.txt", **EDIT}]}),
    ):
        given = arguments if "edits" in arguments else {"path": "src/notes.txt", **arguments}
        result = linked.call(name, **given)
        assert (result.code, "quagga" in result.content.replace("PIN=quagga", "")) == ("path_denied", False), name
    found = linked.call("search_files", pattern="PIN")
    assert [line for line in found.content.split("\n") if line.startswith("src/")] == ["src/a.txt:1: PIN=1"]
    assert linked.content()["src/notes.txt"] == ENV.decode()


def test_no_check_of_a_mandate_tells_what_another_name_of_such_a_file_holds(linked: WorkspaceTools) -> None:
    with Workspace(linked.workspace) as workspace:
        check = check_file_tool(workspace, Redactor())
        with pytest.raises(PathDenied):
            check.run({"path": "src/notes.txt", "text": "PIN"}, linked.context())


def test_a_name_that_came_to_be_after_a_search_is_found_too(linked: WorkspaceTools) -> None:
    assert linked.call("read_file", path="src/notes.txt").code == "path_denied"
    os.link(linked.workspace / "src/a.txt", linked.workspace / "b.txt")
    assert not linked.call("read_file", path="b.txt").is_error
    os.link(linked.workspace / "b.txt", linked.workspace / "prod.env")
    assert linked.call("read_file", path="b.txt").code == "path_denied"


def test_the_file_itself_and_links_among_other_files_are_read(linked: WorkspaceTools) -> None:
    os.link(linked.workspace / "src/a.txt", linked.workspace / "b.txt")
    assert linked.call("read_file", path="b.txt").content == "PIN=1\n"
    assert not linked.call("read_file", path=".env").is_error  # the gate asks about it by its name


def test_names_of_a_file_that_a_rule_protects_are_no_way_around_it(tmp_path: Path) -> None:
    (tmp_path / "private").mkdir()
    (tmp_path / "private/a").write_bytes(ENV)
    os.link(tmp_path / "private/a", tmp_path / "b")
    with Workspace(tmp_path) as workspace:
        with pytest.raises(PathDenied), workspace.open_file("b", is_hidden=lambda path: path.startswith("private/")):
            pass
        with workspace.open_file("b") as opened:
            assert opened.read(100) == ENV


def test_where_too_many_folders_would_have_to_be_searched_only_packages_are_read(
    linked: WorkspaceTools, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hard_links, "MAX_SEARCHED", 1)
    linked.write({"node_modules/p/a.js": b"x\n"})
    os.link(linked.workspace / "node_modules/p/a.js", linked.workspace / "c.js")
    assert linked.call("read_file", path="c.js").code == "path_denied"
    assert linked.call("read_file", path="node_modules/p/a.js").content == "x\n"
    assert linked.call("read_file", path="src/a.txt").content == "PIN=1\n"


@pytest.fixture
def root(linked: WorkspaceTools) -> Iterator[int]:
    fd = os.open(linked.workspace, os.O_RDONLY | os.O_DIRECTORY)
    yield fd
    os.close(fd)


def test_other_names_are_covered_for_programs_wherever_they_lie(linked: WorkspaceTools, root: int) -> None:
    for place in (".git/x", "node_modules/p/y", "d/e/z"):
        (linked.workspace / place).parent.mkdir(parents=True)
        os.link(linked.workspace / ".env", linked.workspace / place)
    os.link(linked.workspace / "src/a.txt", linked.workspace / "b.txt")
    found = survey_protected_paths(root, ProtectionRules(), (), is_env_file).unreadable
    assert set(found) == {".env", "src/notes.txt", ".git/x", "node_modules/p/y", "d/e/z"}
