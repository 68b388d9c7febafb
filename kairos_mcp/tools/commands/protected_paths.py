"""Finds what in a workspace no program may write: `.git` of repositories, and what instructs agents or their hosts.

Who writes a `.git` decides what git does for the next one who works in that folder; who writes `.mcp.json` or
`.vscode` decides what a host starts. What is found is held open while a sandbox is built of it: by a path another
program could lead the sandbox elsewhere, by a descriptor nobody can.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from kairos_mcp.core.scopes import Globs, Scopes
from kairos_mcp.tools.commands.name_holders import NAMES, is_placeholder

FOLDERS = 5_000  # that are looked into, the nearest first: some 100 ms
REPOSITORIES = 32
INSTRUCTIONS = 500
HELD = 160  # descriptors: of what is found, and of the folders above it
ABOVE = 20  # the numbers below are the program's own streams, its leash, its status
DEPENDENCIES = frozenset(("node_modules", ".venv", "site-packages", "vendor"))  # others' files, instructions to nobody
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_PLACE = getattr(os, "O_PATH", os.O_RDONLY) | os.O_NOFOLLOW | os.O_CLOEXEC

_Where = Literal["open", "within", "free"]  # as usual; in an instruction folder with exceptions; only `.git` counts


@dataclass(frozen=True, slots=True)
class ProtectionRules:
    """Which paths are instructions that no program writes, and which of them a person has left open (`excepted`).

    `lasting`: for what runs longer than placeholders are held, for which they count as nothing.
    """

    instructions: Globs = field(default_factory=Globs)
    excepted: Globs = field(default_factory=Globs)
    lasting: bool = False

    @staticmethod
    def of(scopes: Scopes, excepted: Collection[str] = (), *, lasting: bool = False) -> ProtectionRules:
        return ProtectionRules(Globs.compile(scopes.instructions), Globs.compile(excepted), lasting)

    def placeholders(self) -> tuple[str, ...]:
        """The names to be held at the top of a workspace where nothing is."""
        names = self.instructions.names
        return tuple(
            each for each in names if not self.excepted.matches(each) and not self.excepted.may_match_below(each)
        )


@dataclass(frozen=True, slots=True)
class ProtectedEntry:
    """What stands at a protected path. `link`: where it leads, for a symbolic link, which no mount can cover.
    `mark` is another one when it was changed or replaced."""

    repository: bool
    link: str | None
    mark: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ProtectedSurvey:
    """Everything protected that is there, by its plain path; `unseen` are the folders (`a/b/`) that were too many, or
    too deep, to be looked into."""

    found: Mapping[str, ProtectedEntry] = field(default_factory=dict)
    unseen: frozenset[str] = frozenset()

    def saw(self, path: str) -> bool:
        """Whether the path would be in `found` if it had been there."""
        return not any(path.startswith(folder) for folder in self.unseen)


@dataclass(frozen=True, slots=True)
class HeldEntry:
    """Something in the workspace, opened: what is protected (`sealed`), or a folder above it, which stays in place."""

    path: str
    descriptor: int
    sealed: bool


@dataclass(frozen=True, slots=True)
class HeldPaths:
    """What was found, and what of it is held open, a folder before what lies in it."""

    survey: ProtectedSurvey = field(default_factory=ProtectedSurvey)
    held: tuple[HeldEntry, ...] = ()

    def loose(self) -> list[str]:
        """What is protected and not held, since there was too much."""
        sealed = {each.path for each in self.held if each.sealed}
        return [path for path, each in self.survey.found.items() if path not in sealed and each.link is None]


@contextlib.contextmanager
def protected(root: int, rules: ProtectionRules, skipped: Collection[str] = ()) -> Iterator[HeldPaths]:
    """What is protected in the workspace that is open as `root`, held open inside the block; without what lies in the
    `skipped` names at its top."""
    survey = surveyed(root, rules, skipped)
    with contextlib.ExitStack() as opened:
        held: dict[str, HeldEntry] = {}
        for path in sorted(survey.found, key=lambda each: (each.count("/"), not survey.found[each].repository, each)):
            if survey.found[path].link is None and len(held) + path.count("/") < HELD:
                with contextlib.suppress(OSError):  # it went, or something else came: there is nothing to cover then
                    held |= _hold(root, path, held, opened)
        yield HeldPaths(survey, tuple(sorted(held.values(), key=lambda each: each.path.count("/"))))


def surveyed(root: int, rules: ProtectionRules, skipped: Collection[str] = ()) -> ProtectedSurvey:
    """Look for what is protected: nearest first, folders of dependencies last. Links are not followed."""
    look = _SurveyWalk(root, rules)
    near: deque[tuple[str, _Where]] = deque([("", "open")])
    far: deque[tuple[str, _Where]] = deque()
    for _ in range(FOLDERS):
        if look.is_full or not (near or far):
            break
        folder, where = (near or far).popleft()
        for name, below in look.into(folder, where, skipped if not folder else ()):
            (far if below == "free" else near).append((f"{folder}{name}/", below))
    look.follow_links()
    return ProtectedSurvey(look.found, frozenset(folder for folder, _ in (*near, *far)))


class _SurveyWalk:
    """One look through a workspace, and what it has found so far."""

    def __init__(self, root: int, rules: ProtectionRules) -> None:
        self.found: dict[str, ProtectedEntry] = {}
        self._root = root
        self._rules = rules
        self._repositories = 0

    @property
    def is_full(self) -> bool:
        return self._repositories >= REPOSITORIES or len(self.found) >= INSTRUCTIONS

    def into(self, folder: str, where: _Where, skipped: Collection[str]) -> list[tuple[str, _Where]]:
        """Note what is protected in a folder (`a/b/`, or empty); the folders in it that are to be looked into."""
        below: list[tuple[str, _Where]] = []
        with contextlib.suppress(OSError):  # it went, or may not be read, and so not be written
            # By its path, in one step: a name that was led elsewhere is only looked at, and is held by no descriptor.
            opened = os.open(folder or ".", _FOLDER, dir_fd=self._root)
            try:
                with os.scandir(opened) as entries:
                    for entry in sorted(entries, key=lambda each: each.name):
                        if entry.name not in skipped and (how := self._entry(entry, folder, opened, where)):
                            below.append((entry.name, how))
            finally:
                os.close(opened)
        return below

    def _entry(self, entry: os.DirEntry[str], folder: str, opened: int, where: _Where) -> _Where | None:
        """Note an entry that is protected; else, for a folder, how that is looked into."""
        path, is_folder = folder + entry.name, entry.is_dir(follow_symlinks=False)
        if not folder and entry.name in NAMES:
            self._note(path, opened, repository=False)  # as an instruction: it can't be made anew
            return None
        if entry.name == ".git":
            if not entry.is_symlink():
                self._note(path, opened, repository=True)
                self._repositories += 1
            return None
        below: _Where = "free" if where == "free" or entry.name in DEPENDENCIES else "open"
        if below == "open" and (where == "within" or self._rules.instructions.matches(path)):
            if self._rules.excepted.matches(path):
                below = "free"
            elif is_folder and self._rules.excepted.may_match_below(path):
                below = "within"
            else:
                self._note(path, opened, repository=False)
                return None
        return below if is_folder else None

    def _note(self, path: str, opened: int, *, repository: bool) -> None:
        name = path.rpartition("/")[2]
        with contextlib.suppress(OSError):  # it went
            kind = os.stat(name, dir_fd=opened, follow_symlinks=False)
            if self._rules.lasting and path == name and is_placeholder(kind) and _is_empty(opened, name):
                return
            link = os.readlink(name, dir_fd=opened) if stat.S_ISLNK(kind.st_mode) else None
            self.found[path] = ProtectedEntry(repository, link, _mark(kind))

    def follow_links(self) -> None:
        """What a link of a protected name leads to inside the workspace is protected as well."""
        top = os.path.realpath(f"/proc/self/fd/{self._root}")
        for path in [path for path, each in self.found.items() if each.link is not None]:
            real = os.path.realpath(f"{top}/{path}")
            within = real.removeprefix(f"{top}/")
            if within in (real, "") or within.split("/")[0] == ".git" or path.startswith(f"{within}/"):
                continue  # elsewhere, where nothing is written; or a folder that holds the link itself
            if not any(within == each or within.startswith(f"{each}/") for each in self.found):
                with contextlib.suppress(OSError):
                    self.found[within] = ProtectedEntry(False, None, _mark(os.lstat(real)))


def _is_empty(above: int, name: str) -> bool:
    opened = os.open(name, _FOLDER, dir_fd=above)
    try:
        return not os.listdir(opened)
    finally:
        os.close(opened)


def _mark(kind: os.stat_result) -> tuple[int, ...]:
    return kind.st_ino, kind.st_ctime_ns, kind.st_size, stat.S_IFMT(kind.st_mode)


def _hold(root: int, path: str, known: Mapping[str, HeldEntry], opened: contextlib.ExitStack) -> dict[str, HeldEntry]:
    """A protected path and the folders above it that are not held yet. Raises OSError for a link, or what is gone."""
    held: dict[str, HeldEntry] = {}
    parts = path.split("/")
    for depth in range(1, len(parts) + 1):
        place = "/".join(parts[:depth])
        if place in known:
            continue
        above = opened_beneath(root, parts[: depth - 1])
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
        held[place] = HeldEntry(place, descriptor, sealed=depth == len(parts))
    return held


def opened_beneath(root: int, parts: Collection[str]) -> int:
    """A folder opened name by name, no link followed. Raises OSError."""
    here = os.open(".", _FOLDER, dir_fd=root)
    for part in parts:
        try:
            inner = os.open(part, _FOLDER, dir_fd=here)
        finally:
            os.close(here)
        here = inner
    return here
