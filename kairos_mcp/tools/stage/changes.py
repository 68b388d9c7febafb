"""What a stage would change in its workspace: each path with its states, what others changed meanwhile merged in."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, field
from itertools import dropwhile
from typing import Literal

from kairos_mcp.core.builtin_tools import MAX_SUBMITTED_FILES
from kairos_mcp.core.errors import KairosError, TooLarge
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.paths import Scopes, plain_path_or_none
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.text import count_of
from kairos_mcp.core.tool import ToolContext
from kairos_mcp.tools.files.diff import changed_blocks
from kairos_mcp.tools.files.workspace import Workspace
from kairos_mcp.tools.stage.blobs import BLOB_BYTES
from kairos_mcp.tools.stage.layers import ABSENT, State, folders_above, is_deep, is_folder, read_state
from kairos_mcp.tools.stage.stage import MadeCall, Stage, StageNotes

MAX_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Change:
    """A path, what the workspace holds there now, and what it is to hold. `is_merged`: what others changed since the
    stage touched it is in it."""

    path: str
    before: State
    after: State
    is_merged: bool = False

    @property
    def kind(self) -> Literal["created", "changed", "deleted"]:
        if self.before.kind == "absent":
            return "created"
        return "deleted" if self.after.kind == "absent" else "changed"

    @property
    def changes_mode(self) -> bool:
        """Whether the file becomes, or is no longer, one that can be executed."""
        return self.after.kind == "file" and self.after.exe != (self.before.kind == "file" and self.before.exe)

    def as_json(self) -> JsonObject:
        return asdict(self)

    @staticmethod
    def from_json(value: JsonObject) -> Change:
        return Change(value["path"], State(**value["before"]), State(**value["after"]), value["is_merged"])


@dataclass(frozen=True, slots=True)
class Conflict:
    """A path that can't be merged. `is_unclear`: nobody can tell whose lines are whose."""

    path: str
    is_unclear: bool


@dataclass(slots=True)
class StagedChanges:
    """What a stage holds: the changes, the calls behind each (`StageNotes.list_causes`), what can't be merged, and what
    stays.

    `ignored`: paths, of whole folders one, that git ignores; `own`: those that no run may write; `strange`: links out
    of the workspace, pipes, names that can't be told from others, what is too large or too deep; `left`: what the call
    leaves in the stage; `checked`: what nothing but an acceptance check wrote.
    """

    changes: list[Change] = field(default_factory=list)
    causes: dict[str, list[tuple[MadeCall, str]]] = field(default_factory=dict)
    conflicts: list[Conflict] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    own: list[str] = field(default_factory=list)
    strange: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    checked: list[str] = field(default_factory=list)

    @property
    def kept_paths(self) -> list[str]:
        """The paths that stay in the layer when the changes are applied."""
        return [
            *self.ignored,
            *self.own,
            *self.strange,
            *self.left,
            *self.checked,
            *(each.path for each in self.conflicts),
        ]

    def narrow(self, paths: Collection[str]) -> list[str]:
        """Leave every change but those of these paths in the stage; return the paths of the others."""
        withheld = [change.path for change in self.changes if change.path not in paths]
        withheld += [each.path for each in self.conflicts if each.path not in paths]
        self.changes = [change for change in self.changes if change.path in paths]
        self.conflicts = [each for each in self.conflicts if each.path in paths]
        self.left += withheld
        return withheld

    def describe_rest(self) -> str:
        """Say what stays in the stage; an empty text if nothing does."""
        counts = (
            (self.ignored, "ignored by git"),
            (self.own, "that no run may write (.git, and the server's own)"),
            (self.strange, "that are no files inside the workspace, over 16 MiB, or too deep"),
            (self.left, "that were not named, or not approved"),
            (self.checked, "that a check wrote"),
        )
        return "; ".join(f"{count_of(len(paths), 'path')} {what}" for paths, what in counts if paths)


