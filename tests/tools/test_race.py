"""PATH-010: a name that is swapped between a folder and a link to the outside never lets the outside in."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kairos_mcp.core.errors import KairosError, NotFound, PathDenied
from kairos_mcp.tools import Workspace

WITHIN_S = 20.0
NAIVE_READS = 100_000  # at most; it ends with the first escape


@contextmanager
def swap_folder(workspace: Path) -> Iterator[Path]:
    """Make `flip` a folder with a file at one moment and a link to the secret at the next."""
    folder, link, flip = (str(workspace / name) for name in ("folder", "link", "flip"))
    os.mkdir(flip)
    Path(flip, "f").write_text("inside")
    os.symlink("../W-secret", link)
    over = threading.Event()

    def swap() -> None:
        while not over.is_set():
            os.rename(flip, folder)
            os.rename(link, flip)
            os.rename(flip, link)
            os.rename(folder, flip)

    thread = threading.Thread(target=swap)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # threads take turns often, which is what a race needs
    thread.start()
    try:
        yield workspace
    finally:
        over.set()
        thread.join()
        sys.setswitchinterval(interval)


def reads(read: Callable[[str], bytes], times: int) -> Counter[str]:
    """What so many reads came to; more of them until both sides of the swap were met, as a busy machine may need."""
    seen: Counter[str] = Counter()
    until = time.monotonic() + WITHIN_S
    while seen.total() < times or (not (seen["inside"] and len(seen) > 1) and time.monotonic() < until):
        try:
            seen[read("flip/f").decode()] += 1
        except (KairosError, OSError) as error:
            seen[type(error).__name__] += 1
        if seen["SECRET"]:
            break
    return seen


@pytest.mark.parametrize("times", [2_000, pytest.param(20_000, marks=pytest.mark.slow)])
def test_no_read_escapes_while_the_name_is_swapped(open_workspace: Workspace, workspace: Path, times: int) -> None:
    def read(path: str) -> bytes:
        with open_workspace.open_file(path) as opened:
            return opened.read(100)

    with swap_folder(workspace):
        seen = reads(read, times)
    assert seen["SECRET"] == 0
    assert set(seen) <= {"inside", PathDenied.__name__, NotFound.__name__}
    assert seen.total() >= times
    assert seen["inside"] > 0
    assert seen[PathDenied.__name__] + seen[NotFound.__name__] > 0  # else nothing was swapped


def test_a_check_followed_by_an_open_does_escape_so_the_race_is_real(workspace: Path) -> None:
    root = os.path.realpath(workspace)

    def read(path: str) -> bytes:
        full = os.path.join(root, path)
        if not os.path.realpath(full).startswith(root + os.sep):
            raise PathDenied("outside")
        with open(os.open(full, os.O_RDONLY | os.O_NOFOLLOW), "rb") as opened:
            return opened.read(100)

    with swap_folder(workspace):
        assert reads(read, NAIVE_READS)["SECRET"] == 1


def test_closing_while_others_open_never_opens_beneath_another_folder(workspace: Path) -> None:
    """A descriptor's number that is given away too early would open beneath the folder that gets it next."""
    secret = workspace.parent / "W-secret"
    (workspace / "f").write_text("inside")
    for _ in range(200):
        open_workspace = Workspace(workspace)
        seen: list[bytes] = []

        def read(open_workspace: Workspace = open_workspace, seen: list[bytes] = seen) -> None:
            try:
                while True:
                    with open_workspace.open_file("f") as opened:
                        seen.append(opened.read(100))
            except ValueError:
                return  # closed

        thread = threading.Thread(target=read)
        thread.start()
        open_workspace.close()
        others = [os.open(secret, os.O_RDONLY) for _ in range(3)]
        thread.join()
        for other in others:
            os.close(other)
        assert set(seen) <= {b"inside"}
