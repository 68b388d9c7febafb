"""Finds what no program may write in a workspace, repositories and instructions, and what none may read.

Whoever writes into `.git` decides what git does for the next person working there; whoever writes `.mcp.json` or
`.vscode` decides what a host starts. What is absent can't be held open while a program runs
(`held_paths`); `undo_writes` takes it away afterwards.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import field
from types import MappingProxyType
from typing import Literal

from kairos_mcp.core.errors import CommandDenied
from kairos_mcp.core.paths import DEPENDENCIES, Globs, Scopes, printable_name, shorten_path
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.tools.commands.git_programs import is_repository
from kairos_mcp.tools.files.safe_open import LOCAL, file_system_type, open_without_links

RESERVED_NAMES = (".git", ".kairos")  # whoever writes there decides what git, or this server, does here next
MAX_FOLDERS = 300_000  # searched before a program starts, those nearest to the top first; afterwards there is no bound
MAX_PATH_CHARS = 8_192  # of a folder that is searched, below the top: twice what a path may have that is typed anywhere
MAX_SEEN = 100_000  # of them that are remembered, in some 30 MB: those that are unchanged are not listed again
MAX_UNREADABLE = 500  # files that no program may read: each is a mount
RENAMED = ".kairos-excess-"  # how names of files begin that a program made beyond that
# File systems on which a folder's time tells each change of a name in it; of others, folders are listed again.
_TELLS_CHANGES = LOCAL | {"tmpfs", "overlay"}
_CLOCK_NS = 2_000_000_000  # within which two changes may have the same time
_PATH_CHARS = 1_000  # of a path that the kernel takes at once: 4,096 bytes, with up to four for a character
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
ENTRY_FLAGS = getattr(os, "O_PATH", os.O_RDONLY) | os.O_NOFOLLOW | os.O_CLOEXEC

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
class SeenFolder:
    """A folder as a search found it: how it was searched, what changes with every name in it, and its subfolders."""

    kind: _FolderKind
    inode: int
    changed_at: int
    subfolders: tuple[tuple[str, _FolderKind], ...]


@dataclass(frozen=True, slots=True)
class ProtectedSurvey:
    """Everything protected that was found, by its plain path.

    `unvisited` are folders (`a/b/`) beyond MAX_FOLDERS, or that could not be listed. `unreadable` are files that no
    program may read, with their inodes. `opened_up` are folders that were made readable, to search them. `renamed`: how
    many new files got another name, since no program may read them and a sandbox can't cover so many. `seen`: folders
    that hold nothing protected, as they were.
    """

    entries: Mapping[str, ProtectedEntry] = field(default_factory=dict)
    unvisited: frozenset[str] = frozenset()
    unreadable: Mapping[str, int] = field(default_factory=dict)
    opened_up: Collection[str] = ()
    renamed: int = 0
    seen: Mapping[str, SeenFolder] = field(default_factory=dict)

    def has_visited(self, path: str) -> bool:
        """Return whether the path's folder was searched, so that `entries` would have it."""
        return not any(path.startswith(folder) for folder in self.unvisited)


def survey_protected_paths(
    root: int,
    rules: ProtectionRules,
    skipped: Collection[str] = (),
    is_unreadable: IsUnreadable | None = None,
    known: Mapping[str, SeenFolder] = MappingProxyType({}),
) -> ProtectedSurvey:
    """Search a workspace for what is protected: top folders first, dependencies last. Links are not followed.

    Raises CommandDenied if more files are unreadable than a sandbox can cover, or can be looked for, or lie too deep.
    """
    walk = _SurveyWalk(root, rules, is_unreadable, known=known)
    left = walk.visit_all(skipped, MAX_FOLDERS)
    if walk.too_deep and is_unreadable is not None:
        raise CommandDenied(
            f"{shorten_path(printable_name(walk.too_deep[0]))} is nested too deep (over {MAX_PATH_CHARS:,} characters) "
            "for files to be found in it that may not be read unasked.",
            "A person removes it, or names a smaller workspace.",
        )
    if left and is_unreadable is not None:
        raise CommandDenied(
            f"This workspace holds over {MAX_FOLDERS:,} folders; files that may not be read unasked can't be found in "
            "so many.",
            "A person names a smaller workspace.",
        )
    walk.find_other_names()
    return walk.finish(left)


