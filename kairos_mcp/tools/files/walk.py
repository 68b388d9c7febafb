"""Walks through the folders of a workspace in a fixed order, without .git and what .gitignore names.

Also left out, and not counted: staging files that a write of ours keeps beside its file, or left there in a crash.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import field
from typing import TYPE_CHECKING

from kairos_mcp.core.errors import KairosError
from kairos_mcp.core.paths import printable_name
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.tools.files.staging import is_leftover
from kairos_mcp.tools.files.workspace import FolderEntry, Workspace

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

IGNORE_FILE = ".gitignore"
IGNORE_BYTES = 256 << 10
MAX_RULES = 2_000  # lines of one .gitignore that count: each takes up to 2 microseconds of every name
RULE_CHARS = 1_000  # of one rule; a longer one does not count
RULE_SETS = 20  # as `[a-z]` in one rule; one with more does not count
SET_CHARS = 50  # that a set counts for: a large one takes as long to compile
RULES_AT_ONCE, RULE_CHARS_AT_ONCE = 100, 1_500  # that are compiled at once: some 10 ms, in which no other thread moves
FOLDER_ENTRIES = 20_000  # of one folder; more are left out, and a note says so
ALWAYS_LEFT_OUT = ".git"


@dataclass(frozen=True, slots=True)
class IgnoreRules:
    """The .gitignore files that apply in a folder, outermost first, in parts, each with its own folder.

    `cut`: those with more than MAX_RULES lines, or lines of more than RULE_CHARS or RULE_SETS.
    """

    specs: tuple[tuple[str, GitIgnoreSpec], ...] = ()
    cut: frozenset[str] = frozenset()

    def ignore(self, path: str, *, folder: bool) -> bool:
        """Return whether a path is ignored: the innermost file with a matching line decides, as in git.

        In a name, a byte that is no UTF-8 and a line end each count as one character that only a wildcard matches.
        """
        for inside, spec in reversed(self.specs):
            relative = path[len(inside) :] + ("/" if folder else "")
            verdict = spec.check_file(relative.encode("utf-8", "replace").decode().replace("\n", "?")).include
            if verdict is not None:
                return verdict
        return False

    def inside_folder(self, workspace: Workspace, path: str, entries: list[FolderEntry]) -> IgnoreRules:
        """Return the rules inside a folder; a .gitignore that can't be read is skipped."""
        if not any(entry.name == IGNORE_FILE and entry.kind == "file" for entry in entries):
            return self
        try:
            text = workspace.read_start(join_path(path, IGNORE_FILE), IGNORE_BYTES)[0].decode("utf-8", "replace")
        except KairosError:
            return self
        lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
        above = "" if path == "." else f"{path}/"
        rules = [line for line in lines[:MAX_RULES] if len(line) <= RULE_CHARS and line.count("[") <= RULE_SETS]
        parts = ((above, spec) for spec in _compile_rules(rules))
        cut = self.cut | {f"{above}{IGNORE_FILE}"} if len(rules) < len(lines) else self.cut
        return IgnoreRules((*self.specs, *parts), cut)


@dataclass(slots=True)
class OmittedEntries:
    """Counts what a walk did not show; `is_hidden` tells which paths the gate's rules hide."""

    is_hidden: Callable[[str], bool] | None = None
    denied: int = 0  # hidden by a rule of the gate; what lies in a hidden folder is not counted
    ignored: int = 0
    unreadable: int = 0
    crowded: list[str] = field(default_factory=list)  # folders with more entries than are looked at
    cut_rules: set[str] = field(default_factory=set)  # .gitignore files with lines that don't count
    unwritable_names: int = 0  # shown, but by a name that no call can pass
    timed_out: bool = False  # the time ran out

    def hides(self, path: str) -> bool:
        """Return whether a rule hides this path; count it then."""
        is_hidden = self.is_hidden is not None and self.is_hidden(path)
        self.denied += is_hidden
        return is_hidden

    def format_omissions(self) -> list[str]:
        parts = []
        if self.denied:
            parts.append(f"{self.denied:,} that a rule of the gate keeps from this call")
        if self.ignored:
            parts.append(f"{self.ignored:,} by .gitignore")
        if self.unreadable:
            parts.append(f"{self.unreadable:,} that can't be opened")
        if self.crowded:
            parts.append(f"entries past {FOLDER_ENTRIES:,} in {', '.join(map(printable_name, self.crowded[:3]))}")
        return parts

    def format_path(self, path: str) -> str:
        """Return the path as shown in a result; count it if a call could not pass it back."""
        spelled = printable_name(path)
        self.unwritable_names += spelled != path or "\\" in path
        return spelled

    def notes(self) -> list[str]:
        """Return notes on the names that were shown, and on rules that did not count."""
        notes = []
        if self.cut_rules:
            named = ", ".join(map(printable_name, sorted(self.cut_rules)[:3]))
            notes.append(
                f"of {named} the first {MAX_RULES:,} rules of up to {RULE_CHARS:,} characters and {RULE_SETS} sets "
                "as [a-z] count; what others ignore is shown"
            )
        if not self.unwritable_names:
            return notes
        what = "1 name is" if self.unwritable_names == 1 else f"{self.unwritable_names:,} names are"
        return [
            *notes,
            f"{what} not UTF-8, or with a backslash or invisible characters: spelled out as \\xff, \\n, "
            "which can't be given as a path; a person may rename them",
        ]


