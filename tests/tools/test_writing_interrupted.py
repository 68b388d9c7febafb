"""A program that is killed while it writes, before any line of its code: afterwards all is as it was, or all is done.

The children are real and killed by SIGKILL, and what they knew is looked up from files. Where a crash before several
lines leaves the same files, one of them stands for all; with `-m slow` a child dies before each. What a loss of power
leaves is not shown here: that is what the calls of fsync are for.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from support.interruptions import in_a_child, kill, memory_in, struck, telling_lines
from support.tools import READ_BYTES, WorkspaceTools

from kairos_mcp.core.messages import JsonObject, ToolResult
from kairos_mcp.tools import Workspace, builtin_tools
from kairos_mcp.tools.registry import ToolRegistry
from kairos_mcp.tools.tool import call_tool, probe_call

STEP = "round-1/call-1"
THREE = {"a.txt": "one\n", "d/b.txt": "two\r\n", "d/c.txt": "three\n"}
EDITS = [
    {"path": "a.txt", "old_string": "one", "new_string": "1"},
    {"path": "d/b.txt", "old_string": "two", "new_string": "2"},
    {"path": "d/c.txt", "old_string": "three", "new_string": "3"},
]
EDITED = {"a.txt": "1\n", "d/b.txt": "2\r\n", "d/c.txt": "3\n"}


@dataclass(frozen=True)
class Scene:
    """A call, and what the workspace holds before and after it; `planned` first makes the plan that it names."""

    tool: str
    arguments: JsonObject
    before: dict[str, str]
    after: dict[str, str]
    planned: bool = False


SCENES = {
    "edit": Scene("edit_file", {"path": "t", "old_string": "a", "new_string": "b"}, {"t": "a"}, {"t": "b"}),
    "overwrite": Scene("write_file", {"path": "t", "content": "b"}, {"t": "a"}, {"t": "b"}),
    "create": Scene("write_file", {"path": "x/y/t", "content": "b"}, {"u": "a"}, {"u": "a", "x/y/t": "b"}),
    "several": Scene("apply_edits", {"edits": EDITS}, THREE, EDITED),
    "plan": Scene("apply_edit_plan", {}, THREE, EDITED, planned=True),
}


@dataclass
class Stage:
    """A scene set up in a folder, with tools whose memory outlives it."""

    scene: Scene
    tools: WorkspaceTools
    arguments: JsonObject

    @property
    def folder(self) -> Path:
        """Of the workspace and of the memory."""
        return self.tools.workspace.parent

    def call(self) -> ToolResult:
        return call_tool(self.tools.tool(self.scene.tool), self.arguments, self.tools.context(step=STEP))

    def act(self) -> str | None:
        return self.call().code

    def die(self, line: int, first: dict[int, Callable[[], None]] | None = None) -> bool:
        """Whether a child died before this line of the call, and did not end before."""
        return in_a_child(lambda: struck(self.act, {**(first or {}), line: kill})[0] or "ended") is None

    def others_write(self, text: str) -> None:
        """As an editor does: a new file takes the place of t."""
        new = self.tools.workspace / "new"
        new.write_text(text)
        new.rename(self.tools.workspace / "t")

    def look(self) -> tuple[str, str | None]:
        """The state that a probe finds, and the code of its result."""
        found = self.tools.probe(self.scene.tool, STEP, **self.arguments)
        return found.state, found.result.code if found.result is not None else None


def make_stage(root: Path, name: str, scene: Scene, open_workspace: list[Workspace]) -> Stage:
    place = root / name
    (place / "W").mkdir(parents=True)
    open_workspace.append(Workspace(place / "W"))
    tools = WorkspaceTools(place / "W", ToolRegistry(builtin_tools(open_workspace[-1], read_bytes=READ_BYTES)))
    tools.memory = memory_in(place / "memory")
    tools.write(dict(scene.before))
    arguments = scene.arguments
    if scene.planned:
        arguments = {"plan_id": tools.call("plan_edits", edits=EDITS).data["plan_id"]}
    return Stage(scene, tools, arguments)


@pytest.fixture
def stage(tmp_path: Path) -> Any:
    """Sets up scenes, each in a folder of its own, and closes them."""
    opened: list[Workspace] = []
    yield lambda scene: make_stage(tmp_path, f"stage-{len(opened)}", scene, opened)
    for open_workspace in opened:
        open_workspace.close()


def lines_of(stage: Callable[[Scene], Stage], scene: Scene) -> int:
    """How many lines the call has that can be died before."""
    code, lines = struck(stage(scene).act, {})
    assert code is None
    return lines


def telling_lines_of_call(stage: Stage) -> list[int]:
    return telling_lines(stage.act, stage.folder)


def leftovers(tools: WorkspaceTools) -> list[str]:
    return [path for path in tools.content() if ".kairos-" in path]


@pytest.mark.parametrize("each", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", SCENES)
def test_killed_before_any_line_all_is_done_or_nothing_was(
    stage: Callable[[Scene], Stage], name: str, each: bool
) -> None:
    scene = SCENES[name]
    states: set[str] = set()
    for line in range(1, lines_of(stage, scene) + 1) if each else telling_lines_of_call(stage(scene)):
        killed = stage(scene)
        assert killed.die(line)
        state, code = killed.look()
        states.add(state)
        assert code is None
        assert killed.tools.content() == (scene.after if state == "resolved" else scene.before), (line, state)
        if state == "not_done":  # then it is made again, under the same name
            assert killed.act() is None
            assert killed.tools.content() == scene.after
        assert killed.look() == ("resolved", None), "a second look finds the same"
        assert killed.tools.content() == scene.after
    assert states == {"resolved", "not_done"}


@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.slow)])
def test_killed_again_while_it_is_brought_to_its_end_it_still_comes_to_it(
    stage: Callable[[Scene], Stage], every: int
) -> None:
    scene = SCENES["several"]
    for line in telling_lines_of_call(stage(scene))[1::every]:
        tried = stage(scene)
        assert tried.die(line)
        for again in telling_lines(tried.look, tried.folder)[::every]:
            killed = stage(scene)
            assert killed.die(line)
            assert in_a_child(lambda at=again, on=killed: struck(on.look, {at: kill})[0]) is None
            state, code = killed.look()
            assert (code, leftovers(killed.tools)) == (None, [])
            assert killed.tools.content() == (scene.after if state == "resolved" else scene.before)


def test_what_somebody_wrote_meanwhile_stays_and_the_others_go_back(stage: Callable[[Scene], Stage]) -> None:
    scene = SCENES["several"]
    for line in telling_lines_of_call(stage(scene)):
        killed = stage(scene)
        assert killed.die(line)
        killed.tools.write({"d/b.txt": "theirs"})
        state, code = killed.look()
        assert (state, code) in (("resolved", "stale_file"), ("not_done", None)), line
        assert killed.tools.content() == scene.before | {"d/b.txt": "theirs"}


def test_a_file_that_is_gone_meanwhile_is_not_made_again(stage: Callable[[Scene], Stage]) -> None:
    scene = SCENES["several"]
    killed = stage(scene)
    assert killed.die(lines_of(stage, scene) // 2)
    (killed.tools.workspace / "d" / "c.txt").unlink()
    assert killed.look() == ("resolved", "stale_file")
    assert killed.tools.content() == {path: scene.before[path] for path in ("a.txt", "d/b.txt")}


@pytest.mark.parametrize("every", [13, pytest.param(2, marks=pytest.mark.slow)])
def test_a_version_that_was_displaced_when_the_crash_came_is_not_lost(
    stage: Callable[[Scene], Stage], every: int
) -> None:
    """Somebody writes before one line, and the crash comes before a later one: also between exchange and return."""
    scene = SCENES["edit"]
    displaced = 0
    for theirs in range(1, lines_of(stage, scene) + 1, every):
        tried = stage(scene)
        lines = telling_lines(tried.act, tried.folder, {theirs: partial(tried.others_write, "theirs")})
        for line in (line for line in (theirs + 1, *lines) if line > theirs):
            killed = stage(scene)
            if not killed.die(line, {theirs: partial(killed.others_write, "theirs")}):
                assert line == theirs + 1, "it has ended before, since they wrote before its last line"
                continue
            displaced += any(
                path.startswith(".kairos-") and text == "theirs" for path, text in killed.tools.content().items()
            )
            state, code = killed.look()
            assert (state, code) in (("resolved", "stale_file"), ("not_done", None)), (theirs, line)
            assert killed.tools.content() == {"t": "theirs"}, (theirs, line)
    assert displaced  # else the case was not met


def test_what_can_not_be_told_is_left_for_a_person(stage: Callable[[Scene], Stage]) -> None:
    """Two others wrote: one before the crash, and was displaced by it; one after."""
    scene = SCENES["edit"]
    total = lines_of(stage, scene)
    exchange = next(line for line in range(total, 0, -1) if _is_displaced(stage(scene), line))
    tried, unclear = stage(scene), 0
    lines = telling_lines(tried.act, tried.folder, {exchange: partial(tried.others_write, "first")})
    for line in (line for line in (exchange + 1, *lines) if line > exchange):
        killed = stage(scene)
        assert killed.die(line, {exchange: partial(killed.others_write, "first")})
        killed.others_write("second")
        state, code = killed.look()
        assert code == "stale_file"
        held = sorted(killed.tools.content().values())
        assert (state, held) in (("unclear", ["first", "second"]), ("resolved", ["second"]))
        unclear += state == "unclear"
    assert unclear


def _is_displaced(tried: Stage, line: int) -> bool:
    """Whether what another one writes before this line is noticed."""
    return struck(tried.act, {line: partial(tried.others_write, "theirs")})[0] == "stale_file"


def test_a_displaced_version_that_can_not_be_put_back_is_not_said_to_stand_in_the_file(
    stage: Callable[[Scene], Stage],
) -> None:
    """Somebody writes before the exchange, and what they wrote is moved away before it is put back."""
    scene = SCENES["edit"]
    total = lines_of(stage, scene)
    exchange = next(line for line in range(total, 0, -1) if _is_displaced(stage(scene), line))
    moved = 0
    for line in range(exchange + 1, total + 60):
        raced = stage(scene)

        def move_away(root: Path = raced.tools.workspace) -> None:
            for path in root.glob(".kairos-*.swap"):
                path.rename(root / "moved")

        blows = {exchange: partial(raced.others_write, "theirs"), line: move_away}
        result, _ = struck(raced.call, blows)
        if raced.tools.content() == {"t": "b", "moved": "theirs"}:
            moved += 1
            assert result.code == "stale_file"
            assert "nothing of it was replaced" not in result.content
    assert moved  # else the case was not met


def test_a_look_whose_time_is_over_writes_nothing_more(stage: Callable[[Scene], Stage]) -> None:
    """It counts as unclear by then, and a person may already have been asked."""
    scene = SCENES["several"]
    killed = stage(scene)
    assert killed.die(lines_of(stage, scene) // 2)
    before = killed.tools.content()
    late = killed.tools.context(0, step=STEP)
    assert probe_call(killed.tools.tool(scene.tool), killed.arguments, late).state == "unclear"
    assert killed.tools.content() == before
    assert killed.look() == ("resolved", None)


def test_a_plan_that_its_memory_lost_is_for_a_person(stage: Callable[[Scene], Stage], tmp_path: Path) -> None:
    killed = stage(SCENES["plan"])
    assert killed.die(60)
    kept = killed.tools.workspace.parent / "memory"
    os.unlink(kept / f"plan {killed.arguments['plan_id']}")
    assert killed.look() == ("unclear", "stale_file")


def test_an_intent_that_the_law_no_longer_gives_is_for_a_person(stage: Callable[[Scene], Stage]) -> None:
    """As after an update that would edit otherwise: what is made must be what was approved."""
    killed = stage(SCENES["several"])
    assert killed.die(60)
    before = killed.tools.content()
    intent = killed.tools.workspace.parent / "memory" / f"intent {STEP.replace('/', '+')}"
    after = sha256(b"1\n").hexdigest()
    assert after in intent.read_text()
    intent.write_text(intent.read_text().replace(after, "0" * 64))
    assert killed.look() == ("unclear", "stale_file")
    assert killed.tools.content() == before