def collect_changes(
    stage: Stage, scopes: Scopes, ctx: ToolContext, named: Sequence[str] | None = None, left: Collection[str] = ()
) -> StagedChanges:
    """Find what the stage would change now, and keep the contents on both sides as blobs; within `Stage.alone`.

    `named`: the files, or folders, to submit; None: all. Raises TooLarge.
    """
    notes, found = stage.read_notes(ctx), StagedChanges()
    forced = [path for path in notes.calls if not all(call.is_command for call in notes.calls[path])]
    forced += [path for path in named or () if path not in (*forced, ".")]
    with stage.open_root() as upper:
        for touched in stage.list_touched(forced):
            path, calls = touched.path, notes.calls.get(touched.path, [])
            if plain_path_or_none(path) != path or is_deep(path):
                found.strange.append(path)
            elif scopes.scope_of(path) == "L0":
                found.own.append(path)
            elif touched.is_ignored:
                found.ignored.append(path)
            elif calls and all(call.is_check for call in calls) and not (named and _is_named(path, named)):
                found.checked.append(path)
            elif path in left or not (named is None or _is_named(path, named)):
                if read_state(upper, path) != read_state(stage.workspace, path):
                    found.left.append(path)
            else:
                _add_change(stage, upper, notes, path, found)
                found.causes[path] = notes.list_causes(path)
            if len(found.changes) > MAX_SUBMITTED_FILES:
                raise TooLarge(f"Over {MAX_SUBMITTED_FILES:,} files are changed.", "Submit some of them: name `paths`.")
    if sum(change.after.size for change in found.changes) > MAX_BYTES:
        raise TooLarge(f"Over {MAX_BYTES >> 20} MiB are changed.", "Submit some of it: name `paths`.")
    ignored = set(found.ignored)
    found.ignored = [path for path in dict.fromkeys(found.ignored) if ignored.isdisjoint(folders_above(path))]
    found.changes.sort(key=lambda change: change.path)
    return found


def _is_named(path: str, named: Sequence[str]) -> bool:
    return "." in named or any(path == one or path.startswith(f"{one}/") for one in named)


def _add_change(stage: Stage, upper: Workspace, notes: StageNotes, path: str, found: StagedChanges) -> None:
    try:
        after, now = stage.blobs.keep_file(upper, path), stage.blobs.keep_file(stage.workspace, path)
    except (OSError, KairosError):
        found.strange.append(path)
        return
    if after == now:
        return
    base = notes.bases.get(path)
    if base is not None and after == base.state:
        return  # it was changed, and changed back
    if _is_strange(path, after) or _is_strange(path, now):
        found.strange.append(path)
        return
    is_unclear = base is None or base.is_unclear
    if base is not None and base.state == now and not is_unclear:
        found.changes.append(Change(path, now, after))
        return
    if base is None and now == ABSENT:
        found.changes.append(Change(path, now, after))
        return
    merged = None if is_unclear or base is None else _merge(stage, base.state, after, now)
    if merged is None:
        found.conflicts.append(Conflict(path, is_unclear))
    elif merged != now:
        found.changes.append(Change(path, now, merged, is_merged=True))


def _is_strange(path: str, state: State) -> bool:
    if state.kind == "link":
        return not _stays_inside(path, state.target or "")
    return state.kind == "other" or state.size > BLOB_BYTES


def _stays_inside(path: str, target: str) -> bool:
    """Whether a link leads to a path in the workspace, by its text. It may go up only where it begins: what is above
    another link is not known."""
    joined = os.path.normpath(os.path.join(os.path.dirname(path), target))
    further = dropwhile(lambda part: part in (".", ".."), target.split("/"))
    return not target.startswith("/") and ".." not in (*further, joined.partition("/")[0])


def _merge(stage: Stage, base: State, after: State, now: State) -> State | None:
    """Return the state of the file with the lines of both sides; None where they meet."""
    if not (base.kind == after.kind == now.kind == "file") or not stage.blobs.has(base.sha):
        return None
    merged = _merge_lines(stage.blobs.get(base.sha), stage.blobs.get(after.sha), stage.blobs.get(now.sha))
    if merged is None:
        return None
    exe = after.exe if after.exe != base.exe else now.exe
    return State("file", stage.blobs.keep(merged), exe, size=len(merged))


def missing_folders(there: Workspace, paths: Iterable[str]) -> list[str]:
    """Return the folders above these files that are not `there`, the innermost first."""
    above = {folder for path in paths for folder in folders_above(path)}
    return sorted((folder for folder in above if not is_folder(there, folder)), key=len, reverse=True)


def _merge_lines(base: bytes, ours: bytes, theirs: bytes) -> bytes | None:
    """Return the text with the changes of both sides; None where they meet, or where one is no text in UTF-8."""
    try:
        old, new, other = (text.decode().splitlines(keepends=True) for text in (base, ours, theirs))
    except UnicodeDecodeError:
        return None
    changes = [(a0, a1, new[b0:b1]) for a0, a1, b0, b1 in changed_blocks(old, new)]
    for a0, a1, b0, b1 in changed_blocks(old, other):
        change = (a0, a1, other[b0:b1])
        if change in changes:
            continue
        if any(a0 <= end and begin <= a1 for begin, end, _ in changes):
            return None
        changes.append(change)
    merged, at = list[str](), 0
    for a0, a1, lines in sorted(changes, key=lambda change: change[:2]):
        merged += old[at:a0] + lines
        at = a1
    return "".join(merged + old[at:]).encode()
