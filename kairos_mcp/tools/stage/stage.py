"""The stage of one run: a layer over its workspace in the state folder, or a copy, and what the run's rows say of it.

The folder holds the layer, `blobs`, and `begun` while a call writes. The rows hold, from before a call has its answer,
what each path held that it was the first to touch, and which calls changed which path.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import field
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Literal

from kairos_mcp.core.builtin_tools import RUN_COMMAND
from kairos_mcp.core.errors import Busy, KairosError, NotFound
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.tool import ToolContext
from kairos_mcp.store.tool_intents import stage_note_name
from kairos_mcp.tools.commands.protected_paths import RESERVED_NAMES
from kairos_mcp.tools.files.safe_open import FILE, FOLDER, LOCAL, file_system_type
from kairos_mcp.tools.files.staging import is_leftover
from kairos_mcp.tools.files.walk import IGNORE_FILE, IgnoreRules
from kairos_mcp.tools.files.workspace import FolderEntry, Workspace
from kairos_mcp.tools.stage.blobs import Blobs
from kairos_mcp.tools.stage.layers import (
    ENTRY_BYTES,
    MAX_DEPTH,
    Layer,
    State,
    TouchedPath,
    change_clock_ns,
    folders_above,
)

# Written by programs in every project, and rarely named in a .gitignore.
CACHE_FOLDERS = frozenset(("__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", "node_modules", ".venv"))
FOREIGN_CLOCK_NS = 2_000_000_000  # by which the clock of a file system on another machine may differ from ours
MAX_NOTED = 20_000  # paths of one call whose bases are kept; of more, those beyond count as unclear
OWN_CLOCK = LOCAL | {"tmpfs", "overlay"}
_POLL_S = 0.01
_OWNER, _PENDING = "owner", "pending"
_GONE = "The stage's folder is missing; the record has the calls. Nothing was applied."


@dataclass(frozen=True, slots=True)
class MadeCall:
    """A call that wrote in the stage, with as much of its arguments as the gate judges it by. `is_check`: it was made
    to judge what is there, so that what it alone wrote is not applied."""

    tool: str
    arguments: JsonObject
    is_check: bool = False

    @property
    def is_command(self) -> bool:
        return self.tool == RUN_COMMAND.name


@dataclass(frozen=True, slots=True)
class Base:
    """What a path held in the workspace when the stage touched it first. `is_unclear`: it was saved by another program
    while the call ran that touched it, so that nobody knows which of both contents that call began with."""

    state: State
    is_unclear: bool = False


@dataclass(slots=True)
class StageNotes:
    """What the rows say of the paths of a stage: their bases, and the calls that changed them.

    `history`: every call that wrote, in order, with what it changed that was not applied since. A command stands in it
    whatever it changed: it may have written where nobody looks, in what git ignores.
    """

    count: int = 0
    bases: dict[str, Base] = field(default_factory=dict)
    calls: dict[str, list[MadeCall]] = field(default_factory=lambda: defaultdict(list))
    history: list[tuple[MadeCall, set[str]]] = field(default_factory=list)

    @staticmethod
    def read(inherited: Sequence[str], own: Sequence[str]) -> StageNotes:
        """Read the notes of the runs that had the stage before, and the run's own."""
        notes = StageNotes(len(own))
        for text in (*inherited, *own):
            note = json.loads(text)
            for _, changed in notes.history:
                changed.difference_update(note.get("applied", ()))
            for path in (*note.get("applied", ()), *note.get("dropped", ())):
                notes.bases.pop(path, None)
                notes.calls.pop(path, None)
            for path, base in note.get("bases", {}).items():
                notes.bases[path] = Base(State(**base["state"]), base["unclear"])
            if "tool" not in note:
                continue
            call = MadeCall(note["tool"], note["arguments"], note["check"])
            notes.history.append((call, set(note["paths"])))
            for path in note["paths"]:
                if call not in notes.calls[path]:
                    notes.calls[path].append(call)
        return notes

    def list_causes(self, path: str) -> list[tuple[MadeCall, str]]:
        """Return the calls that may have told what a path holds, each with a file that it wrote: those that changed it;
        if a program did, all before it too, since it may have read, or been, what they wrote."""
        own = [(call, path) for call in self.calls.get(path, ())]
        programs = [at for at, (call, changed) in enumerate(self.history) if call.is_command and path in changed]
        if not programs:
            return own
        before = self.history[: programs[-1]]
        others = [(call, each) for call, changed in before for each in ([""] if call.is_command else sorted(changed))]
        return [*own, *others]

    def keep(self, ctx: ToolContext, note: JsonObject) -> None:
        """Add a note to the rows."""
        ctx.memory.keep(stage_note_name(self.count + 1), json.dumps(note))


