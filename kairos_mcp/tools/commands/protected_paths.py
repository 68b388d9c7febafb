"""Finds what no program may write in a workspace: the `.git` of repositories, and what instructs agents or hosts.

Whoever writes into `.git` decides what git does for the next person working there; whoever writes `.mcp.json` or
`.vscode` decides what a host starts. What is found is held open while a sandbox is built on it: a path could be made
to lead elsewhere meanwhile, a descriptor can't.
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

from kairos_mcp.core.instruction_files import INSTRUCTION_GLOBS
from kairos_mcp.core.paths import Globs, Scopes
from kairos_mcp.tools.commands.reserved_names import RESERVED_NAMES, is_placeholder

MAX_FOLDERS = 5_000  # to look into, those nearest to the top first: this takes some 100 ms
MAX_REPOSITORIES = 32
MAX_INSTRUCTIONS = 500
MAX_HELD = 160  # descriptors of protected entries and the folders above them
MIN_HELD_FD = 20  # lower descriptors are the program's streams, its leash and its status file
# Those that a placeholder holds where nothing stands; what a program makes at any other is undone when it has ended.
PLACEHOLDERS = frozenset(
    (
        *("AGENTS.md", "CLAUDE.md", "CLAUDE.local.md", "GEMINI.md", "SKILL.md", ".cursorrules", ".windsurfrules"),
        *(".claude", ".codex", ".cursor", ".gemini", ".github", ".vscode", ".devcontainer", ".envrc", ".husky"),
        ".mcp.json",
    )
)
# Others' packages: they instruct nobody here.
DEPENDENCIES = frozenset(("node_modules", ".venv", "site-packages", "vendor"))
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_ENTRY_FLAGS = getattr(os, "O_PATH", os.O_RDONLY) | os.O_NOFOLLOW | os.O_CLOEXEC

# How a folder is searched. open: for all that is protected. within: it is an instruction folder with exceptions, so
# everything but those is protected. free: for `.git` alone.
_FolderKind = Literal["open", "within", "free"]


@dataclass(frozen=True, slots=True)
class ProtectionRules:
    """Which paths are instructions that no program may write, and which of them a person has allowed (`exceptions`).

    `long_lived`: for a program that runs longer than placeholders stand; they are not protected then.
    """

    instructions: Globs = field(default_factory=Globs)
    exceptions: Globs = field(default_factory=Globs)
    long_lived: bool = False

    @staticmethod
    def from_scopes(scopes: Scopes, exceptions: Collection[str] = (), *, long_lived: bool = False) -> ProtectionRules:
        return ProtectionRules(Globs.compile(scopes.instructions), Globs.compile(exceptions), long_lived)

    def placeholder_names(self) -> tuple[str, ...]:
        """Return the names that need a placeholder at the top of a workspace if nothing stands there."""
        names = [name for name in self.instructions.names if name in PLACEHOLDERS or name not in INSTRUCTION_GLOBS]
        return tuple(
            name for name in names if not self.exceptions.matches(name) and not self.exceptions.may_match_below(name)
        )


@dataclass(frozen=True, slots=True)
class ProtectedEntry:
    """What stands at a protected path.

    `link_target` is set for a symbolic link, which no mount can cover. `fingerprint` differs once it was changed or
    replaced.
    """

    is_repository: bool
    link_target: str | None
    fingerprint: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ProtectedSurvey:
    """Everything protected that was found, by its plain path. `unvisited` are folders (`a/b/`) beyond MAX_FOLDERS."""

    entries: Mapping[str, ProtectedEntry] = field(default_factory=dict)
    unvisited: frozenset[str] = frozenset()

    def has_visited(self, path: str) -> bool:
        """Return whether the path's folder was searched, so that `entries` would have it."""
        return not any(path.startswith(folder) for folder in self.unvisited)


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
        """Return the protected paths that are not held open, since there were too many; links are never held."""
        held = {entry.path for entry in self.entries if entry.is_protected}
        return [path for path, entry in self.survey.entries.items() if path not in held and entry.link_target is None]


@contextlib.contextmanager
def hold_protected_paths(root: int, rules: ProtectionRules, skipped: Collection[str] = ()) -> Iterator[HeldPaths]:
    """Find what is protected in the workspace that is open as `root`, and hold it open inside the block.

    `skipped` are names at the top of the workspace that are protected otherwise.
    """
    survey = survey_protected_paths(root, rules, skipped)
    # The nearest first, repositories before instructions: there are MAX_HELD descriptors at most.
    ordered = sorted(survey.entries, key=lambda path: (path.count("/"), not survey.entries[path].is_repository, path))
    with contextlib.ExitStack() as stack:
        held: dict[str, HeldEntry] = {}
        for path in ordered:
            if survey.entries[path].link_target is None and len(held) + path.count("/") < MAX_HELD:
                with contextlib.suppress(OSError):  # it was removed or replaced: there is nothing to cover
                    held |= _open_held(root, path, held, stack)
        yield HeldPaths(survey, tuple(sorted(held.values(), key=lambda entry: entry.path.count("/"))))


