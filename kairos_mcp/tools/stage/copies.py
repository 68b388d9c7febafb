"""A copy of a workspace, in which a run's writes are kept where the kernel can mount no layer.

Each call first takes over what others have changed in the workspace meanwhile, but for paths that the run has touched.
A record says of each file how it and its copy looked when it was copied: what looks otherwise now, or is missing, the
run has touched.
"""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import field, fields, replace
from functools import cached_property
from pathlib import Path

from kairos_mcp.core.errors import TooLarge
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.tools.commands.sandbox import Sandbox, SandboxMount
from kairos_mcp.tools.files.safe_open import FILE, FOLDER
from kairos_mcp.tools.files.staging import HALF, fresh_name
from kairos_mcp.tools.files.walk import join_path
from kairos_mcp.tools.files.workspace import Workspace
from kairos_mcp.tools.stage.cloning import CopyFile, can_clone, choose_cloner, copy_by, copy_bytes
from kairos_mcp.tools.stage.layers import (
    ENTRY_BYTES,
    IsIgnored,
    TouchedPath,
    change_clock_ns,
    closing,
    folders_above,
    is_deep,
    is_folder,
    wait_for_next_change_time,
)
from kairos_mcp.tools.stage.stage import discard_folder

COPY = "copy"
CLONED_FILES = 10_000  # of a workspace, at most, where copies share their contents with it
COPIED_FILES, COPIED_BYTES = 2_000, 100 << 20  # at most, where they don't
RESTS = 4  # times as long as it took, until a call that only reads brings the copy up to date again
_GROWTH = 2  # by which it may exceed these while a run goes on
_FRESH_NS = 2_000_000_000  # a file that changed so lately is copied again: the same time may stand for a later change

# How a file looks: its inode, size, times of its content and of its last change, mode. No program sets the fourth.
Look = tuple[int, int, int, int, int]


@dataclass(slots=True)
class _Seen:
    """What is below a folder: files and links with their looks, folders with their modes. `closed`: folders that can't
    be opened, as one of another file system; `deep`: folders at MAX_DEPTH, with the times of their last change."""

    files: dict[str, Look] = field(default_factory=dict)
    folders: dict[str, int] = field(default_factory=dict)
    closed: list[str] = field(default_factory=list)
    deep: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class _Record:
    """What was copied: of each file its look and that of its copy; the folders; `closed` ones. `gone`: when it was seen
    first that the run has removed a file. `room`: the bytes of all files."""

    files: dict[str, tuple[Look, Look]] = field(default_factory=dict)
    folders: dict[str, int] = field(default_factory=dict)
    closed: list[str] = field(default_factory=list)
    gone: dict[str, int] = field(default_factory=dict)
    room: int = 0