class Stage:
    """The stage of one run. Its folder is made at the first call, and every method raises subclasses of KairosError.

    `find_layer`: returns what a stage in this folder is kept in. `before`: the run that had it before, whose stage this
    one takes over; `read_inherited`: returns the notes of all that did.
    """

    def __init__(
        self,
        folder: Path,
        workspace: Workspace,
        find_layer: Callable[[Path], Layer],
        run_id: str,
        before: str | None = None,
        read_inherited: Callable[[], Sequence[str]] = lambda: (),
    ) -> None:
        self.folder, self.workspace, self._run_id, self._read_inherited = folder, workspace, run_id, read_inherited
        self._before = before
        self._inherited: Sequence[str] | None = None
        self._own: list[str] = []  # notes are only ever added
        self._notes_lock = Lock()
        self.blobs = Blobs(folder / "blobs")
        self._find_layer = find_layer

    @cached_property
    def layer(self) -> Layer:
        return self._find_layer(self.folder)

    @contextmanager
    def reading(self, ctx: ToolContext) -> Iterator[Workspace]:
        """Yield the workspace as the stage shows it; others may read at the same time."""
        how = fcntl.LOCK_SH if self.layer.is_shared else fcntl.LOCK_EX
        with self._hold_lock(ctx, how):
            self.layer.catch_up(must=False)
            with self._open_layer(writable=False) as view:
                yield view

    @contextmanager
    def writing(self, ctx: ToolContext, call: MadeCall, named: Collection[str] = ()) -> Iterator[None]:
        """Let one call write, alone; note afterwards what it touched, however it ended. `named`: files that it names,
        which are noted even where git ignores them."""
        with self._hold_lock(ctx, fcntl.LOCK_EX):
            begun_ns = self._mark_begin()
            self.layer.catch_up(must=True)  # what others change from now on is unclear
            try:
                yield
            finally:
                self._note(ctx, call, begun_ns, named)

    @contextmanager
    def alone(self, ctx: ToolContext) -> Iterator[None]:
        """Keep every other call out."""
        with self._hold_lock(ctx, fcntl.LOCK_EX):
            yield

    @contextmanager
    def open_mount(self) -> Iterator[Workspace]:
        """Open it for writing, within `writing`."""
        with self._open_layer(writable=True) as view:
            yield view

    @contextmanager
    def view(self) -> Iterator[Workspace]:
        """Open it for reading, within `writing` or `alone`."""
        with self._open_layer(writable=False) as view:
            yield view

    def note_interrupted(self, ctx: ToolContext, call: MadeCall, named: Collection[str] = ()) -> None:
        """Note what a call touched that a crash ended. It counts from its first begin."""
        with self._hold_lock(ctx, fcntl.LOCK_EX):
            begun_ns = self._read_begin()
            if begun_ns is not None:
                self._note(ctx, call, begun_ns, named)

    def list_touched(self, forced: Collection[str] = ()) -> list[TouchedPath]:
        """List every path that the layer decides about, ignored folders by their own names; `forced` ones count as not
        ignored."""
        self._check_there()
        return list(self.layer.list_touched(_Ignores(self.workspace, forced).ignore, forced))

    def forget(
        self, ctx: ToolContext, why: Literal["applied", "dropped"], paths: Collection[str], kept: Collection[str]
    ) -> None:
        """Take paths out of the layer: the workspace holds what it held, or holds what is wanted. `kept`: the other
        paths that the layer decides about."""
        notes = self.read_notes(ctx)
        notes.keep(ctx, {why: sorted(paths)})
        self._check_there()
        self.layer.take_out(paths, kept)

    def mark_applied(self) -> None:
        """Note that nothing is left that could be applied: once its run has ended, the stage may go."""
        (self.folder / _PENDING).unlink(missing_ok=True)

    def read_notes(self, ctx: ToolContext) -> StageNotes:
        """Read what the rows say of the stage's paths."""
        with self._notes_lock:
            if self._inherited is None:
                self._inherited = tuple(self._read_inherited())
            while (note := ctx.memory.recall(stage_note_name(len(self._own) + 1))) is not None:
                self._own.append(note)
            return StageNotes.read(self._inherited, self._own)

    @staticmethod
    def owner_of(folder: Path) -> str | None:
        """Return the id of the run that has the stage in this folder; None where none has used it."""
        try:
            return (folder / _OWNER).read_text(encoding="ascii")
        except OSError:
            return None

    def _make_folder(self, ctx: ToolContext) -> None:
        """Make the folder at the first call; take it over from a run before. Raises NotFound where it is gone."""
        if self.owner_of(self.folder) == self._run_id and self.layer.root.is_dir():
            return
        notes, owner = self.read_notes(ctx), self.owner_of(self.folder)
        if owner not in (None, self._run_id, self._before):
            raise NotFound(f"The stage was taken over by the run {owner}.", "Go on with that run.")
        if notes.count or (notes.bases and not self.layer.root.is_dir()):
            raise NotFound(_GONE, "Start anew.")
        self.blobs.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.layer.make()
        half = self.folder / f"{_OWNER}.{os.getpid()}.part"
        half.write_text(self._run_id, encoding="ascii")
        os.rename(half, self.folder / _OWNER)

    @contextmanager
    def _hold_lock(self, ctx: ToolContext, how: int) -> Iterator[None]:
        self._make_folder(ctx)
        descriptor = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            while not _try_lock(descriptor, how):
                if ctx.stop.is_set or time.monotonic() >= ctx.deadline:
                    raise Busy("Another program is running in this run's stage.", "Call again when it has ended.")
                time.sleep(_POLL_S)  # a lock has no deadline of its own
            yield
        finally:
            os.close(descriptor)

    @contextmanager
    def _open_layer(self, *, writable: bool) -> Iterator[Workspace]:
        self._check_there()
        with self.layer.open(writable=writable) as view:
            yield view

    @contextmanager
    def open_root(self) -> Iterator[Workspace]:
        """Open the layer itself."""
        self._check_there()
        with Workspace(self.layer.root) as root:
            yield root

    def _check_there(self) -> None:
        if not self.layer.root.is_dir():
            raise NotFound(_GONE, "Start anew.")

    @property
    def _begun(self) -> Path:
        return self.folder / "begun"

    def _mark_begin(self) -> int:
        """Return when this call began, or the one before it that nobody has noted."""
        begun_ns = self._read_begin()
        if begun_ns is None:
            begun_ns = change_clock_ns()
            self._begun.write_text(str(begun_ns))
        return begun_ns

    def _read_begin(self) -> int | None:
        try:
            return int(self._begun.read_text())
        except (OSError, ValueError):
            return None

    def _note(self, ctx: ToolContext, call: MadeCall, begun_ns: int, named: Collection[str]) -> None:
        notes, since = self.read_notes(ctx), begun_ns - self._clock_margin_ns
        bases: dict[str, JsonObject] = {}
        touched = [each for each in self.list_touched(named) if not each.is_ignored]
        for each in touched:
            if each.path not in notes.bases and len(bases) < MAX_NOTED:
                bases[each.path] = self._find_base(each.path, since)
        changed = [each.path for each in touched if each.changed_ns >= since or each.path in named]
        if bases or changed:
            (self.folder / _PENDING).touch()
        if bases or changed or call.is_command:
            notes.keep(
                ctx,
                {
                    "tool": call.tool,
                    "arguments": call.arguments,
                    "check": call.is_check,
                    "bases": bases,
                    "paths": changed[:MAX_NOTED],
                },
            )
        self._begun.unlink(missing_ok=True)

    @cached_property
    def _clock_margin_ns(self) -> int:
        descriptor = self.workspace.open_fd(".", FOLDER)
        try:
            return 0 if file_system_type(descriptor) in OWN_CLOCK else FOREIGN_CLOCK_NS
        finally:
            os.close(descriptor)

    def _find_base(self, path: str, since_ns: int) -> JsonObject:
        """Return what the workspace holds at a path, as it is noted, and keep the content for a merge."""
        try:
            state = self.blobs.keep_file(self.workspace, path)
        except (OSError, KairosError):
            state = State("other")
        return {"state": state.as_json(), "unclear": self._changed_since(path, since_ns)}

    def _changed_since(self, path: str, since_ns: int) -> bool:
        try:
            descriptor = self.workspace.open_fd(path, FILE)
        except OSError:
            return False
        try:
            return os.fstat(descriptor).st_ctime_ns >= since_ns
        finally:
            os.close(descriptor)