def survey_again(
    root: int,
    rules: ProtectionRules,
    before: ProtectedSurvey,
    skipped: Collection[str],
    aside: str,
    is_unreadable: IsUnreadable | None = None,
) -> ProtectedSurvey:
    """Search a workspace after a program, to its end: what a bound leaves out, a program could put things into.

    What is nested deeper than MAX_PATH_CHARS counts as not searched: a folder takes the longer, the longer its path is.
    Folders that nobody visited `before` are left out, since nothing there can be told to be new. Folders of ours that
    can't be searched are made readable. Names that begin with `aside` were given by an undo, and are found too.
    Of new files that no program may read, those beyond MAX_UNREADABLE are renamed: else no later program could start.
    """
    afterwards = _Afterwards(before.unvisited, aside, frozenset(before.unreadable.values()))
    walk = _SurveyWalk(root, rules, is_unreadable, afterwards, before.seen)
    return walk.finish(walk.visit_all(skipped))


@dataclass(frozen=True, slots=True)
class _Afterwards:
    """What a search after a program does otherwise: folders that it leaves out, a beginning of names to find, and the
    inodes of unreadable files that were there before."""

    left_out: Collection[str]
    aside: str
    unreadable: Collection[int]


class _SurveyWalk:
    """One search of a workspace, and what it has found so far."""

    def __init__(
        self,
        root: int,
        rules: ProtectionRules,
        is_unreadable: IsUnreadable | None,
        afterwards: _Afterwards | None = None,
        known: Mapping[str, SeenFolder] = MappingProxyType({}),
    ) -> None:
        self.entries: dict[str, ProtectedEntry] = {}
        self.unreadable: dict[str, int] = {}
        self.too_deep: list[str] = []
        self._failed: list[str] = []
        self._opened_up: list[str] = []
        self._root = root
        self._rules = rules
        self._is_unreadable = is_unreadable
        self._afterwards = afterwards
        self._known = known
        self._seen: dict[str, SeenFolder] = {}
        self._device = os.fstat(root).st_dev if file_system_type(root) in _TELLS_CHANGES else None
        self._seen_before = time.time_ns() - _CLOCK_NS
        self._renamed = 0
        self._new_names = 0  # of unreadable files that were not there before
        self._links: dict[int, int] = {}  # by inode of unreadable files: how many names of it were not found yet

    def visit_all(self, skipped: Collection[str], bound: int | None = None) -> list[str]:
        """Visit the top and all that lies below it; return the folders that were left beyond the bound."""
        near: deque[tuple[str, _FolderKind]] = deque([("", "open")])
        far: deque[tuple[str, _FolderKind]] = deque()
        visited = 0
        while (near or far) and visited != bound:
            visited += 1
            folder, kind = (near or far).popleft()
            for name, subkind in self.visit_folder(folder, kind, skipped if not folder else ()):
                path = f"{folder}{name}/"
                if self._afterwards is not None and path in self._afterwards.left_out:
                    continue
                if len(path) > MAX_PATH_CHARS:
                    self.too_deep.append(path)
                else:
                    (near if subkind in ("open", "within") else far).append((path, subkind))
        return [folder for folder, _ in (*near, *far)]

    def finish(self, left: Collection[str]) -> ProtectedSurvey:
        self._add_link_targets()
        unvisited = frozenset((*left, *self._failed, *self.too_deep))
        return ProtectedSurvey(self.entries, unvisited, self.unreadable, self._opened_up, self._renamed, self._seen)

    def visit_folder(self, folder: str, kind: _FolderKind, skipped: Collection[str]) -> list[tuple[str, _FolderKind]]:
        """Record what is protected in a folder (`a/b/`, or empty for the top); return its subfolders to search."""
        if (known := self._known.get(folder)) is not None and known.kind == kind and self._is_as(known, folder):
            self._seen[folder] = known
            return list(known.subfolders)
        subfolders: list[tuple[str, _FolderKind]] = []
        recorded = len(self.entries), len(self.unreadable)
        try:
            # Opened by its path: a folder that was swapped for a link is at most looked into, never held.
            folder_fd = self._open_to_search(folder)
            try:
                status = os.fstat(folder_fd)
                with os.scandir(folder_fd) as scan:
                    entries = sorted(scan, key=lambda entry: entry.name)
                if kind != "covered" and is_repository({entry.name for entry in entries}):
                    with contextlib.suppress(OSError):  # it is gone
                        bare = ProtectedEntry(True, None, _fingerprint(os.fstat(folder_fd)), is_bare=True)
                        self.entries[folder.rstrip("/") or "."] = bare
                for entry in entries:
                    if entry.name not in skipped and (subkind := self._visit_entry(entry, folder, folder_fd, kind)):
                        subfolders.append((entry.name, subkind))
                if recorded == (len(self.entries), len(self.unreadable)):
                    self._remember(folder, kind, status, subfolders)
            finally:
                os.close(folder_fd)
        except (FileNotFoundError, NotADirectoryError):
            pass  # it is gone
        except OSError:
            # Not to be listed is no protection: who owns a folder may make it so, and may write there all the same.
            self._failed += [] if kind == "covered" else [folder]
        return subfolders

    def _remember(
        self, folder: str, kind: _FolderKind, status: os.stat_result, subfolders: list[tuple[str, _FolderKind]]
    ) -> None:
        """Remember a folder in which nothing is protected. One that was just changed may be changed again without
        another time."""
        is_settled = status.st_dev == self._device and status.st_ctime_ns < self._seen_before
        if (
            folder
            and self._afterwards is None
            and is_settled
            and len(self._seen) < MAX_SEEN
            and len(folder) <= _PATH_CHARS
        ):
            self._seen[folder] = SeenFolder(kind, status.st_ino, status.st_ctime_ns, tuple(subfolders))

    def _is_as(self, known: SeenFolder, folder: str) -> bool:
        """Whether the folder is the one that was seen, with the same names in it: each change of one gives it another
        time, and no program can set that (`st_ctime`)."""
        try:
            status = os.stat(folder or ".", dir_fd=self._root, follow_symlinks=False)
        except OSError:
            return False
        return (status.st_dev, status.st_ino, status.st_ctime_ns) == (self._device, known.inode, known.changed_at)

    def _open_to_search(self, folder: str) -> int:
        """Open a folder; one that a program has left, and that can't be searched, is made readable. Raises OSError."""
        try:
            folder_fd = open_long_path(self._root, folder)
            if self._afterwards is None or os.access(".", os.X_OK, dir_fd=folder_fd, effective_ids=True):
                return folder_fd
            os.close(folder_fd)
        except PermissionError:
            if self._afterwards is None:
                raise
        _make_readable(self._root, folder)
        self._opened_up.append(folder)
        return open_long_path(self._root, folder)

    def _visit_entry(
        self, entry: os.DirEntry[str], folder: str, folder_fd: int, kind: _FolderKind
    ) -> _FolderKind | None:
        """Record an entry if it is protected; else return how to search it if it is a folder."""
        path, is_folder = folder + entry.name, entry.is_dir(follow_symlinks=False)
        self._note_unreadable(entry, path, folder_fd)
        inside: _FolderKind | None = "covered" if is_folder and self._is_unreadable is not None else None
        if kind == "covered":
            return inside if entry.name != ".git" else None
        if entry.name == ".git":
            self._record(path, folder_fd, is_repository=True)
            return None
        if self._afterwards is not None and entry.name.startswith(self._afterwards.aside):
            self._record(path, folder_fd, is_repository=False)
            return "open" if is_folder else None  # what was too large for the record may hold more
        if not folder and entry.name in RESERVED_NAMES:
            self._record(path, folder_fd, is_repository=False)  # like an instruction: no program may make it
            return None
        subkind: _FolderKind = (
            "free" if kind == "free" or entry.name in DEPENDENCIES else "open"
        )  # these instruct nobody
        if subkind == "open" and (kind == "within" or self._rules.instructions.matches(path)):
            if self._rules.exceptions.matches(path):
                subkind = "free"
            elif is_folder and self._rules.exceptions.may_match_below(path):
                subkind = "within"
            else:
                self._record(path, folder_fd, is_repository=False)
                return inside
        return subkind if is_folder else None

    def _note_unreadable(self, entry: os.DirEntry[str], path: str, folder_fd: int) -> None:
        if self._is_unreadable is None or not entry.is_file(follow_symlinks=False) or not self._is_unreadable(path):
            return
        try:
            names = entry.stat(follow_symlinks=False).st_nlink
        except OSError:  # it is gone
            return
        if self._afterwards is not None:
            self._rename_excess(entry, path, names)
            return
        self._links[entry.inode()] = self._links.get(entry.inode(), names) - 1
        self._add_unreadable(path, entry.inode())

    def _rename_excess(self, entry: os.DirEntry[str], path: str, names: int) -> None:
        """Give a new unreadable file a name of ours if it and its other names are more than a sandbox can cover.

        Its folder is opened once more, without links: a server that runs on may have put one there meanwhile.
        """
        assert self._afterwards is not None
        known = self._afterwards.unreadable
        if entry.inode() in known:
            return
        self._new_names += names
        if len(known) + self._new_names > MAX_UNREADABLE:
            folder_fd = open_without_links(self._root, path.split("/")[:-1])
            try:
                with writable(folder_fd):
                    new_name = f"{RENAMED}{secrets.token_hex(8)}"
                    os.rename(entry.name, new_name, src_dir_fd=folder_fd, dst_dir_fd=folder_fd)
            finally:
                os.close(folder_fd)
            self._new_names -= names
            self._renamed += 1

    def _add_unreadable(self, path: str, inode: int) -> None:
        self.unreadable[path] = inode
        if len(self.unreadable) > MAX_UNREADABLE:
            counted = Counter(path.rpartition("/")[0] or "." for path in self.unreadable)
            fullest = ", ".join(
                f"{shorten_path(printable_name(name))} ({count})" for name, count in counted.most_common(3)
            )
            raise CommandDenied(
                f"This workspace holds over {MAX_UNREADABLE} files that may not be read unasked; a sandbox can't "
                f"cover so many. Most of them are in {fullest}.",
                "If a program made them, a person removes them. Else a person allows read_file for some of them by a "
                "rule of the gate, or names a smaller workspace.",
            )

    def find_other_names(self) -> None:
        """Add the other names (hard links) of unreadable files that lie in the workspace, wherever they lie."""
        missing = {inode: others for inode, others in self._links.items() if others > 0}
        folders = deque([""])
        while folders and missing:
            folder = folders.popleft()
            with contextlib.suppress(OSError):  # it is gone, or can't be listed: no program of ours can either
                folder_fd = open_long_path(self._root, folder)
                try:
                    with os.scandir(folder_fd) as scan:
                        for entry in scan:
                            path = folder + entry.name
                            if entry.is_dir(follow_symlinks=False):
                                folders.append(f"{path}/")
                            elif entry.inode() in missing and path not in self.unreadable:
                                self._add_unreadable(path, entry.inode())
                                missing[entry.inode()] -= 1
                                missing = {inode: others for inode, others in missing.items() if others > 0}
                finally:
                    os.close(folder_fd)

    def _record(self, path: str, folder_fd: int, *, is_repository: bool) -> None:
        name = path.rpartition("/")[2]
        with contextlib.suppress(OSError):  # it is gone
            status = os.stat(name, dir_fd=folder_fd, follow_symlinks=False)
            link_target = os.readlink(name, dir_fd=folder_fd) if stat.S_ISLNK(status.st_mode) else None
            self.entries[path] = ProtectedEntry(is_repository, link_target, _fingerprint(status))

    def _add_link_targets(self) -> None:
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


