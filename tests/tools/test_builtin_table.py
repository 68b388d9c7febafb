"""The table of built-in tools says the truth about the tools that are built, and nobody makes one without a row."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any, cast

import pytest
from support.sources import PACKAGE, nodes_with
from support.tools import READ_BYTES, WorkspaceTools

from kairos_mcp.app.proposals import reserved_tool_names
from kairos_mcp.core.builtin_tools import BUILTIN, BuiltinTool, Needs, names_where
from kairos_mcp.core.messages import ToolCall, ToolSet, ToolSpec
from kairos_mcp.core.paths import Scopes
from kairos_mcp.core.redaction import Redactor
from kairos_mcp.core.tool import Tool
from kairos_mcp.execution.sibling_changes import SiblingChanges
from kairos_mcp.server.tools import TOOLS
from kairos_mcp.tools import CommandSettings, SkillFolders, Workspace, builtin_tools, network_tools
from kairos_mcp.tools.files.content_hash import plain_hash
from kairos_mcp.tools.files.edit_tools import EditRules
from kairos_mcp.tools.mandate_tools import check_file_tool, read_mandate_tool
from kairos_mcp.tools.selection import search_tool
from kairos_mcp.tools.stage.moving import moving_tools
from kairos_mcp.tools.stage.submit import submit_tool
from kairos_mcp.tools.team_tools import plan_problem_tool
from kairos_mcp.tools.touched_paths import read_named_paths

NOTHING = cast(Any, None)  # what a tool asks at its calls alone
AN_EDIT = {"path": "a.txt", "old_string": "old", "new_string": "new"}
# A call of each tool that edits, on a workspace whose `a.txt` holds "old"; PLAN stands for the id of such a plan.
EDITING_CALLS: dict[str, dict[str, Any]] = {
    "edit_file": AN_EDIT,
    "write_file": {"path": "a.txt", "content": "new"},
    "plan_edits": {"edits": [AN_EDIT]},
    "apply_edit_plan": {"plan_id": "PLAN"},
    "apply_edits": {"edits": [AN_EDIT]},
}
# A call of each tool that a task looks with, at the same file.
LOOKS: dict[str, dict[str, Any]] = {
    "read_file": {"path": "a.txt"},
    "plan_edits": {"edits": [{"path": "a.txt", "old_string": "n", "new_string": "m"}]},
}
MAKERS: dict[Needs, str] = {
    "nothing": "builtin_tools",
    "workspace": "builtin_tools",
    "commands": "builtin_tools",
    "skills": "builtin_tools",
    "web": "network_tools",
    "many_tools": "search_tool",
    "team": "plan_problem_tool",
    "mandate": "read_mandate_tool, check_file_tool",
    "stage": "moving_tools, submit_tool",
}


def make(workspace: Path | None, *needs: Needs) -> list[Tool]:
    """The tools that are built where there is what these need."""
    commands = CommandSettings("sandboxed" if "commands" in needs else "off")
    skills = SkillFolders([]) if "skills" in needs else None
    made = builtin_tools(workspace, read_bytes=READ_BYTES, commands=commands, skill_folders=skills)
    if "web" in needs:
        made += network_tools(NOTHING, (), NOTHING, with_fetch=True)
    if "many_tools" in needs:
        made.append(search_tool(ToolSet()))
    if "team" in needs:
        made.append(plan_problem_tool())
    if "stage" in needs:
        with Workspace(cast(Path, workspace)) as opened:
            rules = EditRules(opened, Scopes(), READ_BYTES, Redactor(), plain_hash)
            made += [*moving_tools(rules), submit_tool(NOTHING, rules)]
    if "mandate" in needs:
        with Workspace(cast(Path, workspace)) as opened:
            made += [read_mandate_tool(NOTHING), check_file_tool(opened, Redactor())]
    return made


@pytest.mark.parametrize("need", MAKERS)
def test_each_need_brings_exactly_the_tools_of_its_rows(need: Needs, tmp_path: Path) -> None:
    there: set[Needs] = {"nothing"}
    if need in ("workspace", "commands", "mandate", "stage"):
        there.add("workspace")
    there.add(need)
    made = make(tmp_path if "workspace" in there else None, *there)
    assert {tool.spec.name for tool in made} == set(names_where(lambda tool: tool.needs in there))
    assert all(BUILTIN[tool.spec.name].is_tool(tool.spec) for tool in made)


def test_the_needs_of_the_table_are_all_built_here() -> None:
    assert {tool.needs for tool in BUILTIN.values()} == set(MAKERS)


def test_a_spec_of_a_built_in_tool_is_made_by_its_row_alone() -> None:
    """Whoever else makes a spec says where the tool comes from, so a tool without a row can't be made."""
    made = [
        (file, node)
        for file, node in nodes_with(["ToolSpec"])
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "ToolSpec"
    ]
    of_rows = {module for module, node in made if not _says_its_source(node)}
    assert of_rows == {"core/builtin_tools.py", "core/messages.py"}  # the latter reads stored ones