def has_pending_changes(folder: Path) -> bool:
    """Whether something in the stage of this folder was neither applied nor dropped."""
    return (folder / _PENDING).exists()


def discard_folder(folder: Path) -> None:
    """Remove a stage's folder. The kernel leaves a folder in it that nobody may open, and programs may leave others,
    however deep: so each is moved to the top before it is emptied."""
    found, emptied = [folder], list[Path]()
    while found:
        emptied.append(top := found.pop())
        with suppress(OSError):
            os.chmod(top, 0o700)
            with os.scandir(top) as scan:
                entries = list(scan)
            for entry in entries:
                if not entry.is_dir(follow_symlinks=False):
                    os.unlink(entry)
                elif top == folder:
                    found.append(Path(entry))
                else:
                    os.chmod(entry, 0o700)  # its `..` changes
                    raised = folder / f"{secrets.token_hex(8)}.gone"
                    os.rename(entry, raised)
                    found.append(raised)
    for each in reversed(emptied):
        with suppress(OSError):
            os.rmdir(each)


class _Ignores:
    """What git ignores by the .gitignore files of the workspace itself: never by those of the stage, in which a run
    could hide what it wrote. `forced`: paths that are not ignored."""

    def __init__(self, workspace: Workspace, forced: Collection[str]) -> None:
        self._workspace = workspace
        self._forced = frozenset(forced)
        self._above_forced = {folder for path in forced for folder in folders_above(path)}
        self._rules: dict[str, IgnoreRules] = {}

    def ignore(self, path: str, folder: bool) -> bool:
        name = path.rpartition("/")[2]
        if path in self._above_forced or not self._forced.isdisjoint((path, *folders_above(path))):
            return False
        if is_leftover(name) or (folder and (name in CACHE_FOLDERS or name in RESERVED_NAMES)):
            return True
        return self._rules_in(path.rpartition("/")[0]).ignore(path, folder=folder)

    def _rules_in(self, folder: str) -> IgnoreRules:
        known = self._rules.get(folder)
        if known is None:
            above = self._rules_in(folder.rpartition("/")[0]) if folder else IgnoreRules()
            entries = [FolderEntry(IGNORE_FILE, "file")]  # tried without listing the folder
            try:
                known = above.inside_folder(self._workspace, folder or ".", entries)
            except KairosError:
                known = above
            self._rules[folder] = known
        return known


def _try_lock(descriptor: int, how: int) -> bool:
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def sum_bytes(folder: Path, deadline: float) -> int:
    """Return the room that is taken in a folder, as far as it is found until `deadline` (`time.monotonic()`). Each
    entry counts, an empty one too; what lies deeper than MAX_DEPTH counts as more than any room."""
    total, found = 0, [(0, folder)]
    while found and time.monotonic() < deadline:
        depth, top = found.pop()
        if depth > MAX_DEPTH:
            return sys.maxsize
        with suppress(OSError), os.scandir(top) as scan:
            for entry in scan:
                total += max(ENTRY_BYTES, entry.stat(follow_symlinks=False).st_blocks * 512)
                if entry.is_dir(follow_symlinks=False):
                    found.append((depth + 1, Path(entry)))
    return total
