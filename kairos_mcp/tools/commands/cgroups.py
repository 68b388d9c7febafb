"""Makes a control group that bounds the number of tasks. Only for root, whom the kernel exempts from RLIMIT_NPROC.

Where control groups can't be written, as in most containers, none is made, and only the checks of runner.py remain.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from secrets import token_hex

REMOVAL_S = 1.0  # for killed tasks to leave the group, so that it can be removed
_GROUP_NAME = re.compile(r"kairos-(\d+)-[0-9a-f]+")


@contextlib.contextmanager
def task_limit_group(task_limit: int) -> Iterator[Path | None]:
    """Create a cgroup limited to `task_limit` tasks. Yield its `cgroup.procs` file, or None if cgroups are
    unavailable."""
    cgroup = _create_group(task_limit) if os.geteuid() == 0 else None
    try:
        yield None if cgroup is None else cgroup / "cgroup.procs"
    finally:
        if cgroup is not None:
            _remove_group(cgroup)


def _create_group(task_limit: int) -> Path | None:
    for parent in _find_parents():
        cgroup = parent / f"kairos-{os.getpid()}-{token_hex(4)}"
        try:
            _remove_abandoned(parent)
            cgroup.mkdir()
        except OSError:
            continue
        try:
            (cgroup / "pids.max").write_text(str(task_limit), encoding="ascii")
        except OSError:
            with contextlib.suppress(OSError):
                cgroup.rmdir()
            continue
        return cgroup
    return None


def _find_parents() -> Iterator[Path]:
    """Find the groups that ours can be made in: our own group in version 1 of cgroups; in version 2 its parent, since
    there a group that has tasks of its own can't have limited subgroups."""
    try:
        groups = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    own_paths = {controllers: path for _, controllers, path in (line.split(":", 2) for line in groups)}
    for line in mounts:
        left, _, right = line.partition(" - ")
        file_system, _, options = right.split(" ", 2)
        root, mount_point = left.split()[3:5]
        if (
            file_system == "cgroup"
            and "pids" in options.rpartition(" ")[2].split(",")
            and root == "/"
            and "pids" in own_paths
        ):
            yield Path(mount_point + own_paths["pids"])
        elif file_system == "cgroup2" and root == "/" and "" in own_paths:
            own_group = Path(mount_point + own_paths[""])
            yield own_group if own_group == Path(mount_point) else own_group.parent


def _remove_abandoned(parent: Path) -> None:
    """Remove groups that killed servers left behind."""
    for cgroup in parent.glob("kairos-*"):
        match = _GROUP_NAME.fullmatch(cgroup.name)
        if match is not None and not Path("/proc", match[1]).exists():
            with contextlib.suppress(OSError):
                cgroup.rmdir()


def _remove_group(cgroup: Path) -> None:
    deadline = time.monotonic() + REMOVAL_S
    while time.monotonic() < deadline:
        try:
            cgroup.rmdir()
        except FileNotFoundError:
            return
        except OSError:  # a task in it is still dying
            time.sleep(0.005)  # between two tries
        else:
            return
