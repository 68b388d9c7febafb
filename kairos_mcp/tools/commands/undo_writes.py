"""Undoes what was made at protected paths while a program ran, as far as no sandbox could prevent it.

A mount covers what is there. What is made elsewhere in the workspace, at any depth, is found by a second look: it is
moved into the record, and whatever made it has failed. Also somebody else's may be found so, who worked there at the
same time: so nothing is removed that the record does not hold.
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
from kairos_mcp.tools.commands.name_holders import NAMES
from kairos_mcp.tools.commands.protected_paths import (
    HeldPaths,
    ProtectedEntry,
    ProtectedSurvey,
    ProtectionRules,
    opened_beneath,
    surveyed,
)

FILES = 64  # of a folder that is moved into the record,
TEXT_BYTES = 256 * 1024  # and of all their texts; what is larger, or no text, is put aside under another name
_DEPTH = 8
_ENTRIES = 500  # of a folder whose change is looked for
SHOWN_CHARS = 4_000  # of each text, in the result; the record holds it whole

WHY = (
    "What agents and their hosts take instructions from, or start programs by, is not for programs to write. What "
    "appeared there meanwhile is undone; a person can allow paths by command_writes."
)
Keep = Callable[[str, str], None]  # (name, text): returns once the text survives a crash


@dataclass(frozen=True, slots=True)
class WriteWatch:
    """What was there `before`, and what was `inside` of that which may not be covered. `root` is the workspace's
    descriptor, which is open as long; `skipped` names at its top are covered otherwise."""

    root: int
    rules: ProtectionRules
    before: ProtectedSurvey
    skipped: Collection[str]
    inside: dict[str, tuple[tuple[str, ...], ...]]

    @staticmethod
    def over(root: int, rules: ProtectionRules, found: HeldPaths, skipped: Collection[str]) -> WriteWatch:
        """Over what a sandbox was built of just now."""
        return WriteWatch(root, rules, found.survey, skipped, {path: _inside(root, path) for path in found.loose()})

    @staticmethod
    def begun(root: int, rules: ProtectionRules) -> WriteWatch:
        """Over what was in its sandbox long before."""
        before = HeldPaths(surveyed(root, rules))
        loose = [path for path in before.loose() if path not in NAMES and not before.survey.found[path].repository]
        return WriteWatch(root, rules, before.survey, (), {path: _inside(root, path) for path in loose})

    def undo(self, keep: Keep, name: str, covered: Mapping[str, int] = MappingProxyType({})) -> list[str]:
        """Take out what was made, put back links that were changed; a sentence for each, and for each other change.

        `keep` is called with names that begin with `name`. `covered` are inodes by path that could not be written: who
        changed them is somebody else.
        """
        after = surveyed(self.root, self.rules, self.skipped)
        told: list[str] = []
        for path in sorted({*after.found, *self.before.found}):
            was, now = self.before.found.get(path), after.found.get(path)
            if was is None and now is not None and not now.repository and self.before.saw(path):
                told.append(self._take_out(path, keep, f"{name}/{len(told)}"))
            elif was is not None and was.link is not None and (now is None or now.link != was.link):
                told.append(self._put_back(path, was, now, keep, f"{name}/{len(told)}"))
            elif was is not None and covered.get(path) != was.mark[0] and self._is_changed(path, was, now):
                told.append(f"{_named(path)} was changed; it could not be covered, and is as it was left.")
        return told

    def _is_changed(self, path: str, was: ProtectedEntry, now: ProtectedEntry | None) -> bool:
        if path not in self.inside:
            return False
        return now is None or now.mark != was.mark or _inside(self.root, path) != self.inside[path]

    def _put_back(self, path: str, was: ProtectedEntry, now: ProtectedEntry | None, keep: Keep, name: str) -> str:
        *above, last = path.split("/")
        taken = self._take_out(path, keep, name) if now is not None else f"{_named(path)} was removed."
        with contextlib.suppress(OSError):
            folder = opened_beneath(self.root, above)
            try:
                os.symlink(was.link or "", last, dir_fd=folder)
            finally:
                os.close(folder)
            return f"{taken} The link that stood there was put back."
        return f"{taken} The link that stood there, to {_named(was.link or '')}, could not be put back."

    def _take_out(self, path: str, keep: Keep, name: str) -> str:
        """Give it a name that instructs nobody, in one step; then move it into the record, where it fits."""
        *above, last = path.split("/")
        aside = f".kairos-aside-{secrets.token_hex(4)}"
        try:
            folder = opened_beneath(self.root, above)
        except OSError:
            return f"{_named(path)} was made, and is gone again."
        try:
            os.rename(last, aside, src_dir_fd=folder, dst_dir_fd=folder)
            texts = _texts(folder, aside)
            if texts is None:
                beside = _named("/".join((*above, aside)))
                return f"{_named(path)} was made; it is too large or no text, and was put aside as {beside}."
            keep(name, json.dumps({"path": path, "texts": texts}))
            _remove(folder, aside)
        except OSError as error:
            return f"{_named(path)} was made, and could not be taken out ({os.strerror(error.errno or 0)})."
        finally:
            os.close(folder)
        return f"{_named(path)} was made, and was taken out.{''.join(_shown(texts))}"


def failed_by(result: ToolResult, undone: list[str]) -> ToolResult:
    """The result of a call during which such a thing was made: a failure, whatever it says itself."""
    if not undone:
        return result
    notes = "\n".join(f"[{each}]" for each in undone)
    return replace(result, content=f"{result.content}\n[{WHY}]\n{notes}", is_error=True, code="path_denied")


def _named(path: str) -> str:
    return shorten_path(printable_name(path))


def _shown(texts: dict[str, str]) -> Iterator[str]:
    for path, text in texts.items():
        shown = truncate(text, SHOWN_CHARS, "\n[{left_out:,} more characters in the record]")
        yield f" It held{f' {_named(path)}' if path else ''}:\n{shown}"


def _texts(folder: int, name: str) -> dict[str, str] | None:
    """The texts of a file (under an empty path), or of all files in a folder; of a link where it leads. None for what
    the record does not take."""
    texts: dict[str, str] = {}
    left = TEXT_BYTES

    def read(above: int, name: str, path: str, depth: int) -> bool:
        nonlocal left
        kind = os.stat(name, dir_fd=above, follow_symlinks=False).st_mode
        if stat.S_ISDIR(kind) and depth < _DEPTH:
            inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
            try:
                return all(
                    read(inner, each, f"{path}/{each}" if path else each, depth + 1)
                    for each in sorted(os.listdir(inner))
                )
            finally:
                os.close(inner)
        if stat.S_ISLNK(kind):
            content = b"[a link to] " + os.fsencode(os.readlink(name, dir_fd=above))
        elif stat.S_ISREG(kind):
            opened = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=above)
            with os.fdopen(opened, "rb") as file:
                content = file.read(left + 1)
        else:
            return False
        left -= len(content)
        if left < 0 or len(texts) == FILES:
            return False
        texts[path] = content.decode()
        return True

    try:
        return texts if read(folder, name, "", 0) else None
    except (OSError, UnicodeDecodeError):
        return None


def _remove(folder: int, name: str) -> None:
    if stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
        shutil.rmtree(name, dir_fd=folder)
    else:
        os.unlink(name, dir_fd=folder)


def _inside(root: int, path: str) -> tuple[tuple[str, ...], ...]:
    """What tells one state of a folder's content from another, as far as it is looked into."""
    found: list[tuple[str, ...]] = []
    for above, folders, files in os.walk(f"/proc/self/fd/{root}/{path}"):
        for each in sorted((*folders, *files)):
            with contextlib.suppress(OSError):
                kind = os.lstat(f"{above}/{each}")
                found.append((above, each, str(kind.st_ino), str(kind.st_ctime_ns), str(kind.st_size)))
        folders.sort()
        if len(found) >= _ENTRIES:
            break
    return tuple(found)
