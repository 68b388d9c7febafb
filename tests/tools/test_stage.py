"""A run's stage: what is edited and run there changes nothing else until it is applied, whole."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from pathlib import Path

import pytest
from support.staged import MOST_BYTES, Staged, staged_in, tree

from kairos_mcp.core.errors import KairosError, NoChange, StaleFile
from kairos_mcp.core.tool import Preview
from kairos_mcp.tools.commands.run_command import CommandSettings
from kairos_mcp.tools.stage import copies
from kairos_mcp.tools.stage.layers import ENTRY_BYTES
from kairos_mcp.tools.stage.mounts import Mounts
from kairos_mcp.tools.stage.probe import StageWay, find_stage_way
from kairos_mcp.tools.stage.stage import discard_folder, sum_bytes

pytestmark = pytest.mark.sandbox


@pytest.fixture(params=["layer", pytest.param("copy", marks=pytest.mark.slow)])
def stage(request, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(copies, "RESTS", 0)
    with staged_in(tmp_path, copied=request.param == "copy") as opened:
        lines = "".join(f"line {number}\n" for number in range(40))
        opened.write({"a.py": lines, "old.py": "old\n", "d/x.py": "x\n", "d/y.py": "y\n", ".env": "TOKEN=hunter2\n"})
        yield opened


def shell(stage: Staged, text: str):
    """Run a text in the stage, as a call which may not read `.env`."""
    from dataclasses import replace

    ctx = replace(stage.context(), is_hidden=lambda path: path == ".env")
    return stage.tool("run_command").run({"argv": ["sh", "-c", text]}, ctx)


def edit(stage: Staged, path: str, old: str, new: str):
    return stage.call("edit_file", path=path, old_string=old, new_string=new)


def test_nothing_in_the_workspace_changes_before_it_is_submitted(stage):
    before = tree(stage.workspace)
    assert not edit(stage, "a.py", "line 3\n", "LINE 3\n").is_error
    assert "in the stage" in shell(stage, "echo new > n; rm old.py; mkdir -p .git; echo x > AGENTS.md").content
    assert not stage.call("write_file", path="deep/er/w", content="w\n").is_error
    assert tree(stage.workspace) == before
    assert stage.call("read_file", path="a.py", start_line=4, end_line=4).content == "LINE 3\n"
    assert stage.lines(stage.call("list_files")) == [".env", ".git/", "AGENTS.md", "a.py", "d/", "deep/", "n"]


def test_what_is_submitted_is_applied_with_deletions_modes_links_and_folders(stage):
    shell(
        stage,
        "rm -r d; echo file > d; rm old.py; mkdir old.py; echo in > old.py/in; chmod +x a.py; ln -s a.py link;"
        " printf '\\0\\1' > bin; mkdir -p new/deep; echo n > new/deep/n; ln -s /etc/passwd out; mkfifo pipe",
    )
    result = stage.submit()
    assert not result.is_error
    assert tree(stage.workspace) == {
        ".env": (b"TOKEN=hunter2\n", False),
        "a.py": (tree(stage.workspace)["a.py"][0], True),
        "d": (b"file\n", False),
        "old.py/in": (b"in\n", False),
        "link": "a.py",
        "bin": (b"\0\1", False),
        "new/deep/n": (b"n\n", False),
    }
    with pytest.raises(NoChange):
        stage.preview("submit_changes")
    kept = {touched.path for touched in stage.held.list_touched()}
    assert kept == {"out", "pipe"}  # what is inside no workspace stays


def test_what_matters_most_is_shown_first(stage):
    shell(stage, "echo x > AGENTS.md; rm old.py; chmod +x d/x.py; echo big > z; seq 100 > big")
    shown = stage.preview("submit_changes", summary="as asked").text.splitlines()
    places = [shown.index(line) for line in ("! AGENTS.md instructs agents, or a host reads it by itself",
                                             "delete old.py (4 bytes)", "mode of d/x.py: can be executed",
                                             "create big", "create z")]  # fmt: skip
    assert places == sorted(places)
    assert shown[:3] == ["5 files: 1 changed, 3 created, 1 deleted", "the model says:", "> as asked"]


def test_a_program_sees_no_env_file_and_nothing_of_the_layer(stage):
    result = shell(stage, f"cat .env; ls {stage.home}; cat /etc/shadow")
    assert "hunter2" not in result.content
    assert "upper" not in result.content
    assert "root:" not in result.content
    assert stage.call("write_file", path="prod.env", content="KEY=abc\n")
    from dataclasses import replace

    ctx = replace(stage.context(), is_hidden=lambda path: path.endswith(".env"))
    assert "abc" not in stage.tool("run_command").run({"argv": ["sh", "-c", "cat prod.env"]}, ctx).content


def test_a_program_made_in_the_stage_can_be_started(stage):
    shell(stage, "printf '#!/bin/sh\\necho made\\n' > t.sh; chmod +x t.sh; mkdir sub; cp t.sh sub/u.sh; echo x > n")
    assert "made" in stage.call("run_command", argv=["./t.sh"]).content
    assert "made" in stage.call("run_command", argv=["./u.sh"], cwd="sub").content
    assert stage.call("run_command", argv=["./n"]).code == "command_denied"


def test_what_git_ignores_stays_and_no_gitignore_of_the_stage_hides_anything(stage):
    stage.write({".gitignore": "build/\n*.log\n"})
    shell(stage, "mkdir build; echo o > build/o; echo l > x.log; echo evil > evil.py; echo evil.py >> .gitignore")
    stage.call("write_file", path="kept.log", content="by a file tool\n")
    shown = stage.preview("submit_changes").text
    assert "create evil.py" in shown
    assert "create kept.log" in shown
    assert "build/o" not in shown
    assert "create x.log" not in shown
    stage.submit()
    assert not (stage.workspace / "build").exists()
    assert (stage.workspace / "kept.log").exists()
    stage.submit(paths=["build"])  # named, it is shown and applied
    assert (stage.workspace / "build/o").read_text() == "o\n"


def test_a_commit_inside_works_and_leaves_the_workspace_s_repository_as_it_is(stage):
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
    for argv in (["git", "init", "-q"], ["git", "add", "a.py"], [*git, "commit", "-qm", "one"]):
        subprocess.run(argv, cwd=stage.workspace, check=True)
    before = tree(stage.workspace / ".git")
    edit(stage, "a.py", "line 3\n", "LINE 3\n")
    assert not shell(stage, f"{' '.join(git)} commit -qam two && git log --oneline | wc -l | grep 2").is_error
    assert "no run may write" in stage.preview("submit_changes").text
    stage.submit()
    assert tree(stage.workspace / ".git") == before


def test_what_others_changed_meanwhile_is_merged_by_lines_and_shown(stage):
    edit(stage, "a.py", "line 3\n", "LINE 3\n")
    path = stage.workspace / "a.py"
    path.write_text(path.read_text().replace("line 30\n", "theirs\n"))
    shown = stage.preview("submit_changes")
    assert "merged in" in shown.text
    stage.call_approved("submit_changes", shown)
    assert "LINE 3\n" in path.read_text()
    assert "theirs\n" in path.read_text()


def test_lines_that_both_changed_are_named_and_nothing_is_applied(stage):
    edit(stage, "a.py", "line 3\n", "LINE 3\n")
    edit(stage, "d/x.py", "x", "X")
    path = stage.workspace / "a.py"
    path.write_text(path.read_text().replace("line 3\n", "theirs\n"))
    with pytest.raises(StaleFile, match=r"a\.py"):
        stage.preview("submit_changes")
    stage.call_approved("submit_changes", stage.preview("submit_changes", drop=["a.py"]), drop=["a.py"])
    assert (stage.workspace / "d/x.py").read_text() == "X\n"
    assert "theirs\n" in stage.call("read_file", path="a.py").content  # the stage shows the workspace's again


def test_a_file_saved_while_a_program_changed_it_is_never_merged(stage):
    started = stage.layer / "started"

    def save() -> None:
        while not started.exists():
            pass
        (stage.workspace / "old.py").write_text("saved\n")
        (stage.workspace / "go").write_text("")

    saving = threading.Thread(target=save)
    saving.start()
    shell(stage, "echo more >> old.py; touch started; for i in 1 2 3 4 5 6 7 8 9; do sleep 0.1; done; rm started")
    saving.join()
    with pytest.raises(StaleFile, match="nobody can tell"):
        stage.preview("submit_changes")


@pytest.mark.parametrize("side", ["workspace", "layer"])
def test_what_changed_after_it_was_shown_is_not_applied(stage, side):
    edit(stage, "a.py", "line 3\n", "LINE 3\n")
    edit(stage, "d/x.py", "x", "X")
    shown = stage.preview("submit_changes")
    where = stage.workspace if side == "workspace" else stage.layer
    (where / "d/x.py").write_text("another\n")
    before = tree(stage.workspace)
    assert stage.call_approved("submit_changes", shown).code == "stale_file"
    assert tree(stage.workspace) == before


def test_two_stages_change_one_file_one_after_the_other(stage, tmp_path):
    edit(stage, "a.py", "line 3\n", "LINE 3\n")
    other = tmp_path / "other"
    other.mkdir()
    os.symlink(stage.workspace, other / "workspace")
    with staged_in(other) as second:
        edit(second, "a.py", "line 30\n", "LINE 30\n")
        stage.submit()
        second.submit()
    text = (stage.workspace / "a.py").read_text()
    assert "LINE 3\n" in text
    assert "LINE 30\n" in text


def test_a_stage_goes_on_after_a_restart(tmp_path):
    with staged_in(tmp_path) as first:
        first.write({"a.txt": "alpha\n"})
        edit(first, "a.txt", "alpha", "omega")
    with staged_in(tmp_path, first.memory) as second:
        second.calls = first.calls
        assert second.call("read_file", path="a.txt").content == "omega\n"
        second.submit()
        assert (second.workspace / "a.txt").read_text() == "omega\n"


def test_a_stage_whose_folder_is_gone_applies_nothing(tmp_path):
    with staged_in(tmp_path) as stage:
        stage.write({"a.txt": "alpha\n"})
        edit(stage, "a.txt", "alpha", "omega")
        subprocess.run(["rm", "-rf", str(stage.layer)], check=True)
        with pytest.raises(KairosError, match="missing"):
            stage.preview("submit_changes")
        assert stage.call("read_file", path="a.txt").is_error


def test_a_stage_that_holds_too_much_ends_its_program(stage):
    result = shell(stage, "dd if=/dev/zero of=big bs=1M count=160 2>/dev/null; sleep 20")  # no more if nothing stops it
    assert result.code == "command_denied"
    assert "64 MiB" in result.content
    assert not edit(stage, "a.py", "line 3\n", "LINE 3\n").is_error


def test_a_file_that_is_too_large_to_be_edited_is_deleted(stage):
    shell(stage, "dd if=/dev/zero of=large bs=1M count=3")
    assert stage.preview("delete_file", path="large").failure is None
    assert not stage.call("delete_file", path="large").is_error


def test_files_are_deleted_and_moved_in_the_stage(stage):
    assert not stage.call("delete_file", path="old.py").is_error
    assert not stage.call("move_file", path="d/x.py", to="e/f/x.py").is_error
    assert stage.call("move_file", path="d/y.py", to="a.py").code == "stale_file"
    assert stage.call("delete_file", path="d").code == "not_regular_file"
    assert (stage.workspace / "old.py").exists()
    stage.submit()
    assert set(tree(stage.workspace)) == {".env", "a.py", "d/y.py", "e/f/x.py"}


@pytest.mark.parametrize(
    ("path", "content", "to"),
    [("users.csv", "user,password\nanna,hunter2\n", "users.txt"), ("secrets/db_password", "hunter2\n", "word.txt")],
)
def test_no_new_name_shows_a_value_that_the_old_one_hides(stage, path, content, to):
    stage.write({path: content})
    assert stage.call("move_file", path=path, to=to).code == "bad_arguments"
    assert not stage.call("move_file", path=path, to=f"moved/{path}").is_error
    assert "hunter2" not in stage.call("read_file", path=f"moved/{path}").content


def test_a_link_may_go_up_only_where_it_begins(stage):
    shell(stage, "ln -s .. d/up; ln -s d/up/../outside around; ln -s ./../a.py d/a")
    assert set(stage.preview("submit_changes").base_hashes) == {"d/up", "d/a"}


@pytest.mark.parametrize("how", ["dropped", "applied"])
def test_through_a_link_in_the_place_of_a_folder_nothing_outside_is_removed(stage, how):
    outside = stage.workspace.parent / "outside"
    outside.mkdir()
    (outside / "x.py").write_text("of the user")
    shell(stage, f"rm -r d; ln -s {outside} d; echo b > a.py")
    if how == "dropped":
        stage.call("submit_changes", drop=["d/x.py"])
    else:
        assert not stage.submit().is_error
    assert [path.name for path in outside.iterdir()] == ["x.py"]


def approve(stage, *paths):
    """Submit as a person approves some of the files that it shows."""
    shown = stage.preview("submit_changes")
    chosen = {path: shown.base_hashes[path] for path in paths}
    return stage.call_approved("submit_changes", Preview(shown.text, chosen))


def test_files_of_a_folder_that_took_a_files_place_are_approved_one_after_another(stage):
    shell(stage, "rm old.py; mkdir old.py; echo in > old.py/in; echo two > old.py/two")
    assert not approve(stage, "old.py", "old.py/in").is_error
    assert stage.call("read_file", path="old.py/in").content == "in\n"
    assert not stage.submit().is_error
    assert tree(stage.workspace)["old.py/two"] == (b"two\n", False)
    stage.write({"old.py/in": "of others\n"})
    assert stage.call("read_file", path="old.py/in").content == "of others\n"


def test_in_a_folder_that_was_made_anew_a_dropped_file_is_the_workspaces_again(stage):
    shell(stage, "rm -r d; mkdir d; echo new > d/x.py; echo z > d/z")
    stage.call("submit_changes", drop=["d/x.py"])
    held = tree(stage.workspace)
    assert (held["d/x.py"], held["d/z"], "d/y.py" in held) == ((b"x\n", False), (b"z\n", False), False)
    assert stage.call("read_file", path="d/x.py").content == "x\n"


@pytest.fixture
def deep(stage):
    """The stage, removed at the end with folders so deep that pytest can't."""
    yield stage
    subprocess.run(["rm", "-rf", str(stage.home)], check=True)


