"""Going through folders: in a fixed order, through the opener, leaving out .git and what .gitignore names.

Left out too, and not counted: what a write of ours has beside its file for a moment, or left there in a crash.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kairos_mcp.core.errors import KairosError
from kairos_mcp.core.paths import printable_name
from kairos_mcp.tools.files.staging import is_leftover
from kairos_mcp.tools.files.workspace import FolderEntry, Workspace

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

IGNORE_FILE = ".gitignore"
IGNORE_BYTES = 256 << 10
FOLDER_ENTRIES = 20_000  # of one folder; more are left out and said
ALWAYS_LEFT_OUT = ".git"


@dataclass(frozen=True, slots=True)
class IgnoreRules:
    """The .gitignore files that count in a folder, outermost first, each with the folder it stands in."""

    specs: tuple[tuple[str, GitIgnoreSpec], ...] = ()

    def ignore(self, path: str, *, folder: bool) -> bool:
        """The innermost file that has a say decides, as in git. An odd byte of a name that is no UTF-8, and a line end
        in a name, count as one character that a wildcard fits."""
        for inside, spec in reversed(self.specs):
            relative = path[len(inside) :] + ("/" if folder else "")
            verdict = spec.check_file(relative.encode("utf-8", "replace").decode().replace("\n", "?")).include
            if verdict is not None:
                return verdict
        return False

    def entering(self, opener: Workspace, path: str, entries: list[FolderEntry]) -> IgnoreRules:
        """The rules inside a folder; a .gitignore that can't be read counts as none."""
        if not any(entry.name == IGNORE_FILE and entry.kind == "file" for entry in entries):
            return self
        try:
            text = opener.found(joined(path, IGNORE_FILE), IGNORE_BYTES)[0].decode("utf-8", "replace")
        except KairosError:
            return self
        return IgnoreRules((*self.specs, ("" if path == "." else f"{path}/", _spec(text.splitlines()))))


@dataclass(slots=True)
class OmittedEntries:
    """What a walk did not show, counted as it goes; `shut` says what no rule lets it show."""

    shut: Callable[[str], bool] | None = None
    denied: int = 0  # by a rule of the gate; of a folder what lies in it is not counted
    ignored: int = 0
    unreadable: int = 0
    crowded: list[str] = field(default_factory=list)  # folders with more entries than are looked at
    odd: int = 0  # shown, but under a name that no call can give
    late: bool = False  # the time ran out

    def keeps(self, path: str) -> bool:
        """Whether a rule keeps this from being shown; it is counted then."""
        kept = self.shut is not None and self.shut(path)
        self.denied += kept
        return kept

    def words(self) -> list[str]:
        said = []
        if self.denied:
            said.append(f"{self.denied:,} that a rule of the gate keeps from this call")
        if self.ignored:
            said.append(f"{self.ignored:,} by .gitignore")
        if self.unreadable:
            said.append(f"{self.unreadable:,} that can't be opened")
        if self.crowded:
            said.append(f"entries past {FOLDER_ENTRIES:,} in {', '.join(map(printable_name, self.crowded[:3]))}")
        return said

    def shows(self, path: str) -> str:
        """The path as a result has it; taken note of where a call could not give it back."""
        spelled = printable_name(path)
        self.odd += spelled != path or "\\" in path
        return spelled

    def notes(self) -> list[str]:
        """What is said of names that were shown."""
        if not self.odd:
            return []
        what = "1 name is" if self.odd == 1 else f"{self.odd:,} names are"
        return [
            f"{what} no UTF-8, or with a backslash or characters that nobody sees: spelled out as \\xff, \\n, "
            "and not to be given as a path; a person may rename them"
        ]


@dataclass(frozen=True, slots=True)
class ListedFolder:
    """A folder as it is shown: its entries by name, and the rules that hold inside."""

    path: str
    entries: tuple[FolderEntry, ...]
    rules: IgnoreRules


def listed(opener: Workspace, path: str, rules: IgnoreRules, left_out: OmittedEntries) -> ListedFolder:
    """A folder's entries without .git and the ignored ones. Raises what the opener raises."""
    entries, more = opener.entries(path, FOLDER_ENTRIES)
    if more:
        left_out.crowded.append(path)
    inner = rules.entering(opener, path, entries)
    kept = []
    for entry in entries:
        if entry.name == ALWAYS_LEFT_OUT or is_leftover(entry.name):
            continue
        if left_out.keeps(joined(path, entry.name)):
            continue
        if inner.specs and inner.ignore(joined(path, entry.name), folder=entry.kind == "folder"):
            left_out.ignored += 1
        else:
            kept.append(entry)
    return ListedFolder(path, tuple(kept), inner)


def walk(opener: Workspace, path: str, until: float, left_out: OmittedEntries) -> Iterator[tuple[str, FolderEntry]]:
    """Every entry below a folder that is no folder, with its path, by name and depth first.

    Stops at `until` (time.monotonic()) and then says so in `left_out`. Raises for the first folder alone.
    """
    stack = [iter(_within(listed(opener, path, rules_above(opener, path), left_out)))]
    while stack:
        step = next(stack[-1], None)
        if step is None:
            stack.pop()
            continue
        where, entry, rules = step
        if entry.kind != "folder":
            yield where, entry
            continue
        if time.monotonic() >= until:
            left_out.late = True
            return
        try:
            stack.append(iter(_within(listed(opener, where, rules, left_out))))
        except KairosError:
            left_out.unreadable += 1


def rules_above(opener: Workspace, path: str) -> IgnoreRules:
    """The rules that hold where a walk starts; a folder that is itself ignored, but asked for, has none."""
    rules, above = IgnoreRules(), "."
    if path == ".":
        return rules
    for name in path.split("/"):
        entries = [FolderEntry(IGNORE_FILE, "file")]  # tried without listing the folder
        rules = rules.entering(opener, above, entries)
        above = joined(above, name)
        if rules.ignore(above, folder=True):
            return IgnoreRules()
    return rules


def joined(path: str, name: str) -> str:
    return name if path == "." else f"{path}/{name}"


def _within(folder: ListedFolder) -> Iterator[tuple[str, FolderEntry, IgnoreRules]]:
    for entry in folder.entries:
        yield joined(folder.path, entry.name), entry, folder.rules


def _spec(lines: list[str]) -> GitIgnoreSpec:
    """By RE2: a workspace's own .gitignore is content from outside. A line that is no pattern is left out."""
    from pathspec import GitIgnoreSpec

    try:
        return GitIgnoreSpec.from_lines(lines, backend="re2")
    except ValueError:
        return GitIgnoreSpec.from_lines([line for line in lines if _is_pattern(line)], backend="re2")


def _is_pattern(line: str) -> bool:
    from pathspec import GitIgnoreSpec

    try:
        GitIgnoreSpec.from_lines([line], backend="re2")
    except ValueError:
        return False
    return True
