"""An application killed before each change of the file system, and its recovery killed too: all of it, or nothing."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.staged import Staged, staged_in, tree

import kairos_mcp.tools.files.workspace as workspaces
from kairos_mcp.core.tool import ToolMemory
from kairos_mcp.tools.stage.stage import MadeCall, discard_folder

pytestmark = pytest.mark.sandbox
# What changes a file system, as the application calls it; an exchange is patched in the workspace.
CHANGES = ("rename", "unlink", "mkdir", "fsync", "fchmod", "symlink", "rmdir", "link")
STEP = "submit-1"
SAMPLE = range(1, 200, 9)


def memory_in(folder: Path) -> ToolMemory:
    """A memory that outlives the process."""
    folder.mkdir(exist_ok=True)

    def path(name: str) -> Path:
        return folder / name.replace("/", "%")

    def keep(name: str, text: str) -> None:
        half = folder / "half"
        half.write_text(text)
        os.replace(half, path(name))

    def recall(name: str) -> str | None:
        return path(name).read_text() if path(name).exists() else None

    return ToolMemory(keep, recall)


@contextmanager
def changed_in(root: Path) -> Iterator[Staged]:
    """A stage in which everything was done that can be done to a tree."""
    discard_folder(root)  # the kernel leaves a folder in it that only root may open
    root.mkdir()
    with staged_in(root, memory_in(root / "memory")) as stage:
        names = {"a.py": "a\n", "gone.py": "gone\n", "dir/x.py": "x\n", "dir/y.py": "y\n", "tool": "#!/bin/sh\n"}
        stage.write({**names, "bin": b"\0\1\2" * 50, "swap": "file\n", "was/deep/f": "f\n"})
        os.symlink("a.py", stage.workspace / "link")
        made = stage.made._stage
        with made.writing(stage.context(), MadeCall("run_command", {"argv": ["change"]})), made.open_mount() as view:
            change_all(Path(f"/proc/self/fd/{view._root.fd}"))
        yield stage


def change_all(top: Path) -> None:
    (top / "a.py").write_text("A\n")
    (top / "gone.py").unlink()
    shutil.rmtree(top / "dir")
    (top / "dir").mkdir()
    (top / "dir/x.py").write_text("X\n")
    (top / "tool").chmod(0o755)
    (top / "bin").write_bytes(b"\0\3" * 60)
    (top / "swap").unlink()
    (top / "swap").mkdir()
    (top / "swap/in").write_text("in\n")
    (top / "new/deep").mkdir(parents=True)
    (top / "new/deep/n").write_text("n\n")
    (top / "link").unlink()
    (top / "link").symlink_to("tool")
    shutil.rmtree(top / "was")
    (top / "was").write_text("now a file\n")


def kill_before(count: int) -> None:
    """Kill this process right before its next change of this number."""
    left = [count]

    def counted(change: Callable[..., Any]) -> Callable[..., Any]:
        def make(*given: Any, **named: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return change(*given, **named)

        return make

    for name in CHANGES:
        setattr(os, name, counted(getattr(os, name)))
    found = workspaces.find_renameat2
    workspaces.find_renameat2 = lambda: counted(found())


def in_child(work: Callable[[], bool], count: int | None = None) -> int:
    """Do the work in a process of its own, killed before its change of this number; 0: it came to its end."""
    pid = os.fork()
    if pid == 0:
        try:
            if count is not None:
                kill_before(count)
            os._exit(0 if work() else 3)
        except BaseException:
            os._exit(4)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def opened(root: Path, act: Callable[[Staged], bool]) -> Callable[[], bool]:
    """The act on the stage as another process opens it."""

    def work() -> bool:
        with staged_in(root, memory_in(root / "memory")) as stage:
            return act(stage)

    return work


def submits(stage: Staged) -> bool:
    ctx = stage.context(step=STEP)
    return not stage.tool("submit_changes").run({}, ctx).is_error


def recovers(stage: Staged) -> bool:
    found = stage.probe("submit_changes", STEP)
    return found.state == "resolved" or (found.state == "not_done" and submits(stage))


def trees_before_and_after(root: Path) -> tuple[Any, Any]:
    with changed_in(root) as stage:
        before = tree(stage.workspace)
    assert in_child(opened(root, submits)) == 0
    after = tree(root / "workspace")
    assert after["was"] == (b"now a file\n", False)
    assert after["tool"][1]
    assert after["link"] == "tool"
    assert "swap/in" in after
    assert "gone.py" not in after
    return before, after


def sweep(root: Path, counts: range) -> int:
    """Kill it before each of these changes; return before how many it was killed."""
    _before, after = trees_before_and_after(root)
    killed = 0
    for count in counts:
        with changed_in(root):
            pass
        if in_child(opened(root, submits), count) == 0:
            return killed
        killed += 1
        in_child(opened(root, recovers), 1 + count % 7)  # the recovery is killed too, mostly
        assert in_child(opened(root, recovers)) == 0, count
        assert tree(root / "workspace") == after, count
        assert not list((root / "workspace").rglob(".kairos-*")), count
    return killed


def test_killed_before_some_of_its_changes_it_is_completed(tmp_path: Path) -> None:
    assert sweep(tmp_path / "place", SAMPLE) >= 5


@pytest.mark.slow
def test_killed_before_any_of_its_changes_it_is_completed(tmp_path: Path) -> None:
    killed = sweep(tmp_path / "place", range(1, 1_000))
    print(f"\nkilled before each of {killed} changes of an application: all of it each time")
    assert killed >= 60


def test_what_another_program_wrote_after_the_crash_stays_and_all_else_goes_back(tmp_path: Path) -> None:
    root = tmp_path / "place"
    before, after = trees_before_and_after(root)
    for count in range(30, 90):
        with changed_in(root):
            pass
        in_child(opened(root, submits), count)
        now = tree(root / "workspace")
        if now["tool"] != after["tool"] and now != before:
            break
    (root / "workspace/tool").write_text("another's\n")
    with staged_in(root, memory_in(root / "memory")) as stage:
        found = stage.probe("submit_changes", STEP)
    assert (found.state, found.result.code) == ("resolved", "stale_file")
    assert tree(root / "workspace") == {**before, "tool": (b"another's\n", False)}
