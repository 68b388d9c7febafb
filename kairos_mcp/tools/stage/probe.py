"""How a workspace can have a stage here: tried once, by writing through a layer and by starting a program on it."""

from __future__ import annotations

import os
import secrets
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from kairos_mcp.core.errors import KairosError
from kairos_mcp.core.paths import shorten_path
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.tools.commands.run_command import CommandSettings, make_sandbox
from kairos_mcp.tools.files.safe_open import file_system_type
from kairos_mcp.tools.stage.copies import find_copy_problem
from kairos_mcp.tools.stage.mounts import Mounts
from kairos_mcp.tools.stage.stage import discard_folder

MAX_LOOKED_AT = 1_000  # entries of a workspace whose owners are looked at


@dataclass(frozen=True, slots=True)
class StageWay:
    """How a run can have a stage. `problem`: why it can have none; `no_layer`: why not as a layer, but in a copy."""

    problem: str | None = None
    no_layer: str | None = None


def find_stage_way(workspace: Path, stages: Path, mounts: Mounts, commands: CommandSettings) -> StageWay:
    """Find out how a run can have a stage over this workspace. `stages`: the folder of the stages. Blocks for some
    100 ms."""
    if stages.resolve().is_relative_to(workspace.resolve()):
        return StageWay("the state folder is in the workspace")
    if (foreign := _find_foreign(workspace)) is not None:
        return StageWay(f"{shorten_path(foreign)} belongs to another user")
    folder = stages / f"probe-{os.getpid()}-{secrets.token_hex(4)}"
    try:
        folder.mkdir(parents=True, mode=0o700)
        no_layer = _find_layer_problem(workspace, folder, mounts, commands)
        if no_layer is None:
            return StageWay()
        problem = find_copy_problem(workspace, folder)
    except (KairosError, OSError) as error:
        return StageWay(error.message if isinstance(error, KairosError) else str(error))
    finally:
        discard_folder(folder)
        with suppress(OSError):  # others are in it, mostly
            stages.rmdir()
    return StageWay(no_layer=no_layer) if problem is None else StageWay(f"{no_layer}, and for a copy {problem}")


def _find_layer_problem(workspace: Path, folder: Path, mounts: Mounts, commands: CommandSettings) -> str | None:
    """Return why a run can't work on a layer; None if it can. `folder`: an empty one beside the stages."""
    if not sys.platform.startswith("linux"):
        return "this system has no overlays"
    if commands.mode == "bare":
        return "programs run without a sandbox"
    upper, work = folder / "upper", folder / "work"
    try:
        for each in (upper, work):
            each.mkdir(mode=0o700)
        _write_through(workspace, mounts, upper, work)
        sandbox = replace(make_sandbox(workspace, commands), layer=(upper, work))
        failure = sandbox.find_failure() if commands.mode == "sandboxed" else None
    except (KairosError, OSError) as error:
        return _explain(workspace, folder) or (error.message if isinstance(error, KairosError) else str(error))
    return None if failure is None else f"a program can't be started on a layer: {failure}"


def _write_through(workspace: Path, mounts: Mounts, upper: Path, work: Path) -> None:
    """Create, rename and remove a file on the layer, and open one of the workspace's for writing. Raises OSError."""
    root = mounts.mount([workspace], upper, work)
    try:
        name = f".kairos-{secrets.token_hex(6)}"
        os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600, dir_fd=root))
        os.rename(name, f"{name}.moved", src_dir_fd=root, dst_dir_fd=root)
        os.unlink(f"{name}.moved", dir_fd=root)
        with os.scandir(workspace) as scan:
            file = next((entry.name for entry in scan if entry.is_file(follow_symlinks=False)), None)
        if file is not None:
            with suppress(PermissionError):  # that file may be one that nobody writes
                os.close(os.open(file, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW, dir_fd=root))
    finally:
        os.close(root)


def _find_foreign(workspace: Path) -> str | None:
    """Return an entry at the top that belongs to another user, or the workspace itself: a layer can't change it."""
    mine = os.geteuid()
    if workspace.stat().st_uid != mine:
        return workspace.name
    with os.scandir(workspace) as scan:
        for count, entry in enumerate(scan):
            if count == MAX_LOOKED_AT:
                break
            if entry.stat(follow_symlinks=False).st_uid != mine:
                return entry.name
    return None


def _explain(workspace: Path, folder: Path) -> str | None:
    """Return why layers can't be mounted, where that is known."""
    inside = f"{workspace.resolve()}/"
    with suppress(OSError):
        for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            at = line.split(" ")[4].replace("\\040", " ")
            if at.startswith(inside):
                return f"a mount is inside the workspace ({shorten_path(at.removeprefix(inside))})"
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            kind = file_system_type(descriptor)
        finally:
            os.close(descriptor)
        if kind == "overlay":
            return "the state folder is on overlay: set --home to a volume"
    return None