def open_long_path(root: int, folder: str) -> int:
    """Open a folder by its path (`a/b/`, or empty for the top), however long that is: in pieces of _PATH_CHARS at most,
    so that it costs few calls. Raises OSError."""
    rest, fd = folder.rstrip("/"), -1
    while len(rest) > _PATH_CHARS:
        piece, rest = rest[: (at := rest.rindex("/", 0, _PATH_CHARS + 1))], rest[at + 1 :]
        fd = _open_below(root if fd < 0 else fd, piece, closes=fd >= 0)
    return _open_below(root if fd < 0 else fd, rest or ".", closes=fd >= 0)


def _open_below(above: int, path: str, *, closes: bool) -> int:
    try:
        return os.open(path, _FOLDER_FLAGS, dir_fd=above)
    finally:
        if closes:
            os.close(above)


def open_up_below(root: int, name: str) -> None:
    """Make all folders in this one readable and writable to their owner. Raises OSError."""
    folders = [name]
    for folder in folders:
        with contextlib.suppress(NotADirectoryError):  # a file, or a link
            _make_readable(root, folder)
            folder_fd = open_long_path(root, folder)
            try:
                with os.scandir(folder_fd) as scan:
                    folders += [f"{folder}/{entry.name}" for entry in scan if entry.is_dir(follow_symlinks=False)]
            finally:
                os.close(folder_fd)


