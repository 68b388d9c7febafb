"""Edits against another program that swaps folders and writes files: none lands outside, none loses what it wrote."""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.tools import READ_BYTES, WorkspaceTools

from kairos_mcp.tools import Workspace, builtin_tools
from kairos_mcp.tools.registry import ToolRegistry

RACER = Path(__file__).with_name("racer.py")
TIMES = [300, pytest.param(20_000, marks=pytest.mark.slow)]
WITHIN_S = 20.0
MET = 10  # so often at least the other program has to come between
RACED: Counter[str | None] = Counter(("path_denied", "not_found", "stale_file"))
WAYS = ("rename", "twice", "place", "truncate")


@contextmanager
def racing(kind: str, root: Path) -> Iterator[subprocess.Popen[str]]:
    begins = [sys.executable, str(RACER), kind, str(root)]
    with subprocess.Popen(begins, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as racer:
        assert racer.stdin is not None
        try:
            yield racer
        finally:
            racer.stdin.close()
            assert racer.wait(20) == 0


@pytest.fixture
def tools(tmp_path: Path) -> Iterator[WorkspaceTools]:
    (tmp_path / "W").mkdir()
    (tmp_path / "outside").mkdir()
    with Workspace(tmp_path / "W") as open_workspace:
        if not open_workspace.by_exchange:
            pytest.skip("this system has no renameat2")
        yield WorkspaceTools(tmp_path / "W", ToolRegistry(builtin_tools(open_workspace, read_bytes=READ_BYTES)))


@pytest.mark.parametrize("times", TIMES)
@pytest.mark.parametrize("kind", ["swap", "away"])
def test_no_write_lands_outside_while_folders_are_swapped(
    tools: WorkspaceTools, tmp_path: Path, kind: str, times: int
) -> None:
    secret = tmp_path / "W-secret"
    secret.mkdir()
    (secret / "f").write_text("number 0 .\n")
    tools.write({"flip/f": "number 0 .\n"})
    os.symlink("../W-secret", tools.workspace / "link")
    seen: Counter[str | None] = Counter()
    made, number, ends = 0, 0, time.monotonic() + WITHIN_S
    with racing(kind, tmp_path) as racer:
        for n in itertools.count():
            if n >= times and (sum(seen[code] for code in RACED) > MET or time.monotonic() > ends):
                break  # the other program may begin late, and the first edits meet none of it
            if n % 3 == 2 and kind == "swap":  # where the folder is missing for a moment, it would be made anew
                code = tools.call("write_file", path=f"flip/new-{n}", content="new").code
                made += code is None
            else:
                edit = {"old_string": f"number {number} .", "new_string": f"number {number + 1} ."}
                code = tools.call("edit_file", path="flip/f", **edit).code
                number += code is None
            seen[code] += 1
        assert racer.stdin is not None
        assert racer.stdout is not None
        racer.stdin.write("\n")
        racer.stdin.flush()
        assert int(racer.stdout.readline()) > MET
    assert set(seen) <= {None, *RACED}, seen
    assert seen[None] > 0
    assert seen & RACED  # else nothing was raced
    assert (os.listdir(secret), (secret / "f").read_text()) == (["f"], "number 0 .\n")
    assert os.listdir(tmp_path / "outside") == []
    # Every edit that was said to be made is there, and no other: the number counts them.
    assert (tools.workspace / "flip" / "f").read_text() == f"number {number} .\n"
    names = os.listdir(tools.workspace / "flip")
    assert len(names) == made + 1
    assert [name for name in names if name.startswith(".kairos")] == []


@pytest.mark.parametrize("times", TIMES)
def test_nothing_that_another_wrote_is_lost(tools: WorkspaceTools, tmp_path: Path, times: int) -> None:
    file = tools.workspace / "f"
    chance = random.Random(times)
    seen: Counter[str | None] = Counter()
    with racing("write", tmp_path) as racer:
        assert racer.stdin is not None
        assert racer.stdout is not None
        for n in range(times):
            file.write_text(f"before {n} base\n")
            way = WAYS[n % len(WAYS)]
            racer.stdin.write(f"{n} {way} {chance.randrange(4_000)}\n")
            racer.stdin.flush()
            result = tools.call("edit_file", path="f", old_string="base", new_string="edit")
            assert racer.stdout.readline() == "done\n"
            assert file.read_text() in (f"theirs {n} base\n", f"theirs {n} edit\n"), (n, way, result.code)
            assert result.code in (None, "stale_file", "match_none"), result.content
            seen[result.code] += 1
    assert seen[None] > 0
    assert seen["stale_file"] > 0  # else nothing was raced
    assert os.listdir(tools.workspace) == ["f"]
