"""One list says which files of a workspace instruct agents or start programs, and all that protects them goes by it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from support.sources import nodes_with

from kairos_mcp.cli.hosts import HOSTS
from kairos_mcp.core import instruction_files
from kairos_mcp.core.instruction_files import INSTRUCTION_FILES, INSTRUCTION_GLOBS
from kairos_mcp.core.messages import ToolSpec
from kairos_mcp.core.paths import Globs, Scopes
from kairos_mcp.gate import Gate
from kairos_mcp.gate_calls import GatedCall
from kairos_mcp.settings.table_values import GateRule
from kairos_mcp.tools.touched_paths import TouchedPaths

READ_UNASKED = [
    *(".zed/settings.json", "opencode.json", ".windsurf/rules/x.md", ".clinerules", ".clinerules/hooks/PreToolUse"),
    *(".roo/mcp.json", ".goosehints", ".kiro/settings/mcp.json", ".amazonq/rules/x.md", ".junie/mcp/mcp.json"),
    *(".continue/mcpServers/x.yaml", ".idea/workspace.xml", "app.code-workspace", "mise.toml", ".mise.local.toml"),
    *(".pre-commit-config.yaml", ".aider.conf.yml", "QWEN.md", "lefthook.yml", ".config/lefthook.json", ".envrc"),
    *(".github/copilot-instructions.md", ".devcontainer.json", ".husky/pre-commit", ".gitattributes", ".gitmodules"),
    *(".vscode/tasks.json", "sub/.vscode/mcp.json", "sub/.cursor/mcp.json", "CRUSH.md", ".kilocode/mcp.json"),
    *(".hg/hgrc", "sub/.hg/hgrc", ".jj/repo/config.toml", "sub/.jj/repo/config.toml"),
    *(".nvim.lua", ".dir-locals.el", "x.sublime-project", ".tool-versions", ".Idea/workspace.xml", "LEFTHOOK.YML"),
]
BUILT_AND_TESTED = [
    *("Makefile", "package.json", "conftest.py", "tox.ini", "pyproject.toml", "Cargo.toml", "Dockerfile", ".gitignore"),
    *(
        "src/rules",
        "docs/cursor.md",
        "idea/notes.md",
        "lefthook.go",
        "hooks/useRunner.ts",
        "code/user.py",
        ".editorconfig",
    ),
]
ELSEWHERE = [  # where other systems than this one keep what `install` writes
    *("Library/Application Support/Claude/claude_desktop_config.json", "AppData/Roaming/Code/User/mcp.json"),
    *("Library/Application Support/Code/User/mcp.json", "AppData/Roaming/Claude/claude_desktop_config.json"),
]


@pytest.mark.parametrize("path", READ_UNASKED)
def test_what_a_host_an_editor_a_shell_or_git_reads_by_itself_is_an_instruction(path: str) -> None:
    assert Scopes().scope_of(path) == "L1"


@pytest.mark.parametrize("path", BUILT_AND_TESTED)
def test_what_builds_and_tests_a_project_is_not(path: str) -> None:
    assert Scopes().scope_of(path) == "L2"


def test_all_that_install_writes_is_in_the_list() -> None:
    """In a project, and in a home folder that is a workspace."""
    home = Path("/home/anna")
    projects = [host.projects_file for host in HOSTS.values() if host.projects_file is not None]
    users = [host.users_file({}, home).relative_to(home).as_posix() for host in HOSTS.values()]
    assert len(projects) >= 6
    assert {path: Scopes().scope_of(path) for path in (*projects, *users, *ELSEWHERE)} == dict.fromkeys(
        (*projects, *users, *ELSEWHERE), "L1"
    )


def test_each_row_says_who_reads_the_files_and_where_that_is_documented() -> None:
    assert len({files.reader for files in INSTRUCTION_FILES}) >= 20
    assert len(INSTRUCTION_GLOBS) == sum(len(files.globs) for files in INSTRUCTION_FILES)  # none stands there twice
    for files in INSTRUCTION_FILES:
        assert re.match(r"https://|docs/\w+\.md$", files.documented), files


def test_the_scope_of_a_path_and_the_search_before_a_program_go_by_the_same_globs() -> None:
    searched = Globs.compile(Scopes().instructions)
    for path in (*READ_UNASKED, *BUILT_AND_TESTED):
        tops = ["/".join(path.split("/")[: depth + 1]) for depth in range(path.count("/") + 1)]
        assert any(map(searched.matches, tops)) == (Scopes().scope_of(path) == "L1"), path


@pytest.mark.parametrize("path", [".zed/settings.json", "sub/.pre-commit-config.yaml"])
def test_no_rule_allows_an_edit_there_unasked(path: str) -> None:
    edit = ToolSpec("write_file", "", {}, effect="checked")
    gate = Gate((GateRule("*", "allow"), GateRule("*", "allow", ("*",))), Scopes().scope_of)
    for name, verdict in ((path, "ask"), ("src/main.py", "allow")):
        assert gate.judge(GatedCall(edit, {"path": name})).decision == verdict


@pytest.mark.parametrize("name", [".zed", "x.code-workspace", ".envrc"])
def test_a_call_of_another_server_that_names_one_touches_it(tmp_path: Path, name: str) -> None:
    tool = ToolSpec("save", "", {}, source="mcp:x", effect="irreversible")
    touched = TouchedPaths(tmp_path, Scopes()).find(tool, {"document": name})
    assert touched.inside == (name,)


def test_no_other_module_has_a_list_of_its_own() -> None:
    """But for where `install` writes, where `tools import` reads, and the names that a placeholder holds."""
    own = {"core/instruction_files.py", "cli/hosts.py", "cli/tools_import.py", "tools/commands/protected_paths.py"}
    telling = {glob for glob in INSTRUCTION_GLOBS if glob[0] == "." and "/" not in glob} - {".mcp.json", ".claude"}
    found: dict[str, set[str]] = {}
    for file, node in nodes_with(telling):
        if isinstance(node, ast.Constant) and node.value in telling and file not in own:
            found.setdefault(file, set()).add(node.value)
    assert found == {}
    assert instruction_files.INSTRUCTION_GLOBS is Scopes().instructions