@contextlib.contextmanager
def writable(folder_fd: int) -> Iterator[None]:
    """Let names in the folder be changed inside the block, though a program has made it read-only. Raises OSError."""
    mode = stat.S_IMODE(os.fstat(folder_fd).st_mode)
    is_writable = os.access(".", os.W_OK | os.X_OK, dir_fd=folder_fd, effective_ids=True)
    if not is_writable:
        os.fchmod(folder_fd, mode | stat.S_IRWXU)
    try:
        yield
    finally:
        if not is_writable:
            os.fchmod(folder_fd, mode)


def _make_readable(root: int, folder: str) -> None:
    """Give a folder's owner, who has to be this process, all rights to it. Raises OSError."""
    *above, name = folder.rstrip("/").split("/")
    above_fd = open_without_links(root, above)
    try:
        fd = os.open(name or ".", ENTRY_FLAGS | os.O_DIRECTORY, dir_fd=above_fd)
    finally:
        os.close(above_fd)
    try:
        status = os.fstat(fd)
        # By the descriptor, which follows no link: without a right to read, there is no other kind of descriptor.
        if status.st_mode & stat.S_IRWXU != stat.S_IRWXU:
            os.chmod(f"/proc/self/fd/{fd}", stat.S_IMODE(status.st_mode) | stat.S_IRWXU)
    finally:
        os.close(fd)


def _fingerprint(status: os.stat_result) -> tuple[int, ...]:
    return status.st_ino, status.st_ctime_ns, status.st_size, stat.S_IFMT(status.st_mode)
