"""Finds the repositories inside a workspace, so that a sandbox can keep programs from writing their `.git` as well.

Whoever writes there decides what git does for the next one who works in that folder. They are held open while a
program starts: by a path another program could lead the sandbox elsewhere, by a descriptor nobody can.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass

FOLDERS = 5_000  # that are looked into, the nearest first: some 50 ms
REPOSITORIES = 32
HELD = 128  # descriptors: of each repository its `.git`, and the folders above it
ABOVE = 20  # the numbers below are the program's own streams, its leash, its status
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_PLACE = getattr(os, "O_PATH", os.O_RDONLY) | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Held:
    """Something in the workspace, opened: a `.git` (`sealed`), or a folder above one, which stays where it is."""

    path: str
    descriptor: int
    sealed: bool


@dataclass(frozen=True, slots=True)
class Nested:
    """What is held, a folder before what lies in it; `beyond`: there are more folders or repositories than are looked
    at, whose `.git` a program may write."""

    held: tuple[Held, ...] = ()
    beyond: bool = False


@contextlib.contextmanager
def nested(root: int, skipped: Collection[str]) -> Iterator[Nested]:
    """The repositories below the folder that is open as `root`, held open inside the block; its own `.git` is not
    among them, nor what lies in the `skipped` names at its top. Links are not followed."""
    found, beyond = _found(root, skipped)
    with contextlib.ExitStack() as opened:
        held: dict[str, Held] = {}
        for path in found:
            with contextlib.suppress(OSError):  # it went, or something else came: there is nothing to cover then
                held |= _hold(root, path, held, opened)
            if len(held) > HELD:
                beyond = True
                break
        yield Nested(tuple(sorted(held.values(), key=lambda each: each.path.count("/"))), beyond)


def _found(root: int, skipped: Collection[str]) -> tuple[list[str], bool]:
    """The paths of nested `.git`, nearest first and by name, and whether there may be more."""
    found: list[str] = []
    waiting = deque([""])
    for _ in range(FOLDERS):
        if not waiting:
            return found, False
        folder = waiting.popleft()
        names, below = _looked_into(root, folder)
        if folder and ".git" in names:
            found.append(f"{folder}.git")
            if len(found) == REPOSITORIES:
                return found, True
        waiting.extend(f"{folder}{name}/" for name in below if folder or name not in skipped)
    return found, bool(waiting)


def _looked_into(root: int, folder: str) -> tuple[set[str], list[str]]:
    """The names in a folder, and those of its folders, `.git` left out."""
    try:
        opened = _beneath(root, folder)
    except OSError:
        return set(), []
    try:
        with os.scandir(opened) as entries:
            kinds = {entry.name: entry.is_dir(follow_symlinks=False) for entry in entries}
    except OSError:
        return set(), []
    finally:
        os.close(opened)
    return set(kinds), sorted(name for name, is_folder in kinds.items() if is_folder and name != ".git")


def _hold(root: int, path: str, known: dict[str, Held], opened: contextlib.ExitStack) -> dict[str, Held]:
    """A `.git` and the folders above it that are not held yet. Raises OSError for a link, or what is gone."""
    held: dict[str, Held] = {}
    parts = path.split("/")
    for depth in range(1, len(parts) + 1):
        place = "/".join(parts[:depth])
        if place in known:
            continue
        above = _beneath(root, "".join(f"{part}/" for part in parts[: depth - 1]))
        try:
            low = os.open(parts[depth - 1], _PLACE, dir_fd=above)
        finally:
            os.close(above)
        try:
            if stat.S_ISLNK(os.fstat(low).st_mode):
                raise NotADirectoryError(place)
            descriptor = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, ABOVE)
        finally:
            os.close(low)
        opened.callback(os.close, descriptor)
        held[place] = Held(place, descriptor, sealed=depth == len(parts))
    return held


def _beneath(root: int, folder: str) -> int:
    """The folder (`a/b/`, or empty) opened name by name, no link followed. Raises OSError."""
    here = os.open(".", _FOLDER, dir_fd=root)
    for part in folder.split("/")[:-1]:
        try:
            inner = os.open(part, _FOLDER, dir_fd=here)
        finally:
            os.close(here)
        here = inner
    return here