def _says_its_source(node: ast.Call) -> bool:
    given = [*node.args[5:], *(each.value for each in node.keywords if each.arg == "source")]
    return bool(given) and not any(isinstance(each, ast.Constant) and each.value == "builtin" for each in given)


def test_a_tool_of_a_caller_with_the_name_of_ours_is_judged_by_what_it_names() -> None:
    """Ours reads in no workspace, and a path that it is given is none of the workspace's; that of another may be."""
    schema = {"type": "object", "properties": {"path": {"type": "string"}}}
    ours, theirs = (ToolSpec("read_skill", "", schema, "read", source=source) for source in ("builtin", "caller"))
    assert read_named_paths(ours, {"path": ".env"}) == ()
    assert read_named_paths(theirs, {"path": ".env"}) == (".env",)


def test_a_tool_that_edits_names_the_files_in_its_data(tools: WorkspaceTools) -> None:
    for name in names_where(lambda tool: tool.edits != "none"):
        tools.write({"a.txt": "old"})
        result = tools.call(name, **_arguments(tools, name))
        assert [file["path"] for file in result.data["files"]] == ["a.txt"], name
        assert all(file.keys() >= {"path", "before", "after"} for file in result.data["files"]), name
        changed = tools.content()["a.txt"] == "new"
        assert changed == (BUILTIN[name].edits != "plans") == (BUILTIN[name].effect == "checked"), name


def test_a_tracked_tool_that_has_not_seen_the_change_of_another_task_is_refused(tools: WorkspaceTools) -> None:
    """Each such tool has a case in SiblingChanges: its files are known before and after its call."""
    for name in names_where(lambda tool: tool.is_tracked):
        changes, call = _change_a_file(tools, name)
        second = "task-2/try-1/round-1/call-1"
        assert changes.may_change(second, call), name
        assert changes.refusal(second, call) is not None, name


def test_a_look_at_a_file_lets_a_task_change_it(tools: WorkspaceTools) -> None:
    for name in names_where(lambda tool: tool.is_look):
        changes, _ = _change_a_file(tools, "edit_file")
        look = ToolCall("look", name, LOOKS[name])
        changes.begin("task-2/try-1/round-1/call-1", look)
        changes.end("task-2/try-1/round-1/call-1", look, tools.call(name, **look.arguments))
        write = ToolCall("write", "write_file", EDITING_CALLS["write_file"])
        assert changes.refusal("task-2/try-1/round-2/call-1", write) is None, name


def _arguments(tools: WorkspaceTools, name: str) -> dict[str, Any]:
    if EDITING_CALLS[name] == {"plan_id": "PLAN"}:
        return {"plan_id": tools.call("plan_edits", **EDITING_CALLS["plan_edits"]).data["plan_id"]}
    return EDITING_CALLS[name]


def _change_a_file(tools: WorkspaceTools, name: str) -> tuple[SiblingChanges, ToolCall]:
    """What is known after task 1 changed the file with this tool, and its call."""
    tools.write({"a.txt": "old"})
    changes, first = SiblingChanges(), "task-1/try-1/round-2/call-1"
    plan = ToolCall("plan", "plan_edits", EDITING_CALLS["plan_edits"])
    if "plan_id" in EDITING_CALLS[name]:
        changes.begin("task-1/try-1/round-1/call-1", plan)
        changes.end("task-1/try-1/round-1/call-1", plan, tools.call("plan_edits", **plan.arguments))
    call = ToolCall("change", name, _arguments(tools, name))
    changes.begin(first, call)
    changes.end(first, call, tools.call(name, **call.arguments))
    return changes, call


def test_a_tool_whose_row_says_no_more_than_its_name_is_left_out_of_every_list() -> None:
    """So a new row is safe as it stands: what it says beside its name is what its author decided."""
    plain = BuiltinTool("a_tool")
    assert (plain.effect, plain.needs, plain.edits) == ("read", "workspace", "none")
    assert not any(value for value in plain[3:] if value not in ("none", "usual"))


def test_the_reserved_names_are_those_of_tools_that_exist() -> None:
    assert reserved_tool_names() == set(BUILTIN) | {tool.name for tool in TOOLS}


def test_no_call_of_the_package_spells_the_name_of_a_tool_beside_its_row() -> None:
    """Code that calls a tool, or treats it apart, reads the name from the row."""
    spelled = [
        (file, node.lineno, node.value)
        for file, node in nodes_with(BUILTIN)
        if isinstance(node, ast.Constant) and node.value in BUILTIN and not _is_key_of_table(PACKAGE / file, node)
    ]
    listed = {tool["name"] for tool in json.loads((PACKAGE / "server" / "listing.json").read_text())["tools"]}
    assert [found for found in spelled if found[2] not in listed] == []


def _is_key_of_table(path: Path, node: ast.Constant) -> bool:
    """Whether the name stands in the table, or picks its row: `BUILTIN["read_file"]`."""
    if path.name == "builtin_tools.py":
        return True
    line = path.read_text().splitlines()[node.lineno - 1]
    return f'BUILTIN["{node.value}"]' in line
