"""Undoes what a program created at protected paths, where its sandbox could not prevent that.

A sandbox protects only what exists when it is built. What appears deeper in the workspace is found by a second survey
afterwards: it is moved into the run's record, and the call counts as failed. It may be the work of somebody else who
was busy there at the same time, so nothing is removed before the record holds it.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from kairos_mcp.core.messages import ToolResult
from kairos_mcp.core.paths import printable_name, shorten_path
from kairos_mcp.core.text import truncate
from kairos_mcp.tools.commands.protected_paths import (
    HeldPaths,
    ProtectedEntry,
    ProtectedSurvey,
    ProtectionRules,
    open_without_links,
    survey_protected_paths,
)
from kairos_mcp.tools.commands.reserved_names import RESERVED_NAMES

MAX_FILES = 64  # in a folder that is moved into the record
MAX_TEXT_BYTES = 256 * 1024  # of all their texts; what is larger, or no text, is only renamed
_MAX_DEPTH = 8
_MAX_ENTRIES = 500  # compared in a folder to find out whether it changed
SHOWN_CHARS = 4_000  # of each text, in the result; the record holds all of it

UNDONE_REASON = (
    "Programs must not write files from which agents or their hosts take instructions or start programs. What appeared "
    "there meanwhile is undone; a person can allow paths by command_writes."
)
SaveText = Callable[[str, str], None]  # (name, text): returns once the text survives a crash


@dataclass(frozen=True, slots=True)
class WriteWatch:
    """What was protected in a workspace `before` a program ran, to be compared with what is there afterwards.

    `root` is a descriptor of the workspace, which must stay open. `skipped` are names at its top that are protected
    otherwise. `unheld_states` tells what was in protected folders that the sandbox does not cover.
    """

    root: int
    rules: ProtectionRules
    before: ProtectedSurvey
    skipped: Collection[str]
    unheld_states: dict[str, tuple[tuple[str, ...], ...]]

    @staticmethod
    def start(root: int, rules: ProtectionRules, held: HeldPaths, skipped: Collection[str]) -> WriteWatch:
        """Start from the survey that a sandbox was just built on."""
        states = {path: _folder_state(root, path) for path in held.list_unheld()}
        return WriteWatch(root, rules, held.survey, skipped, states)

    @staticmethod
    def start_late(root: int, rules: ProtectionRules) -> WriteWatch:
        """Start for a program whose sandbox was built long ago: a new survey tells what is there now."""
        before = HeldPaths(survey_protected_paths(root, rules))
        states = {
            path: _folder_state(root, path)
            for path in before.list_unheld()
            if path not in RESERVED_NAMES and not before.survey.entries[path].is_repository
        }
        return WriteWatch(root, rules, before.survey, (), states)

    def undo(
        self, save: SaveText, key_prefix: str, covered_inodes: Mapping[str, int] = MappingProxyType({})
    ) -> list[str]:
        """Remove what was created and restore links that were changed. Returns a sentence for each change found.

        What is removed is given to `save`, under keys that begin with `key_prefix`. `covered_inodes`, by path, are
        those that the program could not write: if they changed, somebody else did it, and that is not reported.
        """
        after = survey_protected_paths(self.root, self.rules, self.skipped)
        notes: list[str] = []
        for path in sorted({*after.entries, *self.before.entries}):
            old, new = self.before.entries.get(path), after.entries.get(path)
            if old is None and new is not None and not new.is_repository and self.before.has_visited(path):
                notes.append(self._move_to_record(path, save, f"{key_prefix}/{len(notes)}"))
            elif (
                old is not None and old.link_target is not None and (new is None or new.link_target != old.link_target)
            ):
                notes.append(self._restore_link(path, old, new, save, f"{key_prefix}/{len(notes)}"))
            elif (
                old is not None and covered_inodes.get(path) != old.fingerprint[0] and self._is_changed(path, old, new)
            ):
                notes.append(f"{_format_path(path)} was changed; it could not be protected, and stays as it is now.")
        return notes

    def _is_changed(self, path: str, old: ProtectedEntry, new: ProtectedEntry | None) -> bool:
        if path not in self.unheld_states:
            return False
        return (
            new is None
            or new.fingerprint != old.fingerprint
            or _folder_state(self.root, path) != self.unheld_states[path]
        )

    def _restore_link(
        self, path: str, old: ProtectedEntry, new: ProtectedEntry | None, save: SaveText, key: str
    ) -> str:
        *folders, name = path.split("/")
        outcome = self._move_to_record(path, save, key) if new is not None else f"{_format_path(path)} was removed."
        with contextlib.suppress(OSError):
            folder_fd = open_without_links(self.root, folders)
            try:
                os.symlink(old.link_target or "", name, dir_fd=folder_fd)
            finally:
                os.close(folder_fd)
            return f"{outcome} The link that stood there was restored."
        return f"{outcome} The link that stood there, to {_format_path(old.link_target or '')}, could not be restored."

    def _move_to_record(self, path: str, save: SaveText, key: str) -> str:
        """Take a path away in one step, by renaming it; then move it into the record if it fits. Returns a sentence."""
        *folders, name = path.split("/")
        aside = f".kairos-aside-{secrets.token_hex(4)}"
        try:
            folder_fd = open_without_links(self.root, folders)
        except OSError:
            return f"{_format_path(path)} was created, and is gone again."
        try:
            os.rename(name, aside, src_dir_fd=folder_fd, dst_dir_fd=folder_fd)
            texts = _read_texts(folder_fd, aside)
            if texts is None:
                new_path = _format_path("/".join((*folders, aside)))
                return f"{_format_path(path)} was created; it is too large or not text, and was renamed to {new_path}."
            save(key, json.dumps({"path": path, "texts": texts}))
            _remove_entry(folder_fd, aside)
        except OSError as error:
            return f"{_format_path(path)} was created, and could not be removed ({os.strerror(error.errno or 0)})."
        finally:
            os.close(folder_fd)
        return f"{_format_path(path)} was created, and was moved into the record.{''.join(_quote_texts(texts))}"


def mark_failed(result: ToolResult, changes: list[str]) -> ToolResult:
    """Return the result as a failure if `changes` were found at protected paths, whatever the result itself says."""
    if not changes:
        return result
    notes = "\n".join(f"[{change}]" for change in changes)
    return replace(result, content=f"{result.content}\n[{UNDONE_REASON}]\n{notes}", is_error=True, code="path_denied")


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