def survey_protected_paths(root: int, rules: ProtectionRules, skipped: Collection[str] = ()) -> ProtectedSurvey:
    """Search a workspace for what is protected: top folders first, dependencies last. Links are not followed."""
    walk = _SurveyWalk(root, rules)
    near: deque[tuple[str, _FolderKind]] = deque([("", "open")])
    far: deque[tuple[str, _FolderKind]] = deque()
    for _ in range(MAX_FOLDERS):
        if walk.is_full or not (near or far):
            break
        folder, kind = (near or far).popleft()
        for name, subkind in walk.visit_folder(folder, kind, skipped if not folder else ()):
            (far if subkind == "free" else near).append((f"{folder}{name}/", subkind))
    walk.add_link_targets()
    return ProtectedSurvey(walk.entries, frozenset(folder for folder, _ in (*near, *far)))


class _SurveyWalk:
    """One search of a workspace, and what it has found so far."""

    def __init__(self, root: int, rules: ProtectionRules) -> None:
        self.entries: dict[str, ProtectedEntry] = {}
        self._root = root
        self._rules = rules
        self._repositories = 0

    @property
    def is_full(self) -> bool:
        return self._repositories >= MAX_REPOSITORIES or len(self.entries) >= MAX_INSTRUCTIONS

    def visit_folder(self, folder: str, kind: _FolderKind, skipped: Collection[str]) -> list[tuple[str, _FolderKind]]:
        """Record what is protected in a folder (`a/b/`, or empty for the top); return its subfolders to search."""
        subfolders: list[tuple[str, _FolderKind]] = []
        with contextlib.suppress(OSError):  # it is gone, or may not be read: then no program can write it
            # Opened by its path: a folder that was swapped for a link is at most looked into, never held.
            folder_fd = os.open(folder or ".", _FOLDER_FLAGS, dir_fd=self._root)
            try:
                with os.scandir(folder_fd) as entries:
                    for entry in sorted(entries, key=lambda entry: entry.name):
                        if entry.name not in skipped and (subkind := self._visit_entry(entry, folder, folder_fd, kind)):
                            subfolders.append((entry.name, subkind))
            finally:
                os.close(folder_fd)
        return subfolders

    def _visit_entry(
        self, entry: os.DirEntry[str], folder: str, folder_fd: int, kind: _FolderKind
    ) -> _FolderKind | None:
        """Record an entry if it is protected; else return how to search it if it is a folder."""
        path, is_folder = folder + entry.name, entry.is_dir(follow_symlinks=False)
        if not folder and entry.name in RESERVED_NAMES:
            self._record(path, folder_fd, is_repository=False)  # like an instruction: no program may make it
            return None
        if entry.name == ".git":
            if not entry.is_symlink():
                self._record(path, folder_fd, is_repository=True)
                self._repositories += 1
            return None
        subkind: _FolderKind = "free" if kind == "free" or entry.name in DEPENDENCIES else "open"
        if subkind == "open" and (kind == "within" or self._rules.instructions.matches(path)):
            if self._rules.exceptions.matches(path):
                subkind = "free"
            elif is_folder and self._rules.exceptions.may_match_below(path):
                subkind = "within"
            else:
                self._record(path, folder_fd, is_repository=False)
                return None
        return subkind if is_folder else None

    def _record(self, path: str, folder_fd: int, *, is_repository: bool) -> None:
        name = path.rpartition("/")[2]
        with contextlib.suppress(OSError):  # it is gone
            status = os.stat(name, dir_fd=folder_fd, follow_symlinks=False)
            if self._rules.long_lived and path == name and is_placeholder(status) and _is_empty(folder_fd, name):
                return
            link_target = os.readlink(name, dir_fd=folder_fd) if stat.S_ISLNK(status.st_mode) else None
            self.entries[path] = ProtectedEntry(is_repository, link_target, _fingerprint(status))

    def add_link_targets(self) -> None:
        """Record what protected links lead to inside the workspace, since writing that changes what they show."""
        top = os.path.realpath(f"/proc/self/fd/{self._root}")
        for path in [path for path, entry in self.entries.items() if entry.link_target is not None]:
            real = os.path.realpath(f"{top}/{path}")
            target = real.removeprefix(f"{top}/")
            if target in (real, "") or target.split("/")[0] == ".git" or path.startswith(f"{target}/"):
                continue  # outside, where nothing can be written; or a folder that holds the link itself
            if not any(target == known or target.startswith(f"{known}/") for known in self.entries):
                with contextlib.suppress(OSError):
                    self.entries[target] = ProtectedEntry(False, None, _fingerprint(os.lstat(real)))


def _is_empty(folder_fd: int, name: str) -> bool:
    fd = os.open(name, _FOLDER_FLAGS, dir_fd=folder_fd)
    try:
        return not os.listdir(fd)
    finally:
        os.close(fd)


def _fingerprint(status: os.stat_result) -> tuple[int, ...]:
    return status.st_ino, status.st_ctime_ns, status.st_size, stat.S_IFMT(status.st_mode)


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
            fd = os.open(parts[depth - 1], _ENTRY_FLAGS, dir_fd=folder_fd)
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


def open_without_links(root: int, parts: Collection[str]) -> int:
    """Open a folder below `root` name by name, so that no link is followed. Raises OSError."""
    fd = os.open(".", _FOLDER_FLAGS, dir_fd=root)
    for part in parts:
        try:
            inner_fd = os.open(part, _FOLDER_FLAGS, dir_fd=fd)
        finally:
            os.close(fd)
        fd = inner_fd
    return fd
