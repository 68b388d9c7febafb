"""Another program writes, moves or removes things before any one line of a write: nothing of its is lost unseen, and
nothing outside is touched. Between them, the lines are every moment at which another can come."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from support.interruptions import struck
from support.tools import READ_BYTES, WorkspaceTools

from kairos_mcp.tools import Workspace, builtin_tools
from kairos_mcp.tools.registry import ToolRegistry

EVERY = [pytest.param(9, id="sample"), pytest.param(1, id="all", marks=pytest.mark.slow)]
EDIT = {"path": "d/t", "old_string": "ours-", "new_string": "edit-"}
BEFORE, AFTER = "ours-a\n", "edit-a\n"


class Scene:
    """A workspace with d/t, an outside beside it with a file of the same name, and tools."""

    def __init__(self, root: Path, open_workspace: Workspace | None = None) -> None:
        self.workspace, self.outside = root / "W", root / "outside"
        (self.workspace / "d").mkdir(parents=True)
        (self.outside / "d").mkdir(parents=True)
        self.file = self.workspace / "d" / "t"
        self.file.write_text(BEFORE)
        (self.outside / "d" / "t").write_text(BEFORE)
        self.open_workspace = open_workspace or Workspace(self.workspace)
        self.tools = WorkspaceTools(
            self.workspace, ToolRegistry(builtin_tools(self.open_workspace, read_bytes=READ_BYTES))
        )

    def edit(self) -> str | None:
        return self.tools.call("edit_file", **EDIT).code

    def create(self) -> str | None:
        return self.tools.call("write_file", path="d/new", content=AFTER).code

    def names(self) -> list[str]:
        return sorted(path.name for path in self.workspace.rglob("*"))


@pytest.fixture
def scenes(tmp_path: Path) -> Iterator[Callable[[], Scene]]:
    """New scenes, with the best way of writing that there is."""
    made: list[Scene] = []

    def scene() -> Scene:
        made.append(Scene(tmp_path / f"scene-{len(made)}"))
        return made[-1]

    if not scene().open_workspace.by_exchange:
        pytest.skip("this system has no renameat2")
    yield scene
    for each in made:
        each.open_workspace.close()


def each_line(scenes: Callable[[], Scene], every: int, act: Callable[[Scene], Any]) -> Iterator[tuple[int, Scene]]:
    code, total = struck(lambda: act(scenes()), {})
    assert code is None
    for line in range(1, total + 1, every):
        yield line, scenes()


def renames(scene: Scene, text: str = "their\n") -> None:
    """As an editor saves."""
    new = scene.file.with_name("new")
    new.write_text(text)
    new.rename(scene.file)


def overwrites(scene: Scene) -> None:
    """In place; a lease of ours makes it wait, which is the same as coming later."""
    try:
        fd = os.open(scene.file, os.O_WRONLY | os.O_NONBLOCK)
    except BlockingIOError:
        return
    os.pwrite(fd, b"their\n", 0)
    os.close(fd)


@pytest.mark.parametrize("every", EVERY)
@pytest.mark.parametrize("writes", [renames, overwrites])
def test_what_another_writes_stands_there_afterwards(
    scenes: Callable[[], Scene], writes: Callable[[Scene], None], every: int
) -> None:
    codes = set()
    for line, scene in each_line(scenes, every, Scene.edit):
        texts: list[str] = []

        def blow(scene: Scene = scene, texts: list[str] = texts) -> None:
            writes(scene)
            texts.append(scene.file.read_text())

        code, _ = struck(scene.edit, {line: blow})
        codes.add(code)
        if "their\n" in texts:  # it did write, and was not made to wait
            assert scene.file.read_text().startswith("their\n"), line
        assert scene.names() == ["d", "t"], line
    assert codes == {None, "stale_file"}


@pytest.mark.parametrize("every", [(17, 19), pytest.param((3, 4), marks=pytest.mark.slow)])
def test_of_two_that_write_the_later_one_stands_there(scenes: Callable[[], Scene], every: tuple[int, int]) -> None:
    for line, _ in each_line(scenes, every[0], Scene.edit):
        for second in range(line + 1, line + 120, every[1]):
            scene = scenes()
            _, lines = struck(
                scene.edit,
                {line: lambda on=scene: renames(on, "first\n"), second: lambda on=scene: renames(on, "second\n")},
            )
            assert scene.file.read_text() == ("second\n" if lines >= second else "first\n"), (line, second)
            assert scene.names() == ["d", "t"]


@pytest.mark.parametrize("every", EVERY)
def test_who_opened_the_file_before_it_was_exchanged_still_writes_into_it(
    scenes: Callable[[], Scene], every: int
) -> None:
    for line, scene in each_line(scenes, every, Scene.edit):
        held: list[int] = []

        def blow(scene: Scene = scene, held: list[int] = held) -> None:
            with suppress(BlockingIOError):  # else it waits for the lease, and opens what stands there afterwards
                held.append(os.open(scene.file, os.O_WRONLY | os.O_NONBLOCK))

        struck(scene.edit, {line: blow})
        for fd in held:
            assert os.path.samestat(os.fstat(fd), scene.file.stat()), line
            os.close(fd)


def test_who_was_on_the_way_to_the_file_when_it_was_exchanged_writes_into_it(scenes: Callable[[], Scene]) -> None:
    """They found its name before the exchange and open it after, by whatever name it has then: a lease lets them wait.

    Between the last look at the lease and the removal of the displaced file it is too late; that is two lines.
    """
    waited, lost = 0, []
    for line, scene in each_line(scenes, 1, Scene.edit):
        writers: list[threading.Thread] = []
        original = scene.file.stat().st_ino

        def blow(scene: Scene = scene, writers: list[threading.Thread] = writers, original: int = original) -> None:
            nonlocal waited
            paths = [path for path in scene.file.parent.iterdir() if path.stat().st_ino == original]
            writers.extend(threading.Thread(target=writes_in_place, args=(path,)) for path in paths)
            for writer in writers:
                writer.start()
                waited += is_waiting(writer)

        struck(scene.edit, {line: blow})
        for writer in writers:
            writer.join(10)
            if not scene.file.read_text().startswith("their\n"):
                lost.append(line)
    if sys.platform == "linux":
        assert waited
        assert len(lost) <= 2, lost


def writes_in_place(path: Path) -> None:
    fd = os.open(path, os.O_WRONLY)
    os.pwrite(fd, b"their\n", 0)
    os.close(fd)


def is_waiting(writer: threading.Thread) -> bool:
    """Whether it waits for a lease of this program, once it does or has ended."""
    until = time.monotonic() + 10
    while writer.is_alive() and time.monotonic() < until:
        leases = [row.split() for row in Path("/proc/locks").read_text().splitlines() if "BREAKING" in row]
        if any(str(os.getpid()) in row for row in leases):
            return True
    assert not writer.is_alive(), "it neither waits nor ends"
    return False


@pytest.mark.parametrize("every", EVERY)
def test_what_another_removes_is_not_there_afterwards(scenes: Callable[[], Scene], every: int) -> None:
    for line, scene in each_line(scenes, every, Scene.edit):
        struck(scene.edit, {line: lambda on=scene: on.file.unlink()})
        assert scene.names() == ["d"], line


@pytest.mark.parametrize("every", EVERY)
@pytest.mark.parametrize("kind", ["link", "folder", "fifo"])
def test_what_another_puts_in_its_place_stays(scenes: Callable[[], Scene], kind: str, every: int) -> None:
    for line, scene in each_line(scenes, every, Scene.edit):

        def blow(scene: Scene = scene) -> None:
            new = scene.file.with_name("new")
            match kind:
                case "link":
                    new.symlink_to("../../outside/d/t")
                    new.rename(scene.file)
                case "folder":
                    new.mkdir()
                    scene.file.unlink()
                    new.rename(scene.file)
                case _:
                    os.mkfifo(new)
                    new.rename(scene.file)

        code, _ = struck(scene.edit, {line: blow})
        assert code in (None, "stale_file", "path_denied"), line
        assert (scene.file.is_symlink(), scene.file.is_dir(), scene.file.is_fifo()) == (
            kind == "link",
            kind == "folder",
            kind == "fifo",
        )
        assert scene.names() == ["d", "t"], line
        assert (scene.outside / "d" / "t").read_text() == BEFORE


@pytest.mark.parametrize("every", EVERY)
@pytest.mark.parametrize("act", [Scene.edit, Scene.create])
def test_nothing_is_written_through_a_folder_that_became_a_link(
    scenes: Callable[[], Scene], act: Callable[[Scene], str | None], every: int
) -> None:
    codes = set()
    for line, scene in each_line(scenes, every, act):
        before: list[list[str]] = []

        def blow(scene: Scene = scene, before: list[list[str]] = before) -> None:
            before.append(sorted(path.name for path in (scene.workspace / "d").iterdir()))
            (scene.workspace / "d").rename(scene.workspace / "moved")
            (scene.workspace / "d").symlink_to("../outside/d")

        code, _ = struck(lambda on=scene: act(on), {line: blow})
        codes.add(code)
        assert os.listdir(scene.outside / "d") == ["t"]
        assert (scene.outside / "d" / "t").read_text() == BEFORE
        if code is not None:
            assert (scene.workspace / "moved" / "t").read_text() == BEFORE, line
            assert os.listdir(scene.workspace / "moved") == ["t"], line
    assert codes == {None, "path_denied"}


@pytest.mark.parametrize("every", EVERY)
@pytest.mark.parametrize("act", [Scene.edit, Scene.create])
def test_nothing_stays_written_in_a_folder_that_was_moved_outside(
    scenes: Callable[[], Scene], act: Callable[[Scene], str | None], every: int
) -> None:
    for line, scene in each_line(scenes, every, act):
        seen: list[dict[str, str]] = []

        def blow(scene: Scene = scene, seen: list[dict[str, str]] = seen) -> None:
            seen.append(written_files(scene.workspace / "d"))
            (scene.workspace / "d").rename(scene.outside / "moved")

        code, _ = struck(lambda on=scene: act(on), {line: blow})
        moved = {path.name: path.read_text() for path in (scene.outside / "moved").iterdir()}
        if code is None:
            assert moved == seen[0], line  # it was written inside, and moved afterwards
        else:
            assert moved == {"t": BEFORE}, line


def test_a_new_file_that_another_has_changed_already_is_not_taken_away_with_its_folder(
    scenes: Callable[[], Scene],
) -> None:
    """The folder is moved outside, so that what was created there has to go, but by then it is theirs."""
    met = 0
    for line, scene in each_line(scenes, 1, Scene.create):
        changed: list[bool] = []

        def blow(scene: Scene = scene, changed: list[bool] = changed) -> None:
            new = scene.workspace / "d" / "new"
            changed.append(new.exists())
            if changed[0]:
                new.write_text("theirs\n")
            (scene.workspace / "d").rename(scene.outside / "moved")

        code, _ = struck(scene.create, {line: blow})
        if changed[0]:
            assert (scene.outside / "moved" / "new").read_text() == "theirs\n", line
            met += code is not None
    assert met


def written_files(folder: Path) -> dict[str, str]:
    """What a folder holds but for what a write has beside its file."""
    return {path.name: path.read_text() for path in folder.iterdir() if not path.name.startswith(".kairos-")}


@pytest.mark.parametrize("every", EVERY)
def test_a_file_that_comes_to_be_there_is_not_replaced_by_a_new_one(scenes: Callable[[], Scene], every: int) -> None:
    codes = set()
    for line, scene in each_line(scenes, every, Scene.create):
        code, _ = struck(
            scene.create, {line: lambda on=scene: on.tools.write({"d/new": "their\n"})}
        )  # in place, where it is there already
        codes.add(code)
        assert (scene.workspace / "d" / "new").read_text() == "their\n", line
        assert scene.names() == ["d", "new", "t"]
    assert codes == {None, "stale_file"}


def test_without_an_exchange_there_is_a_moment_in_which_another_s_write_is_lost(tmp_path: Path) -> None:
    """So these tests would see it, and so a result says that it was not exchanged."""
    lost = 0
    for line in range(1, 200):
        scene = Scene(tmp_path / str(line))
        scene.open_workspace.close()
        with Workspace(scene.workspace, exchange=False) as open_workspace:
            scene.tools.registry = ToolRegistry(builtin_tools(open_workspace, read_bytes=READ_BYTES))
            code, lines = struck(scene.edit, {line: lambda on=scene: renames(on)})
        if lines < line:
            break
        lost += code is None and scene.file.read_text() == AFTER
    assert 1 <= lost <= 2


def test_without_an_exchange_our_own_writes_take_turns(tmp_path: Path) -> None:
    """Another call of the same server comes at any line; it waits for the one that compares and renames."""
    outcomes: set[tuple[str, ...]] = set()
    for line in range(1, 200):
        scene = Scene(tmp_path / str(line))
        scene.open_workspace.close()
        with Workspace(scene.workspace, exchange=False) as open_workspace:
            scene.tools.registry = ToolRegistry(builtin_tools(open_workspace, read_bytes=READ_BYTES))
            codes: list[str | None] = []
            whole = {"path": "d/t", "content": "whole\n", "base": scene.tools.preview("edit_file", **EDIT).base_hashes}
            other = threading.Thread(target=lambda: codes.append(scene.tools.call("write_file", **whole).code))  # noqa: B023 - joined in its round

            def blow(other: threading.Thread = other) -> None:
                other.start()
                other.join(0.03)  # it has ended, or it waits for its turn

            code, lines = struck(scene.edit, {line: blow})
            if lines < line:
                break
            other.join(10)
        codes.append(code)
        assert sorted(map(str, codes)) == ["None", "stale_file"], line
        assert scene.file.read_text() == (AFTER if code is None else "whole\n"), line
        outcomes.add(tuple(map(str, codes)))
    assert outcomes == {("None", "stale_file"), ("stale_file", "None")}
