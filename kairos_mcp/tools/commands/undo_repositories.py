"""Undoes what a program left in repositories that its sandbox does not cover: new ones, bare ones, those too many.

A new repository is taken away, but for one below a build folder or an ignored one, as build tools fetch them: there it
stays without anything that makes git start programs. An old one gets back what it had.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Mapping
from pathlib import Path

from kairos_mcp.core.paths import DEPENDENCIES, printable_name, shorten_path
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.tools.commands.git_programs import (
    FileTexts,
    read_program_files,
    without_programs,
    write_program_files,
)
from kairos_mcp.tools.commands.protected_paths import ProtectedEntry
from kairos_mcp.tools.files.safe_open import open_without_links
from kairos_mcp.tools.files.walk import is_in_ignored_folder
from kairos_mcp.tools.files.workspace import Workspace

KeepTexts = Callable[[str, Mapping[str, str]], dict[str, str]]
"""Keeps the texts that were taken from a path; returns them as they are kept, once they survive a crash. Raises
OSError."""
BUILD_FOLDERS = DEPENDENCIES | {
    *("build", "_build", "cmake-build-debug", "cmake-build-release", "dist", "out", "target", "Pods", ".build"),
    *(".tox", ".nox", ".cache", ".gradle", ".terraform", ".pre-commit", "deps", "_deps", "venv"),
}
_POINTER_BYTES = 4_096


@dataclass(frozen=True, slots=True)
class RepositoryChange:
    """What became of a repository: a sentence, and whether the call failed by it. `keeps`: it stays where it is."""

    sentence: str | None
    is_failure: bool = False
    keeps: bool = True


def read_repository(root: int, path: str) -> dict[str, bytes] | None:
    """Return what could make git start programs in the repository at this plain path; None if that can't be read."""
    try:
        git_fd = open_without_links(root, [] if path == "." else path.split("/"))
    except NotADirectoryError:
        return {}  # a pointer to a repository elsewhere
    except OSError:
        return None
    try:
        return read_program_files(git_fd)
    except OSError:
        return None
    finally:
        os.close(git_fd)


def undo_new_repository(root: int, path: str, entry: ProtectedEntry, save: KeepTexts) -> RepositoryChange:
    """Take out of a new repository what starts programs. `keeps` is False if it has to be moved away as a whole."""
    in_build = is_build_place(root, path)
    if not entry.is_bare and (not in_build or entry.link_target is not None):
        return RepositoryChange(None, is_failure=True, keeps=False)
    if not entry.is_bare and stat.S_ISREG(entry.fingerprint[-1]):
        return RepositoryChange(None, is_failure=True, keeps=_leads_into_repository(root, path))
    found = read_repository(root, path)
    if found is None and not entry.is_bare:
        return RepositoryChange(None, is_failure=True, keeps=False)
    name = shorten_path(printable_name(path))
    if found is None:
        folder_fd = open_without_links(root, [])
        try:
            disable_repository(folder_fd, path)
        finally:
            os.close(folder_fd)
        return RepositoryChange(f"{name} is a new repository too large to look into; its HEAD was renamed.", True)
    wanted = without_programs(found)
    if wanted == found:
        return RepositoryChange(None)
    _write(root, path, found, wanted, save)
    taken = ", ".join(sorted(name for name in found if found[name] != wanted.get(name))[:5])
    return RepositoryChange(
        f"{name} is a new repository; what makes git start programs was taken out of it and into the record: {taken}.",
        is_failure=not in_build,
    )


def disable_repository(folder_fd: int, name: str) -> None:
    """Rename the HEAD of what may be a repository, so that git takes the folder for none; files stay as they are.

    A link is not followed: it may lead to a repository of the user's."""
    with contextlib.suppress(OSError):
        git_fd = open_without_links(folder_fd, name.split("/"))
        try:
            os.rename("HEAD", "HEAD.kairos-aside", src_dir_fd=git_fd, dst_dir_fd=git_fd)
        finally:
            os.close(git_fd)


def restore_repository(root: int, path: str, before: FileTexts, save: KeepTexts) -> str | None:
    """Give an old repository back what it had that makes git start programs; return a sentence if it had changed."""
    found = read_repository(root, path)
    if found == before:
        return None
    name = shorten_path(printable_name(path))
    if found is None:
        return f"{name} was changed, and can't be read; look at its hooks and its config before you use git there."
    _write(root, path, found, before, save)
    return f"{name} was changed in what makes git start programs; that was undone, and moved into the record."


def is_build_place(root: int, path: str) -> bool:
    """Whether this path lies below a folder that builds fill, by its name or by a .gitignore."""
    if not BUILD_FOLDERS.isdisjoint(path.split("/")[:-1]):
        return True
    with Workspace(Path(f"/proc/self/fd/{root}")) as workspace:
        return is_in_ignored_folder(workspace, path)


def _leads_into_repository(root: int, path: str) -> bool:
    """Whether the file `.git` names a folder inside a `.git` of the workspace, as a submodule's does.

    Each of those is protected itself, or was found as a new one.
    """
    top = os.path.realpath(f"/proc/self/fd/{root}")
    try:
        folder_fd = open_without_links(root, path.split("/")[:-1])
        try:
            fd = os.open(".git", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder_fd)
        finally:
            os.close(folder_fd)
        with os.fdopen(fd, "rb") as file:
            _, is_pointer, target = file.read(_POINTER_BYTES).partition(b"gitdir: ")
    except OSError:
        return False
    real = os.path.realpath(os.path.join(top, os.path.dirname(path), os.fsdecode(target.strip())))
    return bool(is_pointer) and real.startswith(f"{top}/") and ".git" in real.removeprefix(f"{top}/").split("/")


def _write(root: int, path: str, found: FileTexts, wanted: FileTexts, save: KeepTexts) -> None:
    """Write what is wanted, once the record holds what was found. Raises OSError."""
    taken = {name: found[name].decode("utf-8", "backslashreplace") for name in found if found[name] != wanted.get(name)}
    save(path, taken)
    git_fd = open_without_links(root, [] if path == "." else path.split("/"))
    try:
        write_program_files(git_fd, found, wanted)
    finally:
        os.close(git_fd)