@dataclass(frozen=True, slots=True)
class ListedFolder:
    """A folder as it is shown: its entries by name, and the rules that apply inside."""

    path: str
    entries: tuple[FolderEntry, ...]
    rules: IgnoreRules


def list_folder(workspace: Workspace, path: str, rules: IgnoreRules, omitted: OmittedEntries) -> ListedFolder:
    """List a folder without .git and ignored entries. Raises what `Workspace.entries` raises."""
    entries, more = workspace.entries(path, FOLDER_ENTRIES)
    if more:
        omitted.crowded.append(path)
    inner = rules.inside_folder(workspace, path, entries)
    omitted.cut_rules |= inner.cut
    kept = []
    for entry in entries:
        if entry.name == ALWAYS_LEFT_OUT or is_leftover(entry.name):
            continue
        if omitted.hides(join_path(path, entry.name)):
            continue
        if inner.specs and inner.ignore(join_path(path, entry.name), folder=entry.kind == "folder"):
            omitted.ignored += 1
        else:
            kept.append(entry)
    return ListedFolder(path, tuple(kept), inner)


def walk(
    workspace: Workspace, path: str, deadline: float, omitted: OmittedEntries
) -> Iterator[tuple[str, FolderEntry]]:
    """Yield every entry below a folder that is no folder itself, with its path; by name, depth first.

    Stops at `deadline` (`time.monotonic()`) and notes that in `omitted`. Raises only if the first folder can't be
    opened.
    """
    stack = [iter(_entries_with_rules(list_folder(workspace, path, ignore_rules_at(workspace, path), omitted)))]
    while stack:
        step = next(stack[-1], None)
        if step is None:
            stack.pop()
            continue
        entry_path, entry, rules = step
        if entry.kind != "folder":
            yield entry_path, entry
            continue
        if time.monotonic() >= deadline:
            omitted.timed_out = True
            return
        try:
            stack.append(iter(_entries_with_rules(list_folder(workspace, entry_path, rules, omitted))))
        except KairosError:
            omitted.unreadable += 1


def ignore_rules_at(workspace: Workspace, path: str) -> IgnoreRules:
    """Return the rules that apply where a walk starts; none for a folder that is itself ignored but was asked for."""
    rules, folder = IgnoreRules(), "."
    if path == ".":
        return rules
    for name in path.split("/"):
        entries = [FolderEntry(IGNORE_FILE, "file")]  # tried without listing the folder
        rules = rules.inside_folder(workspace, folder, entries)
        folder = join_path(folder, name)
        if rules.ignore(folder, folder=True):
            return IgnoreRules()
    return rules


def is_in_ignored_folder(workspace: Workspace, path: str) -> bool:
    """Return whether a folder above this path is one that git ignores."""
    rules, folder = IgnoreRules(), "."
    for name in path.split("/")[:-1]:
        rules = rules.inside_folder(workspace, folder, [FolderEntry(IGNORE_FILE, "file")])
        folder = join_path(folder, name)
        if rules.ignore(folder, folder=True):
            return True
    return False


def join_path(path: str, name: str) -> str:
    return name if path == "." else f"{path}/{name}"


def _entries_with_rules(folder: ListedFolder) -> Iterator[tuple[str, FolderEntry, IgnoreRules]]:
    for entry in folder.entries:
        yield join_path(folder.path, entry.name), entry, folder.rules


def _compile_rules(lines: list[str]) -> Iterator[GitIgnoreSpec]:
    """Compile the lines of a .gitignore with RE2, since they are untrusted, in parts of a bounded size.

    A line that is no pattern is skipped, and so is one that is too large by itself.
    """
    part: list[str] = []
    for line in lines:
        if part and (len(part) == RULES_AT_ONCE or sum(map(_weigh, (*part, line))) > RULE_CHARS_AT_ONCE):
            yield from _compile_part(part)
            part = []
        part.append(line)
    if part:
        yield from _compile_part(part)


def _weigh(line: str) -> int:
    return len(line) + SET_CHARS * line.count("[")


def _compile_part(lines: list[str]) -> Iterator[GitIgnoreSpec]:
    import re2
    from pathspec import GitIgnoreSpec

    try:
        yield GitIgnoreSpec.from_lines(lines, backend="re2")
    except (ValueError, re2.error):
        if len(lines) > 1:
            yield from _compile_part(lines[: len(lines) // 2])
            yield from _compile_part(lines[len(lines) // 2 :])
