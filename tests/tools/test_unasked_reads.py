"""One decision for all that shows what files hold: read_file, edits, plans, searches, programs, sandboxed servers."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from support.tools import READ_BYTES, WorkspaceTools

from kairos_mcp.core.env_files import is_env_file
from kairos_mcp.core.errors import CommandDenied
from kairos_mcp.core.messages import JsonObject, ToolResult
from kairos_mcp.core.paths import Scopes
from kairos_mcp.core.redaction import Redactor
from kairos_mcp.execution.authorization import ApprovalContext, authorize
from kairos_mcp.execution.tool_calls import Allowed
from kairos_mcp.gate import Gate
from kairos_mcp.gate_calls import GatedCall
from kairos_mcp.settings.table_values import GateRule
from kairos_mcp.tools import builtin_tools
from kairos_mcp.tools.commands.protected_paths import MAX_UNREADABLE, ProtectionRules, survey_protected_paths
from kairos_mcp.tools.commands.run_command import COMMAND_SPEC
from kairos_mcp.tools.registry import ToolRegistry

FILES = (".env", "a.txt", "file", "src/a.py", "src/.env", "private/k.txt", "private/deep/k.txt", "logs/x.log")
ENV = {".env", "src/.env"}
PRIVATE = {"private/k.txt", "private/deep/k.txt"}
EDITS_ALLOWED = GateRule("edit_file", "allow")
READS = GateRule("*", "allow", effect="read")


def of_read(verdict: str, *paths: str, **more: str) -> GateRule:
    return GateRule("read_file", verdict, paths=paths, **more)  # type: ignore[arg-type]  # a verdict


TABLE: dict[str, tuple[tuple[GateRule, ...], set[str]]] = {
    "no rule": ((), ENV),
    "a folder is denied": ((of_read("deny", "private/**"),), ENV | PRIVATE),
    "a folder is asked about": ((of_read("ask", "private/**"),), ENV | PRIVATE),
    "of every tool": ((GateRule("*", "deny", ("private/**",)),), ENV | PRIVATE),
    "all reads are allowed, but for a folder": ((of_read("deny", "private/**"), READS), PRIVATE),
    "a kind of file": ((of_read("deny", "*.txt"),), ENV | PRIVATE | {"a.txt"}),
    "a file of any name": ((of_read("ask", "f*"),), ENV | {"file"}),
    "one such file is allowed": ((of_read("allow", "src/.env"),), {".env"}),
    "all are allowed": ((of_read("allow"),), set()),
    "for another agent": ((of_read("deny", "private/**", agent="somebody"),), ENV),
    "instructions": ((of_read("ask", scope="L1"),), ENV),
}


@pytest.fixture
def tools(tmp_path: Path) -> WorkspaceTools:
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("KEY=1\nother\n")
    return WorkspaceTools(tmp_path, ToolRegistry(builtin_tools(tmp_path, read_bytes=READ_BYTES)))


class Tried:
    """Which files each way keeps from showing what they hold, unless a person is asked."""

    def __init__(self, tools: WorkspaceTools, rules: tuple[GateRule, ...]) -> None:
        self.gate = Gate((*rules, EDITS_ALLOWED), Scopes().scope_of)
        self._tools = tools

    def kept_from(self, name: str) -> set[str]:
        return {path for path in FILES if not self._shows(name, path)}

    def _shows(self, name: str, path: str) -> bool:
        match name:
            case "programs" | "servers":
                return path not in self._survey(name)
            case "searches":
                return f"\n{path}:" in "\n" + self._call("search_files", {"pattern": "KEY|other"})
            case "a search":
                return f"{path}:" in self._call("search_files", {"pattern": "KEY|other", "path": path})
            case "read_file":
                return "other" in self._call("read_file", {"path": path})
            case "edit_file":
                return self._is_told_whether_it_fits({"path": path, "old_string": "nothing", "new_string": "x"})
            case _:
                edit = {"path": path, "old_string": "other", "new_string": "more"}
                return "other" in self._call("plan_edits", {"edits": [edit]})

    def _survey(self, name: str) -> set[str]:
        command = GatedCall(COMMAND_SPEC, {"argv": ["cat"]})
        test = self.gate.hidden_path_test(command) if name == "programs" else self.gate.unreadable_file_test()
        root = os.open(self._tools.workspace, os.O_RDONLY | os.O_DIRECTORY)
        try:
            return set(survey_protected_paths(root, ProtectionRules.from_scopes(Scopes()), (), test).unreadable)
        finally:
            os.close(root)

    def _call(self, name: str, given: JsonObject) -> str:
        """What an unasked call shows."""
        tool = self._tools.tool(name)
        call = GatedCall(tool.spec, given)
        if self.gate.judge(call).decision != "allow":
            return ""
        is_hidden = self.gate.secret_file_test(tool.spec) or self.gate.hidden_path_test(call)  # as runs ask
        return tool.run(given, replace(self._tools.context(), is_hidden=is_hidden)).content

    def _is_told_whether_it_fits(self, given: JsonObject) -> bool:
        tool = self._tools.tool("edit_file")
        context = ApprovalContext(str(self._tools.workspace), Redactor(), 1_000)
        found = authorize(self.gate, GatedCall(tool.spec, given), tool, self._tools.context(), context)
        return isinstance(found, Allowed) or (isinstance(found, ToolResult) and found.data["code"] == "match_none")


WAYS = ("read_file", "edit_file", "plan_edits", "a search", "searches", "programs", "servers")


@pytest.mark.parametrize("what", TABLE)
def test_what_may_not_be_read_unasked_is_shown_by_no_way(tools: WorkspaceTools, what: str) -> None:
    rules, kept = TABLE[what]
    tried = Tried(tools, rules)
    assert {way: tried.kept_from(way) for way in WAYS} == dict.fromkeys(WAYS, kept)


@pytest.mark.parametrize("rules", [(of_read("ask"),), (of_read("deny"),), (of_read("ask", "**"),)])
def test_where_no_file_is_read_unasked_others_keep_what_rules_name_and_files_like_env(
    tools: WorkspaceTools, rules: tuple[GateRule, ...]
) -> None:
    tried = Tried(tools, (of_read("deny", "private/**"), *rules))
    for way in ("read_file", "edit_file"):
        assert tried.kept_from(way) == set(FILES)
    for way in ("programs", "servers", "searches", "a search", "plan_edits"):
        assert tried.kept_from(way) == ENV | PRIVATE, way


def test_where_a_rule_allows_one_folder_all_others_are_kept(tools: WorkspaceTools) -> None:
    tried = Tried(tools, (of_read("allow", "src/*"), of_read("ask")))
    kept = set(FILES) - {"src/a.py", "src/.env"}
    ways = set(WAYS) - {"searches"}
    assert {way: tried.kept_from(way) for way in ways} == dict.fromkeys(ways, kept)
    assert tried.kept_from("searches") >= kept  # from above, a folder that no rule allows by itself is left out


def test_a_search_that_a_rule_allows_opens_files_like_env_and_none_that_read_file_is_denied(
    tools: WorkspaceTools,
) -> None:
    tried = Tried(tools, (GateRule("search_files", "allow"), of_read("deny", "private/**")))
    assert tried.kept_from("searches") == tried.kept_from("a search") == PRIVATE
    assert Tried(tools, (GateRule("search_files", "allow"),)).kept_from("searches") == set()


def test_a_search_that_a_person_is_asked_about_shows_no_file_that_read_file_is_denied(tools: WorkspaceTools) -> None:
    rules = (of_read("deny", "private/**"), of_read("ask", "logs/*"), GateRule("search_files", "ask", ("src/*",)))
    gate, tool = Gate(rules, Scopes().scope_of), tools.tool("search_files")
    call = GatedCall(tool.spec, given := {"pattern": "KEY", "path": "src/a.py"})
    assert gate.judge(call).decision == "ask"
    is_hidden = gate.hidden_path_test(call)
    assert is_hidden is not None
    assert {path for path in FILES if is_hidden(path)} == PRIVATE, given


def test_where_a_sandbox_can_not_cover_so_many_files_the_folders_that_hold_them_are_named(tmp_path: Path) -> None:
    """A program may have made them; a person has to find them."""
    for name in (".env", *(f"build/made/.env.{n}" for n in range(MAX_UNREADABLE))):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    root = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with pytest.raises(CommandDenied) as denied:
            survey_protected_paths(root, ProtectionRules(), (), is_env_file)
        (tmp_path / ".env").unlink()
        assert len(survey_protected_paths(root, ProtectionRules(), (), is_env_file).unreadable) == MAX_UNREADABLE
    finally:
        os.close(root)
    assert f"build/made ({MAX_UNREADABLE})" in denied.value.message
    assert "remove" in denied.value.hint
