"""A stage in a copy of the workspace: as one on a layer, where the kernel mounts none.

tests/tools/test_stage.py tries all that a stage does in a copy too, in the slow run.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
from support.staged import staged_in, tree

from kairos_mcp.tools.stage import cloning, copies
from kairos_mcp.tools.stage.cloning import choose_cloner, copy_by
from kairos_mcp.tools.stage.layers import change_clock_ns
from kairos_mcp.tools.stage.stage import sum_bytes


@pytest.fixture
def stage(tmp_path, monkeypatch):
    """In which programs run without a sandbox, as on macOS."""
    monkeypatch.setattr(copies, "RESTS", 0)
    with staged_in(tmp_path, copied=True, mode="bare") as opened:
        opened.write({"a.py": "line 1\nline 2\nline 3\n", "old.py": "old\n", "d/x.py": "one\n", "e/x.py": "two\n"})
        yield opened


def shell(stage, text):
    return stage.tool("run_command").run({"argv": ["sh", "-c", text]}, stage.context())


def touched(stage):
    return {each.path for each in stage.held.list_touched()}


def test_edits_and_programs_are_applied_at_once_and_nothing_changes_before(stage):
    before = tree(stage.workspace)
    assert not stage.call("edit_file", path="a.py", old_string="line 3", new_string="LINE 3").is_error
    assert (
        "LINE 3" in shell(stage, "cat a.py; rm old.py; chmod +x d/x.py; ln -s a.py link; mkdir n; echo n > n/n").content
    )
    assert tree(stage.workspace) == before
    assert not stage.submit().is_error
    assert tree(stage.workspace) == {
        "a.py": (b"line 1\nline 2\nLINE 3\n", False),
        "d/x.py": (b"one\n", True),
        "e/x.py": (b"two\n", False),
        "link": "a.py",
        "n/n": (b"n\n", False),
    }
    assert not touched(stage)


def test_what_others_change_is_seen_but_where_the_run_has_changed_it(stage):
    stage.call("edit_file", path="a.py", old_string="line 3", new_string="LINE 3")
    shutil.rmtree(stage.workspace / "e")
    stage.write({"a.py": "LINE 1\nline 2\nline 3\n", "old.py": "newer\n", "new/y.py": "y\n"})
    assert stage.call("read_file", path="a.py").content == "line 1\nline 2\nLINE 3\n"
    said = shell(stage, "cat old.py new/y.py; ls").content
    assert said.split("\n", 2)[2].split() == ["newer", "y", "a.py", "d", "new", "old.py"]
    assert touched(stage) == {"a.py"}
    stage.submit()
    assert (stage.workspace / "a.py").read_text() == "LINE 1\nline 2\nLINE 3\n"


def test_what_only_reads_need_not_look_again_and_what_writes_does(stage, monkeypatch):
    monkeypatch.setattr(copies, "RESTS", 1_000_000)
    stage.call("read_file", path="old.py")
    stage.write({"old.py": "newer\n"})
    assert stage.call("read_file", path="old.py").content == "old\n"
    stage.call("edit_file", path="old.py", old_string="newer", new_string="newest")
    stage.submit()
    assert (stage.workspace / "old.py").read_text() == "newest\n"


def test_a_file_that_is_saved_twice_in_one_tick_is_taken_over(stage, monkeypatch):
    now = change_clock_ns()
    monkeypatch.setattr(copies, "_as_look", lambda found: (found.st_ino, found.st_size, now, now, found.st_mode))
    assert stage.call("read_file", path="old.py").content == "old\n"
    (stage.workspace / "old.py").write_text("new\n")
    assert stage.call("read_file", path="old.py").content == "new\n"


def test_what_a_program_changes_without_a_trace_in_its_time_or_size_is_seen(stage):
    for path in ("d/x.py", "e/x.py"):
        os.utime(stage.workspace / path, ns=(0, 10**18))
    stage.call("read_file", path="a.py")
    shell(stage, "mv d t; mv e d; mv t e; cp -p old.py was; printf 'OLD\\n' > old.py; touch -r was old.py; rm was")
    assert touched(stage) == {"d/x.py", "e/x.py", "old.py"}
    stage.submit()
    held = tree(stage.workspace)
    assert (held["d/x.py"][0], held["e/x.py"][0], held["old.py"][0]) == (b"two\n", b"one\n", b"OLD\n")


def test_of_a_copy_that_was_cut_short_nothing_counts(stage):
    stage.layer.mkdir(parents=True)
    (stage.layer / "a.py").write_text("line 1\nli")
    stage.held._make_folder(stage.context())
    assert not touched(stage)
    assert stage.call("read_file", path="a.py").content == "line 1\nline 2\nline 3\n"
    assert not touched(stage)


def test_programs_without_a_sandbox_are_not_contained_and_only_a_person_settles_them(stage):
    tool = stage.tool("run_command")
    assert not stage.made.contains(tool.spec)
    assert stage.made.contains(stage.tool("edit_file").spec)
    shown = stage.preview("run_command", argv=["true"]).text
    assert "WITHOUT A SANDBOX" in shown
    assert "copy" in shown
    ctx = stage.context()
    stage.memory.keep(f"intent {ctx.path}", "left")
    assert stage.probe("run_command", ctx.path, argv=["true"]).state == "unclear"


@pytest.mark.sandbox
def test_a_layer_runs_no_program_without_a_sandbox(tmp_path):
    with staged_in(tmp_path, mode="bare") as stage:
        assert stage.call("run_command", argv=["true"]).code == "command_denied"
        assert not stage.call("write_file", path="a.py", content="a\n").is_error


def test_the_workspace_itself_does_not_count_towards_what_a_stage_may_hold(stage):
    def held():
        return sum_bytes(stage.layer, time.monotonic() + 60) - stage.held.layer.room()

    stage.write({"large": "x" * 1_000_000})
    stage.call("read_file", path="a.py")
    assert held() <= 0
    shell(stage, "cp large larger")
    assert held() >= 1_000_000


@pytest.mark.parametrize("bound", ["COPIED_FILES", "COPIED_BYTES"])
def test_a_workspace_that_outgrows_a_copy_is_refused(stage, monkeypatch, bound):
    monkeypatch.setattr(copies, "choose_cloner", lambda: None)
    stage.call("read_file", path="a.py")
    monkeypatch.setattr(copies, bound, 1)
    assert stage.call("read_file", path="a.py").code == "too_large"


@pytest.mark.sandbox
def test_a_program_reads_what_is_mounted_in_the_workspace_but_no_env_file_there(tmp_path):
    with staged_in(tmp_path, copied=True) as stage:
        inner = stage.workspace / "inner"
        inner.mkdir()
        if os.geteuid() or subprocess.run(["mount", "-t", "tmpfs", "t", str(inner)], check=False).returncode:
            pytest.skip("only root mounts")
        try:
            stage.write({"inner/lib.py": "lib\n", "inner/.env": "TOKEN=hunter2\n", "a.py": "a\n"})
            ctx = replace(stage.context(), is_hidden=lambda path: path.endswith(".env"))
            said = stage.tool("run_command").run(
                {"argv": ["sh", "-c", "cat inner/*.py inner/.env; echo x > inner/x"]}, ctx
            )
            assert "lib" in said.content
            assert "hunter2" not in said.content
            assert {path.name for path in inner.iterdir()} == {"lib.py", ".env"}
            assert not touched(stage)
        finally:
            subprocess.run(["umount", str(inner)], check=True)


def test_each_system_has_its_own_way_to_share_contents():
    found = [choose_cloner(system) for system in ("linux", "darwin", "win32")]
    assert found == [cloning.clone_by_reflink, cloning.clone_by_clonefile, None]


def test_clonefile_gets_the_open_file_and_its_new_place(monkeypatch, tmp_path):
    """No Mac is needed for this, and none has tried it."""
    seen = []

    def fclonefileat(*arguments):
        seen.append(arguments)
        return 0 if len(seen) == 1 else -1

    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: SimpleNamespace(fclonefileat=fclonefileat))
    monkeypatch.setattr(ctypes, "get_errno", lambda: 45)
    cloning.clone_by_clonefile(7, 8, "name")
    assert seen == [(7, 8, b"name", 0)]
    with pytest.raises(OSError, match="45"):
        cloning.clone_by_clonefile(7, 8, "name")


def test_what_can_not_be_shared_is_copied(tmp_path):
    def refuse(*_):
        raise OSError(18, "another file system")

    (tmp_path / "a").write_bytes(b"x" * 3_000_000)
    with (tmp_path / "a").open("rb") as source:
        folder = os.open(tmp_path, os.O_RDONLY)
        for number, copy in enumerate((copy_by(refuse), copy_by(choose_cloner()), copy_by(None))):
            copy(source.fileno(), folder, str(number))
        os.close(folder)
    assert {path.read_bytes() for path in tmp_path.iterdir()} == {b"x" * 3_000_000}
    assert not cloning.can_clone(refuse, tmp_path, tmp_path)
    assert len(list(tmp_path.iterdir())) == 4
