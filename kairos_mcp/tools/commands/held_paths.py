"""Holds what is protected in a workspace open while a sandbox is built on it, and a program runs in that.

A path could be made to lead elsewhere meanwhile, a descriptor can't.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections.abc import Collection, Iterator, Mapping
from dataclasses import field
from types import MappingProxyType

from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.tools.commands.protected_paths import (
    ENTRY_FLAGS,
    IsUnreadable,
    ProtectedSurvey,
    ProtectionRules,
    SeenFolder,
    survey_protected_paths,
)
from kairos_mcp.tools.files.safe_open import open_without_links

MAX_HELD = 160  # descriptors of protected entries and the folders above them
MIN_HELD_FD = 20  # lower descriptors are the program's streams, its leash and its status file


@dataclass(frozen=True, slots=True)
class HeldEntry:
    """An open descriptor of something protected, or of a folder above it, which must not be moved away."""

    path: str
    descriptor: int
    is_protected: bool


@dataclass(frozen=True, slots=True)
class HeldPaths:
    """What a survey found, and what of it is held open; a folder comes before what lies in it."""

    survey: ProtectedSurvey = field(default_factory=ProtectedSurvey)
    entries: tuple[HeldEntry, ...] = ()

    def list_unheld(self) -> list[str]:
        """Return the protected paths that a program could write, but for links: those that are not held open, since
        there were too many, and bare repositories."""
        covered = {entry.path for entry in self.entries if entry.is_protected}
        found = self.survey.entries.items()
        return [path for path, entry in found if path not in covered and entry.link_target is None]


@contextlib.contextmanager
def hold_protected_paths(
    root: int,
    rules: ProtectionRules,
    skipped: Collection[str] = (),
    is_unreadable: IsUnreadable | None = None,
    known: Mapping[str, SeenFolder] = MappingProxyType({}),
) -> Iterator[HeldPaths]:
    """Find what is protected in the workspace that is open as `root`, and hold it open inside the block.

    `skipped` are names at the top of the workspace that are protected otherwise. `is_unreadable` says which files no
    program may read, `known` what an earlier search by the same rules has `seen`. Raises CommandDenied if there are too
    many of these files.
    """
    survey = survey_protected_paths(root, rules, skipped, is_unreadable, known)
    # The nearest first, repositories before instructions: there are MAX_HELD descriptors at most.
    ordered = sorted(survey.entries, key=lambda path: (path.count("/"), not survey.entries[path].is_repository, path))
    with contextlib.ExitStack() as stack:
        held: dict[str, HeldEntry] = {}
        for path in ordered:
            entry = survey.entries[path]
            if entry.link_target is None and not entry.is_bare and len(held) + path.count("/") < MAX_HELD:
                with contextlib.suppress(OSError):  # it was removed or replaced: there is nothing to cover
                    held |= _open_held(root, path, held, stack)
        yield HeldPaths(survey, tuple(sorted(held.values(), key=lambda entry: entry.path.count("/"))))


def _open_held(
    root: int, path: str, known: Mapping[str, HeldEntry], stack: contextlib.ExitStack
) -> dict[str, HeldEntry]:
    """Open a protected path, and the folders above it that are not `known` yet. Raises OSError if it is a link or gone.

    The descriptors are closed by `stack`.
    """
    held: dict[str, HeldEntry] = {}
    parts = path.split("/")
    for depth in range(1, len(parts) + 1):
        partial_path = "/".join(parts[:depth])
        if partial_path in known:
            continue
        folder_fd = open_without_links(root, parts[: depth - 1])
        try:
            fd = os.open(parts[depth - 1], ENTRY_FLAGS, dir_fd=folder_fd)
        finally:
            os.close(folder_fd)
        try:
            if stat.S_ISLNK(os.fstat(fd).st_mode):
                raise NotADirectoryError(partial_path)
            descriptor = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, MIN_HELD_FD)
        finally:
            os.close(fd)
        stack.callback(os.close, descriptor)
        held[partial_path] = HeldEntry(partial_path, descriptor, is_protected=depth == len(parts))
    return held


def remove_mount_points(root: int, held: HeldPaths) -> None:
    """Remove what a sandbox made to mount on: an empty entry, in place of one that somebody removed right before.

    No link is followed, which a program may have put in the place of a folder."""
    inodes = {path: entry.fingerprint[0] for path, entry in held.survey.entries.items()} | dict(held.survey.unreadable)
    mounted = {entry.path for entry in held.entries if entry.is_protected} | held.survey.unreadable.keys()
    for path in mounted:
        *folders, name = path.split("/")
        with contextlib.suppress(OSError):  # it is gone, or not empty and so somebody's own
            folder_fd = open_without_links(root, folders)
            try:
                _remove_mount_point(folder_fd, name, inodes[path])
            finally:
                os.close(folder_fd)


def _remove_mount_point(folder_fd: int, name: str, inode: int) -> None:
    status = os.stat(name, dir_fd=folder_fd, follow_symlinks=False)
    if status.st_ino == inode:
        return
    if stat.S_ISDIR(status.st_mode):
        os.rmdir(name, dir_fd=folder_fd)
    elif status.st_size == 0:
        os.unlink(name, dir_fd=folder_fd)
