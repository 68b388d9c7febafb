"""Opens every file and folder that a tool reads or writes: only below the workspace's descriptor.

Checking a path and then opening it would not contain it, since the path may change in between: safe_open.py resolves
and opens in one step. Only regular files are read. Writing is in atomic_write.py.
"""

from __future__ import annotations

import errno
import os
import stat
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Literal, Self

from kairos_mcp.core.errors import ConfigError, KairosError, NotFound, NotRegularFile, PathDenied, TooLarge
from kairos_mcp.core.paths import plain_path, shorten_path
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.tools.files.hard_links import HardLinks, IsProtected
from kairos_mcp.tools.files.safe_open import (
    FILE,
    FOLDER,
    OpenBeneath,
    Rename,
    find_renameat2,
    is_local,
    kernel_opener,
    memory_opener,
    walk_opener,
)

Kind = Literal["file", "folder", "link", "other"]
MAX_NAMES = 10_000  # of a folder that is looked through for a name that is spelled otherwise
AT_ONCE_BYTES = 8 * 1024  # a larger file is not read at once: to redact what it holds may take milliseconds


@dataclass(frozen=True, slots=True)
class OpenedFile:
    """A regular file, open for reading; `size` is that of the moment when it was opened. `at_once`: what is not in
    memory is not read, but raises BlockingIOError."""

    fd: int
    path: str
    size: int
    at_once: bool = False

    def read(self, count: int, offset: int = 0) -> bytes:
        """Read `count` bytes from `offset`; fewer only at the end of the file."""
        if self.at_once:
            return _read_from_memory(self.fd, count, offset, self.size)
        return _read(self.fd, count, offset, self.size)


@dataclass(frozen=True, slots=True)
class FolderEntry:
    """A name in a folder, and its kind; links are not followed."""

    name: str
    kind: Kind


class PrivateFolder(PermissionError):
    """The path lies in the server's own state folder."""


class _SharedDescriptor:
    """A descriptor that is closed with its last reference, so that its number is not reused while a thread opens by
    it."""

    __slots__ = ("fd",)

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __del__(self) -> None:
        os.close(self.fd)


