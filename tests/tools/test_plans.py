"""Several edits at once: shown without any change, then all made or none, and only as they were shown."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.tools import READ_BYTES, WorkspaceTools

from kairos_mcp.core.tool import ToolMemory
from kairos_mcp.tools import Workspace, builtin_tools
from kairos_mcp.tools.registry import ToolRegistry

FILES = {"a.py": "one\nold(1)\n", "d/b.py": "old(2)\nold(3)\n"}
EDITS = [
    {"path": "a.py", "old_string": "old(", "new_string": "new("},
    {"path": "d/b.py", "old_string": "old(", "new_string": "new(", "replace_all": True},
    {"path": "./a.py", "old_string": "one", "new_string": "1"},
]
AFTER = {"a.py": "1\nnew(1)\n", "d/b.py": "new(2)\nnew(3)\n"}


def test_a_plan_shows_every_diff_and_changes_nothing(tools: WorkspaceTools) -> None:
    tools.write(dict(FILES))
    planned = tools.call("plan_edits", edits=EDITS)
    assert tools.content() == FILES
    assert [file["path"] for file in planned.data["files"]] == ["a.py", "d/b.py"]
    assert all(row in planned.content for row in ("-one\n", "+1\n", "+new(2)\n", planned.data["plan_id"]))


def test_a_plan_is_applied_as_it_was_shown(tools: WorkspaceTools) -> None:
    tools.write(dict(FILES))
    planned = tools.call("plan_edits", edits=EDITS)
    shown = tools.preview("apply_edit_plan", plan_id=planned.data["plan_id"])
    assert shown.base_hashes == {file["path"]: file["before"] for file in planned.data["files"]}
    plain = "\n".join(line for line in planned.content.splitlines() if "sha256:" not in line)
    for part in re.split(r"before .{12}, after .{12}\n", shown.text):
        assert part.strip() in plain
    result = tools.call_approved("apply_edit_plan", shown, plan_id=planned.data["plan_id"])
    assert tools.content() == AFTER
    assert [(file["path"], file["after"]) for file in result.data["files"]] == [
        (file["path"], file["after"]) for file in planned.data["files"]
    ]
    assert tools.call("apply_edit_plan", plan_id=planned.data["plan_id"]).code == "stale_file"  # it was for those texts


def test_the_same_plan_has_the_same_name_and_another_one_another(tools: WorkspaceTools) -> None:
    tools.write(dict(FILES))
    first = tools.call("plan_edits", edits=EDITS).data["plan_id"]
    assert tools.call("plan_edits", edits=EDITS).data["plan_id"] == first
    assert tools.call("plan_edits", edits=EDITS[:2]).data["plan_id"] != first
    tools.write({"a.py": FILES["a.py"] + "more\n"})
    assert tools.call("plan_edits", edits=EDITS).data["plan_id"] != first


def test_a_plan_belongs_to_its_run(tools: WorkspaceTools) -> None:
    tools.write(dict(FILES))
    plan_id = tools.call("plan_edits", edits=EDITS).data["plan_id"]
    tools.memory = ToolMemory.in_process()
    assert tools.call("apply_edit_plan", plan_id=plan_id).code == "not_found"
    assert tools.content() == FILES


@pytest.mark.parametrize("when", ["before", "between"])
def test_if_one_file_has_changed_no_file_is_changed(tools: WorkspaceTools, when: str) -> None:
    tools.write(dict(FILES))
    plan_id = tools.call("plan_edits", edits=EDITS).data["plan_id"]
    shown = tools.preview("apply_edit_plan", plan_id=plan_id)
    theirs = FILES["d/b.py"] + "theirs\n"
    if when == "before":
        tools.write({"d/b.py": theirs})
        assert tools.call_approved("apply_edit_plan", shown, plan_id=plan_id).code == "stale_file"
        assert tools.content() == FILES | {"d/b.py": theirs}
        return
    with open(tools.workspace / "d" / "b.py", "a") as other:  # the first is exchanged already when this one is refused
        code = tools.call_approved("apply_edit_plan", shown, plan_id=plan_id).code
        other.write("theirs\n")
    if sys.platform == "linux":
        assert code == "stale_file"
        assert tools.content() == FILES | {"d/b.py": theirs}


def test_a_file_that_can_not_go_back_is_named(tools: WorkspaceTools, tmp_path: Path) -> None:
    """The first is written by another after its exchange, and the second is refused."""
    from support.interruptions import struck

    tools.write(dict(FILES))
    found: set[str] = set()
    with open(tools.workspace / "d" / "b.py", "a"):
        for line in range(1, 400, 9):
            tools.write({"a.py": FILES["a.py"]})

            def theirs() -> None:
                new = tools.workspace / "new"
                new.write_text("theirs\n")
                new.rename(tools.workspace / "a.py")

            result, lines = struck(lambda: tools.call("apply_edits", edits=EDITS), {line: theirs})
            if lines < line:
                break
            assert result.code == "stale_file"
            assert tools.content()["a.py"] == "theirs\n"
            found.add("could not go back" if "could not go back" in result.content else "refused")
            assert "could not go back" not in result.content or "a.py" in result.content
    assert found == {"could not go back", "refused"}


def test_apply_edits_is_both_at_once_and_minds_what_was_read(tools: WorkspaceTools) -> None:
    tools.write(dict(FILES))
    shown = tools.preview("apply_edits", edits=EDITS)
    assert tools.call("apply_edits", edits=EDITS, base=shown.base_hashes | {"a.py": None}).code == "stale_file"
    assert tools.call("apply_edits", edits=EDITS, base={"a.py": shown.base_hashes["a.py"]}).code == "stale_file"
    assert tools.content() == FILES
    assert not tools.call("apply_edits", edits=EDITS, base=dict(shown.base_hashes)).is_error
    assert tools.content() == AFTER


def test_a_plan_that_is_too_large_is_refused(tools: WorkspaceTools) -> None:
    tools.write({f"{n}": "a" * (1 << 20) + f"-{n}-" for n in range(9)})
    edits = [{"path": f"{n}", "old_string": f"-{n}-", "new_string": "!"} for n in range(9)]
    assert tools.call("plan_edits", edits=edits).code == "too_large"
    assert not tools.call("plan_edits", edits=edits[:7]).is_error
    assert tools.call("plan_edits", edits=edits[:1] * 101).code == "bad_arguments"


names = st.sampled_from(["a", "b", "c"])
texts = st.text(alphabet="xy\n", max_size=6)
plans = st.lists(st.tuples(names, texts, texts, st.booleans()), min_size=1, max_size=5)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.dictionaries(names, texts, max_size=3), plans, st.sampled_from([None, "a", "b", "c"]))
def test_a_plan_is_applied_whole_or_not_at_all(
    tmp_path_factory: pytest.TempPathFactory, files: dict[str, str], plan: list[Any], meddled: str | None
) -> None:
    root = tmp_path_factory.mktemp("plan")
    with Workspace(root) as open_workspace:
        tools = WorkspaceTools(root, ToolRegistry(builtin_tools(open_workspace, read_bytes=READ_BYTES)))
        tools.write(dict(files))
        edits = [
            {"path": path, "old_string": old, "new_string": new, "replace_all": everywhere}
            for path, old, new, everywhere in plan
        ]
        planned = tools.call("plan_edits", edits=edits)
        assert tools.content() == files
        if planned.is_error:
            assert tools.call("apply_edits", edits=edits).code == planned.code
            assert tools.content() == files
            return
        hashes = {file["path"]: file["after"] for file in planned.data["files"]}
        if meddled in hashes:
            files = files | {meddled: files[meddled] + "!"}
            tools.write({meddled: files[meddled]})
        result = tools.call("apply_edit_plan", plan_id=planned.data["plan_id"])
        if meddled in hashes:
            assert result.code == "stale_file"
            assert tools.content() == files
        else:
            found = {path: tools.call("read_file", path=path).data["sha256"] for path in files}
            assert found == {path: hashes.get(path, found[path]) for path in files}
            assert {path: text for path, text in tools.content().items() if path not in hashes} == {
                path: text for path, text in files.items() if path not in hashes
            }
        assert sorted(os.listdir(root)) == sorted(files)


def test_a_plan_is_offered_only_where_it_is_named_since_nothing_else_could_apply_it(
    writing_tools: WorkspaceTools,
) -> None:
    registry = writing_tools.registry
    assert registry.select(None).find("plan_edits") is None
    assert registry.select(("plan_edits", "apply_edit_plan")).find("plan_edits") is not None
    assert registry.select(("*",)).find("plan_edits") is not None