def test_folders_however_deep_stop_neither_the_next_calls_nor_the_limit(deep):
    shell(deep, "python3 -c \"import os\nfor i in range(1500): os.mkdir('n'); os.chdir('n')\"")
    assert sum_bytes(deep.layer, time.monotonic() + 60) > MOST_BYTES
    assert not edit(deep, "a.py", "line 3\n", "LINE 3\n").is_error
    shown = deep.preview("submit_changes")
    assert "too deep" in shown.text
    assert not deep.call_approved("submit_changes", shown).is_error
    discard_folder(deep.layer.parent)
    assert not deep.layer.parent.exists()


def test_empty_files_count_too(tmp_path):
    for name in "abc":
        (tmp_path / name).write_text("")
    assert sum_bytes(tmp_path, time.monotonic() + 60) == 3 * ENTRY_BYTES


def test_a_folder_that_the_stage_replaced_may_come_to_hold_an_env_file(stage):
    shell(stage, "rm -r d; echo file > d")
    stage.write({"d/.env": "TOKEN=hunter2\n"})
    from dataclasses import replace

    ctx = replace(stage.context(), is_hidden=lambda path: path.endswith(".env"))
    assert "file" in stage.tool("run_command").run({"argv": ["cat", "d"]}, ctx).content


def test_behind_what_a_program_wrote_are_all_calls_before_it(stage):
    def implied(**arguments):
        return [(each.tool, each.arguments) for each in stage.preview("submit_changes", **arguments).implies]

    edit(stage, "a.py", "line 3\n", "LINE 3\n")
    shell(stage, "cat a.py")
    shell(stage, "cp a.py made.py")
    edit(stage, "d/x.py", "x", "X")
    told = [("run_command", {"argv": ["sh", "-c", text]}) for text in ("cp a.py made.py", "cat a.py")]
    assert implied(paths=["d/x.py"]) == [("edit_file", {"path": "d/x.py"})]
    expected = sorted([*told, ("edit_file", {"path": "a.py"})], key=str)
    assert sorted(implied(paths=["made.py"]), key=str) == expected
    assert sorted(implied(paths=["made.py"], drop=["a.py"]), key=str) == expected
    stage.submit(paths=["d/y.py", "made.py"], drop=["a.py"])
    shell(stage, "cp old.py more.py")
    assert ("edit_file", {"path": "a.py"}) in implied(paths=["more.py"]), "what was dropped was there when it ran"
    edit(stage, "a.py", "line 5\n", "LINE 5\n")
    stage.submit()
    shell(stage, "echo last > last.py")
    assert {tool for tool, _ in implied()} == {"run_command"}, "what was applied is the workspace's"


