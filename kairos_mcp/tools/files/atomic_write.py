"""Writes files atomically: a file is replaced as a whole or not at all.

Where the file system can exchange two files, no other program's change is lost.
The new content is written to a staging file in the same folder, synced, and exchanged with the target by renameat2.
Only then, when no other program can reach the displaced file by its name, is it compared with the expected content; if
it differs, the exchange is undone. No target is ever opened for writing, so nothing is written through a link.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from kairos_mcp.core.errors import KairosError, NoSpace, PathDenied, StaleFile
from kairos_mcp.core.paths import shorten_path
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.tools.files.safe_open import EXCHANGE, FILE, FOLDER, NO_REPLACE
from kairos_mcp.tools.files.staging import HALF, SWAP, FileLease, fresh_name, leftovers, unlink_quietly, write_staged
from kairos_mcp.tools.files.workspace import Workspace, open_error

MAX_PUT_BACKS = 64  # tries to put a displaced file back; each fails only if yet another program has written meanwhile
READ_AGAIN = "Read it again, and change what is there now."
_PIN = getattr(os, "O_PATH", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_NO_SUCH_RENAME = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)


@dataclass(frozen=True, slots=True)
class FileSlot:
    """A file name in an opened folder, and the operations on it. Each method raises subclasses of KairosError.

    `key` is part of the names of its staging files, so that leftovers are found after a crash.
    """

    workspace: Workspace
    folder: int
    path: str
    name: str
    key: str

    def replace(self, before: bytes, after: bytes) -> bool:
        """Replace the content `before` by `after`. Returns False where it could only be renamed over.

        Raises StaleFile if the file holds anything else, also if it was changed meanwhile; PathDenied if the folder was
        moved meanwhile. In both cases the file keeps what the other program wrote; if that can't be put back, the
        StaleFile names the file that holds it.
        """
        try:
            half = self._stage(before, after)
            swap = half.removesuffix(HALF) + SWAP
            try:
                os.rename(half, swap, src_dir_fd=self.folder, dst_dir_fd=self.folder)
                exchanged = self._exchange(swap, before)
                if not exchanged:
                    with self.workspace.rename_lock:
                        self._compare_and_rename(swap, before)
            finally:
                unlink_quietly(self.folder, half)
            os.fsync(self.folder)
        except FileNotFoundError:
            raise self._stale_error("is gone") from None
        except OSError as error:
            raise write_error(error, self.path) from None
        return exchanged

    def create(self, content: bytes) -> None:
        """Create the file. Raises StaleFile if there is one by now."""
        try:
            half = write_staged(self.folder, self.key, content, None)
            try:
                self._rename_to_absent(half, self.name)
            finally:
                unlink_quietly(self.folder, half)
            if not self._is_in_place():
                self.remove(content)
                raise self._moved_error()
            os.fsync(self.folder)
        except FileExistsError:
            raise self._stale_error("was created meanwhile") from None
        except OSError as error:
            raise write_error(error, self.path) from None

    def remove(self, content: bytes) -> None:
        """Remove a file that was created, unless it holds anything else by now (StaleFile)."""
        aside = fresh_name(self.key, SWAP)
        try:
            self._rename_to_absent(self.name, aside)
            if not self._name_holds(aside, content):
                self._rename_to_absent(aside, self.name)
                raise self._stale_error("is not what was written")
            os.unlink(aside, dir_fd=self.folder)
            os.fsync(self.folder)
        except OSError as error:
            raise write_error(error, self.path) from None

    def clear_leftovers(self, before: bytes | None, after: bytes) -> bool:
        """Remove the staging files that a crash left; returns False where only a person can tell which file is meant.

        Content that another program wrote, and that the crash left displaced, is put back.
        """
        try:
            for name in leftovers(self.folder, self.key):
                ours = name.endswith(HALF) or self._name_holds(name, after)
                if ours or (before is not None and self._name_holds(name, before)):
                    unlink_quietly(self.folder, name)
                elif self._name_holds(self.name, after) and self.workspace.rename is not None:
                    with self._pin(self.name) as placed:
                        self._put_back(name, placed)
                else:
                    return False
        except OSError as error:
            raise write_error(error, self.path) from None
        return True

    def _stage(self, before: bytes, after: bytes) -> str:
        current_fd = self.workspace.open_fd(self.name, FILE, self.folder)
        try:
            if not _has_content(current_fd, before):
                raise self._stale_error("is not what it was")
            return write_staged(self.folder, self.key, after, current_fd)
        finally:
            os.close(current_fd)

    def _exchange(self, swap: str, before: bytes) -> bool:
        """Exchange `swap` with the file here, then remove what the file held if that is `before`, else put it back.

        Returns False, and changes nothing, where the file system can't exchange.
        """
        if self.workspace.rename is None:
            return False
        with self._pin(swap) as staged_fd:
            try:
                self.workspace.rename(self.folder, swap, self.name, EXCHANGE)
            except OSError as error:
                if error.errno in _NO_SUCH_RENAME:
                    return False
                unlink_quietly(self.folder, swap)
                raise
            self._drop_displaced(swap, before, staged_fd)
        return True

    def _drop_displaced(self, swap: str, before: bytes, staged_fd: int) -> None:
        try:
            displaced = self.workspace.open_fd(swap, FILE, self.folder)
        except OSError:  # a link, or something that may not be read: not the expected file
            self._put_back(swap, staged_fd)
            raise self._stale_error("was changed at the same moment") from None
        try:
            with FileLease(displaced) as lease:
                try:
                    problem = self._find_problem(displaced, before, lease)
                    if problem is None:
                        return os.unlink(swap, dir_fd=self.folder)
                except OSError as error:
                    problem = write_error(error, self.path)
                # While the lease holds, so that a waiting writer finds the file in its place.
                self._put_back(swap, staged_fd)
                raise problem
        finally:
            os.close(displaced)

    def _compare_and_rename(self, swap: str, before: bytes) -> None:
        """Compare once more, then rename: for systems without an exchange. What is written in between is lost."""
        try:
            current_fd = self.workspace.open_fd(self.name, FILE, self.folder)
            try:
                with FileLease(current_fd) as lease:
                    problem = self._find_problem(current_fd, before, lease)
                    if problem is not None:
                        raise problem
                    status = os.stat(self.name, dir_fd=self.folder, follow_symlinks=False)
                    if not os.path.samestat(status, os.fstat(current_fd)):
                        raise self._stale_error("was changed at the same moment")
                    os.rename(swap, self.name, src_dir_fd=self.folder, dst_dir_fd=self.folder)
            finally:
                os.close(current_fd)
        finally:
            unlink_quietly(self.folder, swap)

    def _find_problem(self, fd: int, before: bytes, lease: FileLease) -> KairosError | None:
        """Return why the open file must not be dropped, if so. The lease is checked last: it covers all before it."""
        if lease.was_refused:
            return self._stale_error("is open for writing in another program", "Close it there, then read it again.")
        if not _has_content(fd, before):
            return self._stale_error("was changed at the same moment")
        if not self._is_in_place():
            return self._moved_error()
        return self._stale_error("was opened for writing at the same moment") if lease.is_contested else None

    def _put_back(self, swap: str, staged_fd: int) -> None:
        """Put the displaced file back: exchange until what comes out is what went in last, so nobody wrote in between.

        The files are held open so that their inode numbers are not reused by other files meanwhile.
        """
        rename, pins = self.workspace.rename, [os.dup(staged_fd)]
        assert rename is not None, "only what was exchanged goes back"
        try:
            for _ in range(MAX_PUT_BACKS):
                pins.append(os.open(swap, _PIN, dir_fd=self.folder))
                try:
                    rename(self.folder, swap, self.name, EXCHANGE)
                except FileNotFoundError:
                    with suppress(FileExistsError):
                        return rename(self.folder, swap, self.name, NO_REPLACE)
                    continue
                displaced = os.stat(swap, dir_fd=self.folder, follow_symlinks=False)
                if os.path.samestat(displaced, os.fstat(pins[-2])):
                    return os.unlink(swap, dir_fd=self.folder)
        except OSError as error:
            error_name = errno.errorcode.get(error.errno or 0, "unknown error")
            raise self._displaced_error(swap, f"could not be put back ({error_name})") from None
        finally:
            for pin in pins:
                os.close(pin)
        raise self._displaced_error(swap, "could not be put back, since the file was changed again and again")

    def _rename_to_absent(self, old: str, new: str) -> None:
        """Rename without replacing anything. Raises FileExistsError if the new name exists."""
        if self.workspace.rename is not None:
            try:
                return self.workspace.rename(self.folder, old, new, NO_REPLACE)
            except OSError as error:
                if error.errno not in _NO_SUCH_RENAME:
                    raise
        os.link(old, new, src_dir_fd=self.folder, dst_dir_fd=self.folder, follow_symlinks=False)
        return os.unlink(old, dir_fd=self.folder)

    def _name_holds(self, name: str, content: bytes) -> bool:
        try:
            fd = self.workspace.open_fd(name, FILE, self.folder)
        except OSError:
            return False
        try:
            return _has_content(fd, content)
        finally:
            os.close(fd)

    @contextmanager
    def _pin(self, name: str) -> Iterator[int]:
        fd = os.open(name, _PIN, dir_fd=self.folder)
        try:
            yield fd
        finally:
            os.close(fd)

    def _is_in_place(self) -> bool:
        """Return whether the opened folder is still the one that the path names."""
        try:
            fd = self.workspace.open_fd(self.path.rpartition("/")[0] or ".", FOLDER)
        except OSError:
            return False
        try:
            return os.path.samestat(os.fstat(fd), os.fstat(self.folder))
        finally:
            os.close(fd)

    def _stale_error(self, what: str, hint: str = READ_AGAIN) -> StaleFile:
        return StaleFile(f"{shorten_path(self.path)} {what}; nothing of it was replaced.", hint)

    def _displaced_error(self, swap: str, why: str) -> StaleFile:
        """Return the error of a file that holds another text than before, although nothing was to be replaced."""
        path, folder = shorten_path(self.path), self.path.rpartition("/")[0]
        kept = shorten_path(f"{folder}/{swap}" if folder else swap)
        return StaleFile(
            f"{path} was changed by another program at the same moment, and what that program wrote {why}: it is in "
            f"{kept} now, unless somebody removed it, and {path} may hold the text of this call.",
            "Read both files; a person may have to decide which text stays.",
        )

    def _moved_error(self) -> PathDenied:
        return PathDenied(f"The folder of {shorten_path(self.path)} was moved at the same moment.", "Try again.")


@contextmanager
def open_slot(workspace: Workspace, path: str, key: str, *, make_missing: bool = False) -> Iterator[FileSlot]:
    """Open the folder of a plain path, and yield the slot of the file in it.

    `make_missing`: missing folders are made, and removed again if the block fails. Raises like `Workspace.open_file`.
    """
    folder, _, name = path.rpartition("/")
    made: list[str] = []
    try:
        try:
            fd = workspace.open_fd(folder or ".", FOLDER)
        except FileNotFoundError:
            if not make_missing:
                raise
            fd = make_folders(workspace, folder, made)
    except OSError as error:
        remove_folders(workspace, made)
        raise write_error(error, path) if made else open_error(error, path) from None
    try:
        yield FileSlot(workspace, fd, path, name, key)
    except BaseException:
        remove_folders(workspace, made)
        raise
    finally:
        os.close(fd)


def write_error(error: OSError, path: str) -> KairosError:
    """Return our error for an OSError of writing."""
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT | errno.EFBIG:
            return NoSpace(
                f"There is no room to write {shorten_path(path)}.", "Nothing was changed; make room, then try again."
            )
        case errno.EACCES | errno.EPERM:
            return PathDenied(f"{shorten_path(path)} may not be written by this server.", "Its permissions forbid it.")
        case errno.EROFS:
            return PathDenied(f"{shorten_path(path)} is on a file system that is read-only.", "It can't be changed.")
        case _:
            return open_error(error, path)


def _has_content(fd: int, content: bytes) -> bool:
    """Return whether an open file is a regular file with exactly this content."""
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode) or status.st_size != len(content):
        return False
    return os.pread(fd, len(content) + 1, 0) == content


def make_folders(workspace: Workspace, folder: str, made: list[str]) -> int:
    """Open a folder, making what is missing; return its descriptor, which the caller closes.

    The paths of new folders are appended to `made`. Raises OSError as safe_open.py does.
    """
    fd, path = workspace.open_fd(".", FOLDER), ""
    try:
        for name in folder.split("/"):
            path = f"{path}/{name}".removeprefix("/")
            try:
                inner_fd = workspace.open_fd(name, FOLDER, fd)
            except FileNotFoundError:
                with suppress(FileExistsError):  # another program was quicker
                    os.mkdir(name, dir_fd=fd)
                    made.append(path)
                    os.fsync(fd)
                inner_fd = workspace.open_fd(name, FOLDER, fd)
            os.close(fd)
            fd = inner_fd
    except BaseException:
        os.close(fd)
        raise
    return fd


def remove_folders(workspace: Workspace, made: list[str]) -> None:
    """Remove folders that were made in vain; one that is not empty any more stays."""
    for path in reversed(made):
        parent, _, name = path.rpartition("/")
        with suppress(OSError):
            fd = workspace.open_fd(parent or ".", FOLDER)
            try:
                os.rmdir(name, dir_fd=fd)
            finally:
                os.close(fd)
