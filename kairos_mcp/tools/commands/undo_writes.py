"""Undoes what a program created at protected paths, where its sandbox could not prevent that.

A sandbox protects only what exists when it is built. What appears later is found by a second survey afterwards: it is
moved into the run's record, and the call counts as failed. It may be the work of somebody else who was busy there at
the same time, so nothing is removed before the record holds it. The first survey is kept with the call until then, so
that the next server can undo what a killed one could not.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import field, replace
from types import MappingProxyType

from kairos_mcp.core.messages import ToolResult
from kairos_mcp.core.paths import printable_name, shorten_path
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.text import truncate
from kairos_mcp.tools.commands.git_programs import FileTexts
from kairos_mcp.tools.commands.held_paths import HeldPaths
from kairos_mcp.tools.commands.protected_paths import (
    MAX_UNREADABLE,
    RENAMED,
    IsUnreadable,
    ProtectedEntry,
    ProtectedSurvey,
    ProtectionRules,
    open_up_below,
    survey_again,
    writable,
)
from kairos_mcp.tools.commands.undo_repositories import (
    KeepTexts,
    RepositoryChange,
    disable_repository,
    read_repository,
    restore_repository,
    undo_new_repository,
)
from kairos_mcp.tools.files.safe_open import open_without_links

MAX_FILES = 64  # in a folder that is moved into the record
MAX_TEXT_BYTES = 256 * 1024  # of all their texts; what is larger, or no text, is only renamed
_MAX_DEPTH = 8
_MAX_ENTRIES = 500  # compared in a folder to find out whether it changed
MAX_ROUNDS = 20  # of searching again: what was too large for the record, and was put aside, may hold more
MAX_NAMED = 20  # folders, in a sentence
SHOWN_CHARS = 4_000  # of each text, in the result; the record holds all of it

UNDONE_REASON = (
    "Programs must not write repositories, or files from which agents or their hosts take instructions or start "
    "programs. What appeared there meanwhile is undone; a person can allow paths by command_writes."
)
SaveTexts = Callable[[str, str, Mapping[str, str]], dict[str, str]]  # as ToolMemory.keep_taken
IsOfProgram = Callable[[os.stat_result], bool]


@dataclass(frozen=True, slots=True)
class UndoneWrites:
    """A sentence for each change at protected paths (most are undone); `remarks` on what was allowed."""

    changes: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class WriteWatch:
    """What was protected in a workspace `before` a program ran, to be compared with what is there afterwards.

    `root` is a descriptor of the workspace, which must stay open. `skipped` are names at its top that are protected
    otherwise. `unheld_states` tells what was in protected folders that the sandbox does not cover, `unheld_programs`
    what made git start programs in such repositories. Names that an undo gives begin with `aside`.
    """

    root: int
    rules: ProtectionRules
    before: ProtectedSurvey
    skipped: Collection[str]
    unheld_states: Mapping[str, tuple[tuple[str, ...], ...]] = field(default_factory=dict)
    unheld_programs: Mapping[str, FileTexts] = field(default_factory=dict)
    aside: str = field(default_factory=lambda: f".kairos-aside-{secrets.token_hex(4)}")
    is_unreadable: IsUnreadable | None = None

    @staticmethod
    def start(
        root: int,
        rules: ProtectionRules,
        held: HeldPaths,
        skipped: Collection[str] = (),
        is_unreadable: IsUnreadable | None = None,
    ) -> WriteWatch:
        """Start from the survey that a sandbox was just built on, or, with nothing held, from one of this moment."""
        unheld, entries = held.list_unheld(), held.survey.entries
        states = {path: _folder_state(root, path) for path in unheld if not entries[path].is_repository}
        programs = {path: read_repository(root, path) for path in unheld if entries[path].is_repository}
        known = {path: found for path, found in programs.items() if found is not None}
        return WriteWatch(root, rules, held.survey, skipped, states, known, is_unreadable=is_unreadable)

    def undo(
        self,
        save: SaveTexts | None,
        key_prefix: str,
        covered_inodes: Mapping[str, int] = MappingProxyType({}),
        is_of_program: IsOfProgram = lambda status: True,
    ) -> UndoneWrites:
        """Remove what was created and restore links and repositories that were changed.

        What is removed is given to `save`, under keys that begin with `key_prefix`; without `save` it is renamed.
        `covered_inodes`, by path, are those that the program could not write: if they changed, somebody else did it,
        and that is not reported.
        `is_of_program` tells of what is new whether the program may have made it. What could not be searched, and so
        may hold more, is a change too.
        """
        undone = UndoneWrites()
        keep = _keep_or_raise(save, key_prefix)
        handled: set[tuple[str, bool]] = set()
        opened_up: list[str] = []
        renamed = 0
        for _ in range(MAX_ROUNDS):
            after = survey_again(self.root, self.rules, self.before, self.skipped, self.aside, self.is_unreadable)
            opened_up += after.opened_up
            renamed += after.renamed
            said = len(undone.changes)
            self._undo_found(after, keep, covered_inodes, is_of_program, handled, undone)
            if len(undone.changes) == said:
                break
        if renamed:
            undone.remarks.append(
                f"{renamed:,} new files that no program may read, as .env, were renamed to {RENAMED}…, where they are: "
                f"a sandbox can cover {MAX_UNREADABLE}."
            )
        if opened_up:
            undone.remarks.append(f"To search them, these folders were made readable: {_name_folders(opened_up)}.")
        if missed := after.unvisited - self.before.unvisited:
            undone.changes.append(
                f"These folders could not be searched, and may hold more: {_name_folders(missed)}. Look into them, or "
                "remove them."
            )
        return undone

    def _undo_found(
        self,
        after: ProtectedSurvey,
        save: KeepTexts,
        covered_inodes: Mapping[str, int],
        is_of_program: IsOfProgram,
        handled: set[tuple[str, bool]],
        undone: UndoneWrites,
    ) -> None:
        """Undo what one search found, but for what an earlier one of this undo has `handled`."""
        gone: set[str] = set()
        for path in sorted({*after.entries, *self.before.entries}):
            old, new = self.before.entries.get(path), after.entries.get(path)
            if (kind := (path, new is not None and new.is_repository)) in handled or _lies_below(path, gone):
                continue
            handled.add(kind)
            if old is None or _is_another_repository(old, new):
                if new is not None and self.before.has_visited(path):
                    gone |= {path} if self._undo_creation(path, new, save, is_of_program, handled, undone) else set()
            elif old.link_target is not None:
                if new is None or new.link_target != old.link_target:
                    undone.changes.append(self._restore_link(path, old, new, save, handled))
            elif not _is_covered(old, covered_inodes.get(path)) and (said := self._compare(path, old, new, save)):
                undone.changes.append(said)

    def _undo_creation(
        self,
        path: str,
        new: ProtectedEntry,
        save: KeepTexts,
        is_of_program: IsOfProgram,
        handled: set[tuple[str, bool]],
        undone: UndoneWrites,
    ) -> bool:
        """Undo what is new at a path; return whether it was taken away as a whole."""
        with contextlib.suppress(OSError):  # it is gone again
            if not is_of_program(os.stat(path, dir_fd=self.root, follow_symlinks=False)):
                undone.remarks.append(
                    f"{_format_path(path)} is new, and stays: it was changed after the program ended."
                )
                return False
        if new.is_repository:
            try:
                change = undo_new_repository(self.root, path, new, save)
            except OSError as error:
                if path == ".":
                    undone.changes.append(_undo_failed(path, error))
                    return False
                change = RepositoryChange(None, is_failure=True, keeps=False)
            if change.sentence is not None:
                (undone.changes if change.is_failure else undone.remarks).append(change.sentence)
            if change.keeps:
                return False
        undone.changes.append(self._move_to_record(path, save, handled))
        return True

    def _compare(self, path: str, old: ProtectedEntry, new: ProtectedEntry | None, save: KeepTexts) -> str | None:
        """Return a sentence on what was changed in something that the sandbox does not cover, if anything was."""
        if new is not None and new.is_repository and (programs := self.unheld_programs.get(path)) is not None:
            try:
                return restore_repository(self.root, path, programs, save)
            except OSError as error:
                return _undo_failed(path, error)
        if not self._is_changed(path, old, new):
            return None
        return f"{_format_path(path)} was changed; it could not be protected, and stays as it is now."

    def _is_changed(self, path: str, old: ProtectedEntry, new: ProtectedEntry | None) -> bool:
        if path not in self.unheld_states:
            return False
        return (
            new is None
            or new.fingerprint != old.fingerprint
            or _folder_state(self.root, path) != self.unheld_states[path]
        )

    def _restore_link(
        self,
        path: str,
        old: ProtectedEntry,
        new: ProtectedEntry | None,
        save: KeepTexts,
        handled: set[tuple[str, bool]],
    ) -> str:
        *folders, name = path.split("/")
        outcome = self._move_to_record(path, save, handled) if new is not None else f"{_format_path(path)} was removed."
        with contextlib.suppress(OSError):
            folder_fd = open_without_links(self.root, folders)
            try:
                os.symlink(old.link_target or "", name, dir_fd=folder_fd)
            finally:
                os.close(folder_fd)
            return f"{outcome} The link that stood there was restored."
        return f"{outcome} The link that stood there, to {_format_path(old.link_target or '')}, could not be restored."

    def _move_to_record(self, path: str, save: KeepTexts, handled: set[tuple[str, bool]]) -> str:
        """Take a path away in one step, by renaming it; then move it into the record if it fits. Returns a sentence."""
        *folders, name = path.split("/")
        aside = f"{self.aside}-{secrets.token_hex(4)}"
        try:
            folder_fd = open_without_links(self.root, folders)
        except FileNotFoundError:
            return f"{_format_path(path)} was created, and is gone again."
        except OSError as error:
            return _undo_failed(path, error)
        new_path = "/".join((*folders, aside))
        is_renamed = False
        try:
            with writable(folder_fd):
                os.rename(name, aside, src_dir_fd=folder_fd, dst_dir_fd=folder_fd)
                is_renamed = True
                handled.add((new_path, False))
                open_up_below(folder_fd, aside)
                texts = _read_texts(folder_fd, aside)
                if texts is None:
                    disable_repository(folder_fd, aside)
                    return (
                        f"{_format_path(path)} was created; it is too large or not text, and was renamed to "
                        f"{_format_path(new_path)}."
                    )
                kept = save(path, texts)
                # Of a repository its settings alone: nobody wants to read what git itself puts into each.
                shown = (
                    kept if name != ".git" else {part: text for part, text in kept.items() if part in ("", "config")}
                )
                _remove_entry(folder_fd, aside)
        except OSError as error:
            if not is_renamed:
                return f"{_format_path(path)} was created, and could not be removed ({os.strerror(error.errno or 0)})."
            disable_repository(folder_fd, aside)
            return (
                f"{_format_path(path)} was created, and could not be moved into the record "
                f"({error.strerror}); it was renamed to {_format_path(new_path)}."
            )
        finally:
            os.close(folder_fd)
        return f"{_format_path(path)} was created, and was moved into the record.{''.join(_quote_texts(shown))}"


def mark_failed(result: ToolResult, undone: UndoneWrites) -> ToolResult:
    """Return the result as a failure if something changed at protected paths, whatever the result itself says."""
    remarks = "".join(f"\n[{remark}]" for remark in undone.remarks)
    if not undone.changes:
        return replace(result, content=f"{result.content}{remarks}") if remarks else result
    notes = "\n".join(f"[{change}]" for change in undone.changes)
    content = f"{result.content}{remarks}\n[{UNDONE_REASON}]\n{notes}"
    return replace(result, content=content, is_error=True, code="path_denied")


def _is_covered(old: ProtectedEntry, covered_inode: int | None) -> bool:
    """Whether no program could write this entry. An entry of an interrupted call has no fingerprint to know it by."""
    return bool(old.fingerprint) and covered_inode == old.fingerprint[0]


def _keep_or_raise(save: SaveTexts | None, key_prefix: str) -> KeepTexts:
    """Return a `save` that raises OSError, whatever the record raises: what can't be kept is put aside, and the next is
    undone all the same."""

    def keep(path: str, texts: Mapping[str, str]) -> dict[str, str]:
        if save is None:
            raise OSError(errno.EIO, "there is none outside of calls")
        try:
            return save(key_prefix, path, texts)
        except Exception as error:
            raise OSError(errno.EIO, "the record does not take it") from error

    return keep


def _lies_below(path: str, folders: Collection[str]) -> bool:
    return any(path[:at] in folders for at, char in enumerate(path) if char == "/")


def _name_folders(folders: Collection[str]) -> str:
    named = ", ".join(_format_path(folder) for folder in sorted(folders)[:MAX_NAMED])
    return f"{named} and {len(folders) - MAX_NAMED:,} more" if len(folders) > MAX_NAMED else named


def _is_another_repository(old: ProtectedEntry, new: ProtectedEntry | None) -> bool:
    """Whether another repository stands where one was, such as one that a program beside this one had made."""
    if new is None or not (old.is_repository and new.is_repository and old.fingerprint):
        return False
    return old.link_target is None and old.fingerprint[0] != new.fingerprint[0]


def _undo_failed(path: str, error: OSError) -> str:
    return f"{_format_path(path)} was changed, and that could not be undone ({os.strerror(error.errno or 0)})."


def _format_path(path: str) -> str:
    return shorten_path(printable_name(path))


def _quote_texts(texts: dict[str, str]) -> Iterator[str]:
    for path, text in texts.items():
        shown = truncate(text, SHOWN_CHARS, "\n[{left_out:,} more characters in the record]")
        yield f" It held{f' {_format_path(path)}' if path else ''}:\n{shown}"


def _read_texts(folder_fd: int, name: str) -> dict[str, str] | None:
    """Read a file's text (under an empty path), or the texts of all files in a folder; of a link, its target's name.

    None for what is too large, too deep or no text: the record doesn't take that.
    """
    texts: dict[str, str] = {}
    remaining = MAX_TEXT_BYTES

    def read(above: int, name: str, path: str, depth: int) -> bool:
        nonlocal remaining
        kind = os.stat(name, dir_fd=above, follow_symlinks=False).st_mode
        if stat.S_ISDIR(kind) and depth < _MAX_DEPTH:
            inner_fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
            try:
                return all(
                    read(inner_fd, child, f"{path}/{child}" if path else child, depth + 1)
                    for child in sorted(os.listdir(inner_fd))
                )
            finally:
                os.close(inner_fd)
        if stat.S_ISLNK(kind):
            content = b"[a link to] " + os.fsencode(os.readlink(name, dir_fd=above))
        elif stat.S_ISREG(kind):
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=above)
            with os.fdopen(fd, "rb") as file:
                content = file.read(remaining + 1)
        else:
            return False
        remaining -= len(content)
        if remaining < 0 or len(texts) == MAX_FILES:
            return False
        texts[path] = content.decode()
        return True

    try:
        return texts if read(folder_fd, name, "", 0) else None
    except (OSError, UnicodeDecodeError):
        return None


def _remove_entry(folder_fd: int, name: str) -> None:
    if stat.S_ISDIR(os.stat(name, dir_fd=folder_fd, follow_symlinks=False).st_mode):
        shutil.rmtree(name, dir_fd=folder_fd)
    else:
        os.unlink(name, dir_fd=folder_fd)


def _folder_state(root: int, path: str) -> tuple[tuple[str, ...], ...]:
    """Return a value that differs if the folder's content changed, by its first _MAX_ENTRIES entries or so."""
    state: list[tuple[str, ...]] = []
    for folder, folders, files in os.walk(f"/proc/self/fd/{root}/{path}"):
        for name in sorted((*folders, *files)):
            with contextlib.suppress(OSError):
                status = os.lstat(f"{folder}/{name}")
                state.append((folder, name, str(status.st_ino), str(status.st_ctime_ns), str(status.st_size)))
        folders.sort()
        if len(state) >= _MAX_ENTRIES:
            break
    return tuple(state)