class Workspace:
    """Opens files below one folder, whose descriptor it holds until closed; may be used from several threads.

    Nothing in the `private` folder is ever opened, by whatever name: the folder is recognized by its inode. `walk=True`
    opens component by component even if the kernel could resolve; `exchange=False` does without renameat2. `by_kernel`,
    `by_exchange` and `at_once` (whether files can be opened without waiting for a disk) tell which are in use.
    """

    def __init__(
        self, workspace: Path, *, private: Path | None = None, walk: bool = False, exchange: bool = True
    ) -> None:
        try:
            self._root: _SharedDescriptor | None = _SharedDescriptor(os.open(workspace, FOLDER))
        except OSError as error:
            raise ConfigError(
                f"The workspace can't be opened ({_errno_name(error)}).",
                "Name an existing folder with --workspace.",
            ) from None
        self.path = workspace
        self._private = private
        self._links = HardLinks()
        try:
            kernel: OpenBeneath | None = None if walk else kernel_opener(self._root.fd)
            self._open: OpenBeneath = kernel or walk_opener(self._root.fd)
        except OSError as error:
            raise ConfigError(
                f"Files can't be opened safely here ({_errno_name(error)}).",
                "Run `kairos-mcp doctor`, and mount /proc if this is a container without it.",
            ) from None
        self.by_kernel = kernel is not None
        can_tell = self.by_kernel and (private is None or is_local(private))  # its status is asked for at each open
        self._open_from_memory = memory_opener(self._root.fd) if can_tell else None
        self.at_once = self._open_from_memory is not None
        self.rename: Rename | None = find_renameat2() if exchange else None
        self.by_exchange = self.rename is not None
        # For comparing and renaming without an exchange, where two writers could undo each other.
        self.rename_lock = Lock()

    @contextmanager
    def open_file(
        self, path: str, *, at_once: bool = False, is_hidden: IsProtected | None = None
    ) -> Iterator[OpenedFile]:
        """Open a regular file while the block runs. Raises NotFound, NotRegularFile, PathDenied.

        `at_once`: raises BlockingIOError, here and where it is read, instead of waiting for a disk. No other name of a
        file like `.env`, or of one that `is_hidden` tells of, is opened.
        """
        plain = plain_path(path)
        fd = self._open_fd(plain, FILE, at_once=at_once)
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise _not_regular_error(plain, folder=stat.S_ISDIR(status.st_mode))
            if at_once and (status.st_size > AT_ONCE_BYTES or status.st_nlink > 1):
                raise BlockingIOError
            self._check_links(plain, status, is_hidden)
            yield OpenedFile(fd, plain, status.st_size, at_once)
        finally:
            os.close(fd)

    def read_start(self, plain: str, count: int, is_hidden: IsProtected | None = None) -> tuple[bytes, int]:
        """Return at most `count` bytes of a file, and its size. `plain` must come from a walk; this does less than
        `open_file`, since a search opens thousands of files. `is_hidden`: as for `open_file`."""
        fd = self._open_fd(plain, FILE)
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise _not_regular_error(plain, folder=stat.S_ISDIR(status.st_mode))
            self._check_links(plain, status, is_hidden)
            return _read(fd, min(count, status.st_size), 0, status.st_size), status.st_size
        except OSError as error:
            raise open_error(error, plain) from None
        finally:
            os.close(fd)

    def read_whole(self, path: str, limit: int) -> bytes | None:
        """Return all that a file holds, None if it or its folder is missing. Raises TooLarge above `limit` bytes, and
        what `open_file` raises."""
        plain = plain_path(path)
        try:
            fd = self.open_fd(plain, FILE)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise open_error(error, plain) from None
        try:
            self._check_links(plain, os.fstat(fd))
            return read_opened(fd, plain, limit)
        finally:
            os.close(fd)

    def find_spelling(self, path: str) -> str:
        """Return the plain path as the disk spells it: a name may be stored with its accents apart from their letters,
        and nobody who reads it can tell. Where there is no such file, or several, the path stays as it is."""
        plain = plain_path(path)
        if plain.isascii() or self._exists(plain):
            return plain
        folder = "."
        for name in plain.split("/"):
            exact = name if folder == "." else f"{folder}/{name}"
            folder = exact if name.isascii() or self._exists(exact) else self._find_name(folder, name)
            if not folder:
                return plain
        return folder

    def _find_name(self, folder: str, name: str) -> str:
        """Return the path of the one entry of a folder whose name is the same to a reader; else an empty text."""
        try:
            entries, is_cut = self.entries(folder, MAX_NAMES)
        except KairosError:
            return ""
        composed = unicodedata.normalize("NFC", name)
        found = [entry.name for entry in entries if unicodedata.normalize("NFC", entry.name) == composed]
        if len(found) != 1 or is_cut:
            return ""
        return found[0] if folder == "." else f"{folder}/{found[0]}"

    def _exists(self, plain: str) -> bool:
        try:
            os.close(self.open_fd(plain, FILE))
        except FileNotFoundError:
            return False
        except OSError:
            pass  # whoever opens it is told what is wrong with it
        return True

    def open_fd(self, plain: str, flags: int, folder: int | None = None, *, at_once: bool = False) -> int:
        """Open a path below the workspace, or below an opened folder of it; the caller closes the descriptor.

        Raises OSError as safe_open.py does, so that callers can tell the reasons apart; see `open_error`.
        `at_once`: raises BlockingIOError instead of waiting for a disk.
        """
        root = self._root  # our own reference, so that a `close` in another thread doesn't free the number
        if root is None:
            raise ValueError("the workspace is closed")
        folder_fd = root.fd if folder is None else folder
        opener = self._open_from_memory if at_once else self._open
        if opener is None:
            raise BlockingIOError
        fd = opener(folder_fd, plain, flags)
        if self._private is not None:
            try:
                self._refuse_private(folder_fd, plain, fd)
            except BaseException:
                os.close(fd)
                raise
        return fd

    def _refuse_private(self, folder_fd: int, plain: str, fd: int) -> None:
        """Raise PrivateFolder if the opened file is the private folder or lies in it. The opened folder `at` can't lie
        in it, since it was opened here too."""
        assert self._private is not None
        try:
            private = os.stat(self._private)
        except OSError:  # it does not exist yet
            return
        if os.fstat(fd).st_dev != private.st_dev:  # nothing is opened on another file system than the workspace's
            return
        folders = [plain[:end] for end, letter in enumerate(plain) if letter == "/"] if "/" in plain else []
        statuses = (os.stat(folder, dir_fd=folder_fd, follow_symlinks=False) for folder in folders)
        if any(os.path.samestat(status, private) for status in (os.fstat(fd), *statuses)):
            raise PrivateFolder(errno.EACCES, os.strerror(errno.EACCES))

    def _check_links(self, plain: str, status: os.stat_result, is_hidden: IsProtected | None = None) -> None:
        """Raise PathDenied if a file is another name of one that may not be read unasked."""
        root = self._root
        if status.st_nlink > 1 and stat.S_ISREG(status.st_mode) and root is not None:
            self._links.check(root.fd, plain, status, is_hidden)

    def is_folder(self, path: str) -> bool:
        """Return whether this is a folder. Raises like `open_file` if it can't be opened at all."""
        fd = self._open_fd(plain_path(path), FILE)
        try:
            return stat.S_ISDIR(os.fstat(fd).st_mode)
        finally:
            os.close(fd)

    def entries(self, plain: str, limit: int) -> tuple[list[FolderEntry], bool]:
        """Return at most `limit` entries of a folder, by name, and whether there are more.

        Its path is plain, or made of names that a listing returned, since some names can't be written in a call.
        """
        fd = self._open_fd(plain, FOLDER)
        entries: list[FolderEntry] = []
        try:
            with os.scandir(fd) as scan:
                for entry in scan:
                    if len(entries) == limit:
                        break
                    entries.append(FolderEntry(entry.name, _kind(entry)))
                else:
                    return sorted(entries, key=_entry_name), False
            return sorted(entries, key=_entry_name), True
        except OSError as error:
            raise open_error(error, plain) from None
        finally:
            os.close(fd)

    def close(self) -> None:
        """Close the folder's descriptor; a second call does nothing. Opening anything afterwards raises ValueError."""
        self._root = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open_fd(self, plain: str, flags: int, *, at_once: bool = False) -> int:
        try:
            return self.open_fd(plain, flags, at_once=at_once)
        except OSError as error:
            if at_once and isinstance(error, BlockingIOError):
                raise
            raise open_error(error, plain) from None