def test_a_call_that_its_server_did_not_survive_is_answered_without_a_person(stage):
    ctx = stage.context()
    stage.memory.keep(f"intent {ctx.path}", "{}")
    found = stage.probe("run_command", ctx.path, argv=["true"])
    assert (found.state, found.result.code) == ("resolved", "cancelled")
    assert stage.probe("run_command", "call-77", argv=["true"]).state == "not_done"


@pytest.mark.parametrize("name", ["home_inside", "foreign", "mount_inside", "bare", "large"])
def test_where_there_can_be_no_layer_or_no_stage_the_reason_is_said(tmp_path, name, monkeypatch):
    workspace, mounts = tmp_path / "workspace", Mounts()
    workspace.mkdir()
    (workspace / "file").write_text("")
    stages, commands = tmp_path / "home/stages", CommandSettings()
    expected = StageWay(no_layer="programs run without a sandbox")
    match name:
        case "home_inside":
            stages, expected = workspace / "home/stages", StageWay("the state folder is in the workspace")
        case "foreign":
            expected = StageWay("file belongs to another user")
            if os.geteuid():
                pytest.skip("only root gives files away")
            os.chown(workspace / "file", 65534, 65534)
        case "mount_inside":
            expected = StageWay(no_layer="a mount is inside the workspace (inner)")
            mount_inside(workspace / "inner")
        case _:
            commands = CommandSettings("bare")
            if name == "large":
                monkeypatch.setattr(copies, "COPIED_FILES", 0)
                monkeypatch.setattr(copies, "CLONED_FILES", 0)
                and_a_copy = "and for a copy it holds over 0 files and folders"
                expected = StageWay(f"programs run without a sandbox, {and_a_copy}")
    try:
        assert find_stage_way(workspace, stages, mounts, commands) == expected
    finally:
        subprocess.run(["umount", workspace / "inner"], check=False, capture_output=True)
        mounts.close()
    assert not list(tmp_path.glob("**/probe-*"))


def mount_inside(folder: Path) -> None:
    folder.mkdir()
    if os.geteuid() or subprocess.run(["mount", "-t", "tmpfs", "t", str(folder)], check=False).returncode:
        pytest.skip("only root mounts")
