"""A control group that bounds how many tasks there are, for root alone: the kernel exempts root from RLIMIT_NPROC.

Where control groups can't be written, as in most containers, there is none, and the looks of spawned.py have to do.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from secrets import token_hex

EMPTY_S = 1.0  # until what has ended has left
_OURS = re.compile(r"kairos-(\d+)-[0-9a-f]+")


@contextlib.contextmanager
def bounded(tasks: int) -> Iterator[Path | None]:
    """The file by which a process joins a new group of at most so many tasks; None where there can be none."""
    group = _made(tasks) if os.geteuid() == 0 else None
    try:
        yield None if group is None else group / "cgroup.procs"
    finally:
        if group is not None:
            _remove(group)


def _made(tasks: int) -> Path | None:
    for parent in _parents():
        group = parent / f"kairos-{os.getpid()}-{token_hex(4)}"
        try:
            _sweep(parent)
            group.mkdir()
        except OSError:
            continue
        try:
            (group / "pids.max").write_text(str(tasks), encoding="ascii")
        except OSError:
            with contextlib.suppress(OSError):
                group.rmdir()
            continue
        return group
    return None


def _parents() -> Iterator[Path]:
    """Groups that may hold one of ours: of the first version our own, of the second the one above, since a group that
    has tasks of its own can't divide them."""
    try:
        groups = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    own = {controllers: path for _, controllers, path in (line.split(":", 2) for line in groups)}
    for line in mounts:
        left, _, right = line.partition(" - ")
        kind, _, options = right.split(" ", 2)
        root, point = left.split()[3:5]
        if kind == "cgroup" and "pids" in options.rpartition(" ")[2].split(",") and root == "/" and "pids" in own:
            yield Path(point + own["pids"])
        elif kind == "cgroup2" and root == "/" and "" in own:
            here = Path(point + own[""])
            yield here if here == Path(point) else here.parent


def _sweep(parent: Path) -> None:
    """Groups that a killed server left."""
    for group in parent.glob("kairos-*"):
        named = _OURS.fullmatch(group.name)
        if named is not None and not Path("/proc", named[1]).exists():
            with contextlib.suppress(OSError):
                group.rmdir()


def _remove(group: Path) -> None:
    until = time.monotonic() + EMPTY_S
    while time.monotonic() < until:
        try:
            group.rmdir()
        except FileNotFoundError:
            return
        except OSError:  # the last of it is not gone yet
            time.sleep(0.005)  # between two tries
        else:
            return