class WorkspaceCopy:
    """The copy in a stage's folder."""

    is_shared = False  # each call may bring it up to date

    def __init__(self, folder: Path, workspace: Workspace) -> None:
        self.root, self._record_file = folder / COPY, folder / "copied.json"
        self._workspace = workspace
        self._rests_until = 0.0
        self._known: tuple[os.stat_result, _Record] | None = None

    def make(self) -> None:
        self.root.mkdir(parents=True, exist_ok=True, mode=0o700)

    @contextmanager
    def open(self, *, writable: bool) -> Iterator[Workspace]:
        del writable  # those that only read are ours
        if not self._record_file.exists():
            self.catch_up(must=True)
        with Workspace(self.root) as view:
            view.path = self._workspace.path
            yield view

    def catch_up(self, *, must: bool) -> None:
        if not must and time.monotonic() < self._rests_until:
            return
        began = time.monotonic()
        if not self._record_file.exists():
            discard_folder(self.root)  # what a call began to copy that was killed
            self.make()
        with Workspace(self.root) as own:
            self._bring_up_to_date(own)
        ended = time.monotonic()
        self._rests_until = ended + RESTS * (ended - began)

    def list_touched(self, is_ignored: IsIgnored, forced: Collection[str]) -> Iterator[TouchedPath]:
        del forced  # they count as not ignored
        touched, said = self._find_touched(), set[str]()
        for path in sorted(touched):
            above = next((each for each in reversed(folders_above(path)) if is_ignored(each, True)), None)
            stays = path if above is None and is_ignored(path, False) else above
            if stays is None:
                yield TouchedPath(path, touched[path], is_ignored=is_deep(path))
            elif stays not in said:
                said.add(stays)
                yield TouchedPath(stays, touched[path], is_ignored=True)

    def take_out(self, paths: Collection[str], kept: Collection[str]) -> None:
        del kept
        record = self._read_record()
        record = replace(record, files=dict(record.files), gone=dict(record.gone))
        with Workspace(self.root) as own:
            for path in sorted(paths, key=len, reverse=True):
                self._remove(own, path)
                record.files.pop(path, None)
                record.gone.pop(path, None)
            for path in sorted(paths):
                if (look := _look_at(self._workspace, path)) is not None:
                    for folder in reversed(folders_above(path)):
                        _make_folder(own, folder, 0o755)
                    self._copy(own, path, look, record)
        self._write_record(record)
        wait_for_next_change_time()

    def enter(self, sandbox: Sandbox) -> Sandbox:
        inside = (SandboxMount(self._workspace.path / path, "readable") for path in self._read_record().closed)
        return replace(sandbox, copy=self.root, stand_ins=(*sandbox.stand_ins, *inside))

    def list_mounted(self) -> list[str]:
        return self._read_record().closed

    def room(self) -> int:
        return self._read_record().room

    def _find_touched(self) -> dict[str, int]:
        """Return each path that the run has touched, with the time of its last change."""
        if not self._record_file.exists():
            return {}  # the first call was cut short before it had the workspace
        record = self._read_record()
        with Workspace(self.root) as own:
            seen = _look_around(own)
        touched = dict(seen.deep)
        for path, look in seen.files.items():
            if path not in record.files or record.files[path][1] != look:
                touched[path] = look[3]
        now, gone = change_clock_ns(), dict[str, int]()
        for path in record.files.keys() - seen.files.keys():
            gone[path] = touched[path] = record.gone.get(path, now)
        if gone != record.gone:
            self._write_record(replace(record, gone=gone))
        return touched

    def _bring_up_to_date(self, own: Workspace) -> None:
        """Take over what others have changed. Raises TooLarge."""
        there, old = self.look_at_workspace(_GROWTH), self._read_record()
        seen, record = _look_around(own), _Record(closed=there.closed, gone=old.gone, folders=there.folders)
        touched = {path for path, (_, look) in old.files.items() if seen.files.get(path) != look}
        for path, looks in old.files.items():
            if path in touched or path in there.files:
                record.files[path] = looks
            else:
                self._remove(own, path)
        for path in sorted(old.folders.keys() - there.folders.keys(), key=len, reverse=True):
            with suppress(OSError):  # the run may have something in it
                os.rmdir(self.root / path)
        for path in sorted(there.folders.keys() - old.folders.keys()):
            _make_folder(own, path, there.folders[path])
        late = [
            path
            for path, look in there.files.items()
            if (old.files[path][0] != look and path not in touched if path in old.files else path not in seen.files)
        ]
        for path in late:
            self._copy(own, path, there.files[path], record)
        entries = len(record.files) + len(record.folders)
        record.room = ENTRY_BYTES * entries + sum(look[1] for look, _ in record.files.values())
        if record != old or not self._record_file.exists():
            self._write_record(record)
        if late:
            wait_for_next_change_time()  # else what a program writes now could look like its copy

    def _copy(self, own: Workspace, path: str, look: Look, record: _Record) -> None:
        """Copy a file or a link, and record it, unless it can't be read, or something of the run is in its way."""
        above, _, name = path.rpartition("/")
        half = fresh_name("copy", HALF)
        with suppress(OSError), closing(own.open_fd(above or ".", FOLDER)) as folder:
            if stat.S_ISLNK(look[4]):
                with closing(self._workspace.open_fd(above or ".", FOLDER)) as real:
                    os.symlink(os.readlink(name, dir_fd=real), half, dir_fd=folder)
            else:
                with closing(self._workspace.open_fd(path, FILE)) as source:
                    self._copy_file(source, folder, half)
                os.chmod(half, stat.S_IMODE(look[4]) & 0o777, dir_fd=folder)
                os.utime(half, ns=(look[2], look[2]), dir_fd=folder)
            try:
                os.rename(half, name, src_dir_fd=folder, dst_dir_fd=folder)
            except OSError:
                os.unlink(half, dir_fd=folder)
                raise
            known = (*look[:3], 0, look[4]) if look[3] >= change_clock_ns() - _FRESH_NS else look
            record.files[path] = known, _as_look(os.stat(name, dir_fd=folder, follow_symlinks=False))

    def _remove(self, own: Workspace, path: str) -> None:
        """Remove a file of the copy, and folders above it that are empty and that the workspace does not have."""
        above, _, name = path.rpartition("/")
        with suppress(OSError), closing(own.open_fd(above or ".", FOLDER)) as folder:
            os.unlink(name, dir_fd=folder)
        for each in (path, *folders_above(path)):
            if is_folder(self._workspace, each):
                break
            parent, _, name = each.rpartition("/")
            with suppress(OSError), closing(own.open_fd(parent or ".", FOLDER)) as folder:
                os.rmdir(name, dir_fd=folder)

    @cached_property
    def _copy_file(self) -> CopyFile:
        cloner = choose_cloner()
        can_share = cloner is not None and can_clone(cloner, self._workspace.path, self.root.parent)
        return copy_by(cloner) if cloner is not None and can_share else copy_bytes

    def look_at_workspace(self, times: int = 1) -> _Seen:
        """Return what is in the workspace. Raises TooLarge for more than `times` the bounds."""
        if self._copy_file is copy_bytes:
            return _look_around(self._workspace, COPIED_FILES * times, COPIED_BYTES * times)
        return _look_around(self._workspace, CLONED_FILES * times)

    def _read_record(self) -> _Record:
        """Return the record, an empty one where there is none yet; nobody changes it but by `_write_record`."""
        try:
            status = os.stat(self._record_file)
        except FileNotFoundError:
            return _Record()
        if self._known is not None and _as_look(self._known[0]) == _as_look(status):
            return self._known[1]
        value = json.loads(self._record_file.read_text(encoding="ascii"))
        value["files"] = {path: tuple(map(tuple, looks)) for path, looks in value["files"].items()}
        self._known = status, _Record(**value)
        return self._known[1]

    def _write_record(self, record: _Record) -> None:
        half = self._record_file.with_name(f"{self._record_file.name}.{os.getpid()}.part")
        half.write_text(
            json.dumps({each.name: getattr(record, each.name) for each in fields(record)}), encoding="ascii"
        )
        os.rename(half, self._record_file)
        self._known = os.stat(self._record_file), record


