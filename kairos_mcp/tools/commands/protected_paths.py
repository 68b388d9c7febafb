"""Finds what no program may write in a workspace, repositories and instructions, and what none may read.

Whoever writes into `.git` decides what git does for the next person working there; whoever writes `.mcp.json` or
`.vscode` decides what a host starts. What is found is held open while a sandbox is built on it: a path could be made
to lead elsewhere meanwhile, a descriptor can't. What is absent can't be held; `undo_writes` takes it away afterwards.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from kairos_mcp.core.errors import CommandDenied
from kairos_mcp.core.paths import Globs, Scopes
from kairos_mcp.tools.commands.git_programs import is_repository

RESERVED_NAMES = (".git", ".kairos")  # whoever writes there decides what git, or this server, does here next
MAX_FOLDERS = 5_000  # to look into, those nearest to the top first: this takes some 100 ms
MAX_REPOSITORIES = 32
MAX_INSTRUCTIONS = 500
MAX_HELD = 160  # descriptors of protected entries and the folders above them
MAX_UNREADABLE = 500  # files that no program may read: each is a mount
MAX_LISTED = 300_000  # folders to look for these in, by names alone: 50,000 take half a second
MIN_HELD_FD = 20  # lower descriptors are the program's streams, its leash and its status file
# Others' packages: they instruct nobody here.
DEPENDENCIES = frozenset(("node_modules", ".venv", "site-packages", "vendor"))
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_ENTRY_FLAGS = getattr(os, "O_PATH", os.O_RDONLY) | os.O_NOFOLLOW | os.O_CLOEXEC

# How a folder is searched. open: for all that is protected. within: it is an instruction folder with exceptions, so
# everything but those is protected. free: for repositories alone. covered: it is protected with all that it holds.
_FolderKind = Literal["open", "within", "free", "covered"]
IsUnreadable = Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class ProtectionRules:
    """Which paths are instructions that no program may write, and which of them a person has allowed (`exceptions`)."""

    instructions: Globs = field(default_factory=Globs)
    exceptions: Globs = field(default_factory=Globs)

    @staticmethod
    def from_scopes(scopes: Scopes, exceptions: Collection[str] = ()) -> ProtectionRules:
        return ProtectionRules(Globs.compile(scopes.instructions), Globs.compile(exceptions))

    @property
    def names(self) -> tuple[str, ...]:
        """The names at the top of a workspace that are protected, spelled out."""
        return (*RESERVED_NAMES, *self.instructions.names)


@dataclass(frozen=True, slots=True)
class ProtectedEntry:
    """What stands at a protected path.

    `link_target` is set for a symbolic link, which no mount can cover. `fingerprint` differs once it was changed or
    replaced. `is_bare`: a repository that is a folder of any name, without a `.git`; programs may push into it.
    """

    is_repository: bool
    link_target: str | None
    fingerprint: tuple[int, ...]
    is_bare: bool = False


@dataclass(frozen=True, slots=True)
class ProtectedSurvey:
    """Everything protected that was found, by its plain path. `unvisited` are folders (`a/b/`) beyond MAX_FOLDERS.

    `unreadable` are files that no program may read, with their inodes.
    """

    entries: Mapping[str, ProtectedEntry] = field(default_factory=dict)
    unvisited: frozenset[str] = frozenset()
    unreadable: Mapping[str, int] = field(default_factory=dict)

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
        return [path for path in list_unheld(self.survey, self.entries) if not self.survey.entries[path].is_bare]


def list_unheld(survey: ProtectedSurvey, held: Collection[HeldEntry]) -> list[str]:
    """Return the protected paths that a program could write, but for links: those not held open, bare repositories."""
    covered = {entry.path for entry in held if entry.is_protected}
    return [path for path, entry in survey.entries.items() if path not in covered and entry.link_target is None]


@contextlib.contextmanager
def hold_protected_paths(
    root: int, rules: ProtectionRules, skipped: Collection[str] = (), is_unreadable: IsUnreadable | None = None
) -> Iterator[HeldPaths]:
    """Find what is protected in the workspace that is open as `root`, and hold it open inside the block.

    `skipped` are names at the top of the workspace that are protected otherwise. `is_unreadable` says which files no
    program may read. Raises CommandDenied if there are too many of these.
    """
    survey = survey_protected_paths(root, rules, skipped, is_unreadable)
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


def survey_protected_paths(
    root: int, rules: ProtectionRules, skipped: Collection[str] = (), is_unreadable: IsUnreadable | None = None
) -> ProtectedSurvey:
    """Search a workspace for what is protected: top folders first, dependencies last. Links are not followed.

    Raises CommandDenied if more files are unreadable than a sandbox can cover.
    """
    walk = _SurveyWalk(root, rules, is_unreadable)
    near: deque[tuple[str, _FolderKind]] = deque([("", "open")])
    far: deque[tuple[str, _FolderKind]] = deque()
    for _ in range(MAX_FOLDERS):
        if walk.is_full or not (near or far):
            break
        folder, kind = (near or far).popleft()
        for name, subkind in walk.visit_folder(folder, kind, skipped if not folder else ()):
            (near if subkind in ("open", "within") else far).append((f"{folder}{name}/", subkind))
    walk.add_link_targets()
    unvisited = frozenset(folder for folder, kind in (*near, *far) if kind != "covered")
    if is_unreadable is not None:
        walk.list_unreadable([folder for folder, _ in (*near, *far)], skipped)
    return ProtectedSurvey(walk.entries, unvisited, walk.unreadable)


class _SurveyWalk:
    """One search of a workspace, and what it has found so far."""

    def __init__(self, root: int, rules: ProtectionRules, is_unreadable: IsUnreadable | None) -> None:
        self.entries: dict[str, ProtectedEntry] = {}
        self.unreadable: dict[str, int] = {}
        self._root = root
        self._rules = rules
        self._is_unreadable = is_unreadable
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
                with os.scandir(folder_fd) as scan:
                    entries = sorted(scan, key=lambda entry: entry.name)
                if kind != "covered" and is_repository({entry.name for entry in entries}):
                    self._record_bare(folder, folder_fd)
                    kind = "covered" if folder else kind
                for entry in entries:
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
        self._note_unreadable(entry, path)
        inside: _FolderKind | None = "covered" if is_folder and self._is_unreadable is not None else None
        if kind == "covered":
            return inside
        if entry.name == ".git":
            self._record(path, folder_fd, is_repository=True)
            self._repositories += 1
            return None
        if not folder and entry.name in RESERVED_NAMES:
            self._record(path, folder_fd, is_repository=False)  # like an instruction: no program may make it
            return None
        subkind: _FolderKind = "free" if kind == "free" or entry.name in DEPENDENCIES else "open"
        if subkind == "open" and (kind == "within" or self._rules.instructions.matches(path)):
            if self._rules.exceptions.matches(path):
                subkind = "free"
            elif is_folder and self._rules.exceptions.may_match_below(path):
                subkind = "within"
            else:
                self._record(path, folder_fd, is_repository=False)
                return inside
        return subkind if is_folder else None

    def _note_unreadable(self, entry: os.DirEntry[str], path: str) -> None:
        if self._is_unreadable is None or not entry.is_file(follow_symlinks=False) or not self._is_unreadable(path):
            return
        self.unreadable[path] = entry.inode()
        if len(self.unreadable) > MAX_UNREADABLE:
            raise CommandDenied(
                f"This workspace holds over {MAX_UNREADABLE} files that may not be read unasked; a sandbox can't "
                "cover so many.",
                "A person allows read_file for some of them by a rule of the gate, or names a smaller workspace.",
            )

    def list_unreadable(self, folders: list[str], skipped: Collection[str]) -> None:
        """Search these folders, and all below them, for unreadable files alone; at most MAX_LISTED."""
        for folder in folders:
            if len(folders) > MAX_LISTED:
                raise CommandDenied(
                    f"This workspace holds over {MAX_LISTED:,} folders; files that may not be read unasked can't be "
                    "found in so many.",
                    "A person names a smaller workspace.",
                )
            inner = self.visit_folder(folder, "covered", skipped if not folder else ())
            folders += [f"{folder}{name}/" for name, _ in inner if name != ".git"]

    def _record_bare(self, folder: str, folder_fd: int) -> None:
        with contextlib.suppress(OSError):  # it is gone
            entry = ProtectedEntry(True, None, _fingerprint(os.fstat(folder_fd)), is_bare=True)
            self.entries[folder.rstrip("/") or "."] = entry
            self._repositories += 1

    def _record(self, path: str, folder_fd: int, *, is_repository: bool) -> None:
        name = path.rpartition("/")[2]
        with contextlib.suppress(OSError):  # it is gone
            status = os.stat(name, dir_fd=folder_fd, follow_symlinks=False)
            link_target = os.readlink(name, dir_fd=folder_fd) if stat.S_ISLNK(status.st_mode) else None
            self.entries[path] = ProtectedEntry(is_repository, link_target, _fingerprint(status))

    def add_link_targets(self) -> None:
        """Record what protected links lead to inside the workspace, since writing that changes what they show."""
        top = os.path.realpath(f"/proc/self/fd/{self._root}")
        for path in [path for path, entry in self.entries.items() if entry.link_target is not None]:
            real = os.path.realpath(f"{top}/{path}")
            target = real.removeprefix(f"{top}/")
            if target in (real, "") or ".git" in target.split("/") or path.startswith(f"{target}/"):
                continue  # outside, where nothing can be written; or a folder that holds the link itself
            if not any(target == known or target.startswith(f"{known}/") for known in self.entries):
                with contextlib.suppress(OSError):
                    self.entries[target] = ProtectedEntry(False, None, _fingerprint(os.lstat(real)))


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


def remove_mount_points(root: int, held: HeldPaths) -> None:
    """Remove what a sandbox made to mount on: an empty entry, in place of one that somebody removed right before."""
    inodes = {path: entry.fingerprint[0] for path, entry in held.survey.entries.items()} | dict(held.survey.unreadable)
    mounted = {entry.path for entry in held.entries if entry.is_protected} | held.survey.unreadable.keys()
    for path in mounted:
        with contextlib.suppress(OSError):  # it is gone, or not empty and so somebody's own
            status = os.stat(path, dir_fd=root, follow_symlinks=False)
            if status.st_ino == inodes[path]:
                continue
            if stat.S_ISDIR(status.st_mode):
                os.rmdir(path, dir_fd=root)
            elif status.st_size == 0:
                os.unlink(path, dir_fd=root)


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
