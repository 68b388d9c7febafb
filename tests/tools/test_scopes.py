"""Whose file a path is: the server's own files are found where they really lie, and no run writes them."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from support.tools import READ_BYTES, WorkspaceTools

import kairos_mcp
from kairos_mcp.core.errors import ConfigError
from kairos_mcp.settings.load import load_settings
from kairos_mcp.settings.settings import Flags
from kairos_mcp.tools import Workspace, builtin_tools
from kairos_mcp.tools.files.workspace_scopes import build_scopes
from kairos_mcp.tools.registry import ToolRegistry


@pytest.mark.parametrize(
    ("path", "scope"),
    [
        ("src/main.py", "L2"),
        (".gitignore", "L2"),
        ("state", "L2"),
        ("other/state/x", "L2"),
        (".git/config", "L0"),
        ("sub/.GIT/hooks/x", "L0"),
        ("state/kairos.db", "L0"),
        ("State/config/prompts/x.md", "L0"),
        ("own.toml", "L0"),
        ("scripts/script.jsonl", "L0"),
        ("AGENTS.md", "L1"),
        ("sub/CLAUDE.md", "L1"),
        (".github/workflows/x.yml", "L1"),
        ("sub/.claude/settings.json", "L1"),
        (".mcp.json", "L1"),
        (".cursorrules", "L1"),
        (".windsurfrules", "L1"),
        ("sub/GEMINI.md", "L1"),
        ("CLAUDE.local.md", "L1"),
        (".codex/config.toml", "L1"),
        (".gemini/settings.json", "L1"),
        (".devcontainer/devcontainer.json", "L1"),
        (".husky/pre-commit", "L1"),
        ("sub/.envrc", "L1"),
    ],
)
def test_a_path_has_a_scope_by_what_lies_there_under_these_settings(tmp_path: Path, path: str, scope: str) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "own.toml").write_text("")
    settings = load_settings(Flags(home=str(tmp_path / "state"), config=str(tmp_path / "own.toml")), {})
    settings = replace(settings, script=tmp_path / "scripts" / "script.jsonl")
    assert build_scopes(tmp_path, settings).scope_of(path) == scope


@pytest.mark.parametrize(
    ("path", "scope"),
    [
        ("CONVENTIONS.md", "L1"),
        ("sub/conventions.md", "L1"),
        (".windsurf/rules/a.md", "L1"),
        ("docs/prompts/deep/a.md", "L1"),
        ("docs/a.md", "L2"),
        ("AGENTS.md", "L1"),
        ("state/CONVENTIONS.md", "L0"),
    ],
)
def test_what_a_person_calls_instructions_is_l1_as_well(tmp_path: Path, path: str, scope: str) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "own.toml").write_text('instructions = ["CONVENTIONS.md", ".windsurf", "docs/prompts/*"]\n')
    settings = load_settings(Flags(home=str(tmp_path / "state"), config=str(tmp_path / "own.toml")), {})
    assert build_scopes(tmp_path, settings).scope_of(path) == scope


def test_instructions_that_could_name_nothing_of_the_workspace_are_refused(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text('instructions = ["/etc/agents"]\n')
    with pytest.raises(ConfigError, match="instructions"):
        load_settings(Flags(home=str(tmp_path / "state"), config=str(tmp_path / "own.toml")), {})


def test_our_own_package_is_ours_also_where_a_link_leads_to_it(tmp_path: Path) -> None:
    package = Path(kairos_mcp.__file__).parent
    assert build_scopes(package.parent).scope_of(f"{package.name}/gate.py") == "L0"
    assert build_scopes(package.parent).scope_of("README.md") == "L2"
    assert build_scopes(package / "tools").scope_of("anything.py") == "L0"
    os.symlink(package.parent, tmp_path / "link")
    assert build_scopes(tmp_path / "link").scope_of(f"{package.name}/gate.py") == "L0"


def test_a_name_with_the_signs_of_a_glob_is_a_name(tmp_path: Path) -> None:
    (tmp_path / "st[a]te*").mkdir()
    scopes = build_scopes(tmp_path, load_settings(Flags(home=str(tmp_path / "st[a]te*")), {}))
    assert (scopes.scope_of("st[a]te*/kairos.db"), scopes.scope_of("state/kairos.db")) == ("L0", "L2")


def test_no_run_writes_the_files_that_rule_the_server(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    settings = load_settings(Flags(home=str(tmp_path / "state")), {})
    with Workspace(tmp_path) as open_workspace:
        built_in = builtin_tools(open_workspace, read_bytes=READ_BYTES, scopes=build_scopes(tmp_path, settings))
        tools = WorkspaceTools(tmp_path, ToolRegistry(built_in))
        tools.write({"state/kairos.toml": "one"})
        before = tools.content()
        edit = {"path": "state/kairos.toml", "old_string": "one", "new_string": "two"}
        assert tools.call("edit_file", **edit).code == "path_denied"
        assert tools.call("write_file", path="state/new.toml", content="x").code == "path_denied"
        assert tools.call("plan_edits", edits=[edit]).code == "path_denied"
        assert tools.call("apply_edits", edits=[edit]).code == "path_denied"
        assert tools.content() == before
        assert not tools.call(
            "write_file", path="AGENTS.md", content="x"
        ).is_error  # that one is the gate's to ask about