def find_copy_problem(workspace: Path, folder: Path) -> str | None:
    """Return why no run can work in a copy of this workspace, in words; None if it can. `folder`: an empty one on the
    file system of the stages."""
    with Workspace(workspace) as opened:
        try:
            WorkspaceCopy(folder, opened).look_at_workspace()
        except TooLarge as error:
            return error.message
    return None


def _look_around(root: Workspace, most_files: int | None = None, most_bytes: int | None = None) -> _Seen:
    """Return what is below a folder. Raises TooLarge, for more than these."""
    seen, left, size = _Seen(), ["."], 0
    while left:
        folder = left.pop()
        try:
            descriptor = root.open_fd(folder, FOLDER)
        except OSError:
            seen.closed.append(folder)
            continue
        with closing(descriptor), os.scandir(descriptor) as scan:
            for entry in scan:
                path, status = join_path(folder, entry.name), entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(status.st_mode):
                    if is_deep(path):
                        seen.deep[path] = status.st_ctime_ns
                        continue
                    seen.folders[path] = stat.S_IMODE(status.st_mode)
                    left.append(path)
                else:
                    seen.files[path] = _as_look(status)
                    size += status.st_size
        if most_files is not None and len(seen.files) + len(seen.folders) > most_files:
            raise TooLarge(f"it holds over {most_files:,} files and folders", "Name a smaller workspace.")
        if most_bytes is not None and size > most_bytes:
            raise TooLarge(f"it holds over {most_bytes >> 20:,} MiB", "Name a smaller workspace.")
    return seen


def _look_at(root: Workspace, path: str) -> Look | None:
    """Return how a file or a link looks; None if absent."""
    above, _, name = path.rpartition("/")
    with suppress(OSError), closing(root.open_fd(above or ".", FOLDER)) as folder:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        return None if stat.S_ISDIR(status.st_mode) else _as_look(status)
    return None


def _as_look(status: os.stat_result) -> Look:
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_mode


def _make_folder(own: Workspace, path: str, mode: int) -> None:
    """Make a folder in the copy, unless something of the run is in its way."""
    above, _, name = path.rpartition("/")
    with suppress(OSError), closing(own.open_fd(above or ".", FOLDER)) as folder:
        os.mkdir(name, mode | 0o700, dir_fd=folder)