def _read(fd: int, count: int, offset: int, size: int) -> bytes:
    piece = os.pread(fd, count, offset)
    if len(piece) == count or offset + len(piece) == size:
        return piece  # the usual case: saves a read that would return nothing
    pieces, have = [piece], len(piece)
    while piece and have < count:
        piece = os.pread(fd, count - have, offset + have)
        pieces.append(piece)
        have += len(piece)
    return b"".join(pieces)


def _read_from_memory(fd: int, count: int, offset: int, size: int) -> bytes:
    """Like `_read`, but from the page cache only. Raises BlockingIOError if a part is not there."""
    buffer = bytearray(count)
    try:
        have = os.preadv(fd, [buffer], offset, os.RWF_NOWAIT) if count else 0
    except OSError:  # also where the file system does not know of it
        raise BlockingIOError from None
    if have < count and offset + have < size:
        raise BlockingIOError
    return bytes(buffer[:have])


def read_opened(fd: int, plain: str, limit: int) -> bytes:
    """Return all that an opened file holds. Raises NotRegularFile, and TooLarge above `limit` bytes."""
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        raise _not_regular_error(plain, folder=stat.S_ISDIR(status.st_mode))
    content = _read(fd, limit + 1, 0, status.st_size) if status.st_size <= limit else b""
    if status.st_size > limit or len(content) > limit:
        raise TooLarge(
            f"{shorten_path(plain)} has {status.st_size:,} bytes; at most {limit:,} are allowed.",
            "Edit a smaller file.",
        )
    return content


def open_error(error: OSError, plain: str) -> KairosError:
    """Return our error for an OSError of opening `plain`."""
    where = shorten_path(plain)
    if isinstance(error, PrivateFolder):
        text = f"{where} is in this server's own folder, where no tool reads or writes."
        return PathDenied(text, "Work on other files of the workspace.")
    match error.errno:
        case errno.ENOENT:
            return NotFound(f"{where} does not exist.", "list_files and search_files show what there is.")
        case errno.ENOTDIR:
            return NotFound(f"{where}: it, or a part of it, is not a folder.", "read_file reads a file.")
        case errno.ELOOP | errno.EMLINK:
            return PathDenied(f"{where} is or goes through a symbolic link.", "Name the file itself.")
        case errno.EXDEV:
            return PathDenied(f"{where} is on another file system.", "It would need a workspace of its own.")
        case errno.EACCES | errno.EPERM:
            return PathDenied(f"{where} may not be read by this server.", "Its permissions forbid it.")
        case errno.ENAMETOOLONG:
            return PathDenied(f"{where} has a name that is too long.", "A name has at most 255 bytes.")
        case errno.EAGAIN:
            return PathDenied(f"{where} is being moved while it is opened.", "Try again.")
        case errno.ENXIO | errno.ENODEV | errno.EOPNOTSUPP:
            return _not_regular_error(plain, folder=False)
        case _:
            return PathDenied(f"{where} can't be opened ({_errno_name(error)}).", "Try another file.")


def _not_regular_error(plain: str, *, folder: bool) -> NotRegularFile:
    if folder:
        return NotRegularFile(f"{shorten_path(plain)} is a folder.", "list_files and file_tree show what it holds.")
    return NotRegularFile(f"{shorten_path(plain)} is not a regular file.", "Only regular files are read.")


def _kind(entry: os.DirEntry[str]) -> Kind:
    if entry.is_symlink():
        return "link"
    if entry.is_dir(follow_symlinks=False):
        return "folder"
    return "file" if entry.is_file(follow_symlinks=False) else "other"


def _entry_name(entry: FolderEntry) -> str:
    return entry.name


def _errno_name(error: OSError) -> str:
    return errno.errorcode.get(error.errno or 0, "unknown error")
