"""The writing half of the opener: a name in an opened folder is changed whole or not at all, nothing is lost unseen.

A file is written beside its place, synced, and exchanged with what stands there; only then, when no other program
reaches it by its name any more, is what was displaced compared with what was meant to be replaced. If it differs, it
goes back. Nothing is ever opened for writing where it stands, so that no link, hard or symbolic, is written through.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from kairos_mcp.core.errors import KairosError, NoSpace, PathDenied, StaleFile
from kairos_mcp.core.paths import shorten_path
from kairos_mcp.tools.files.safe_open import EXCHANGE, FILE, FOLDER, ONTO_NOTHING
from kairos_mcp.tools.files.staging import HALF, SWAP, FileLease, drop, fresh_name, leftovers, written
from kairos_mcp.tools.files.workspace import Workspace, explained

PUT_BACKS = 64  # each of them lost to yet another writer
ANEW = "Read it again, and change what is there now."
_PIN = getattr(os, "O_PATH", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_NO_SUCH_RENAME = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)


@dataclass(frozen=True, slots=True)
class FileSlot:
    """A name in an opened folder, and what may be done with it. Each method raises leaves of KairosError.

    `key` marks what is written beside it, so that its leftovers are found after a crash.
    """

    opener: Workspace
    folder: int
    path: str
    name: str
    key: str

    def replace(self, before: bytes, after: bytes) -> bool:
        """Put `after` where `before` stands; False where it could only be compared and renamed, not exchanged.

        Raises StaleFile where anything else stands there, also where it has come there since; PathDenied where the
        folder was moved since. Then the place holds what the other one put there.
        """
        try:
            half = self._beside(before, after)
            swap = half.removesuffix(HALF) + SWAP
            try:
                os.rename(half, swap, src_dir_fd=self.folder, dst_dir_fd=self.folder)
                exchanged = self._exchanged(swap, before)
                if not exchanged:
                    with self.opener.turn:
                        self._compared(swap, before)
            finally:
                drop(self.folder, half)
            os.fsync(self.folder)
        except FileNotFoundError:
            raise self._stale("is gone") from None
        except OSError as error:
            raise unwritable(error, self.path) from None
        return exchanged

    def create(self, content: bytes) -> None:
        """Put a file where none stands. Raises StaleFile where one does by now."""
        try:
            half = written(self.folder, self.key, content, None)
            try:
                self._onto_nothing(half, self.name)
            finally:
                drop(self.folder, half)
            if not self._still_here():
                self.take_away(content)
                raise self._moved()
            os.fsync(self.folder)
        except FileExistsError:
            raise self._stale("has come to be there") from None
        except OSError as error:
            raise unwritable(error, self.path) from None

    def take_away(self, content: bytes) -> None:
        """Remove a file that was created, unless it holds anything else by now (StaleFile)."""
        aside = fresh_name(self.key, SWAP)
        try:
            self._onto_nothing(self.name, aside)
            if not self._holds(aside, content):
                self._onto_nothing(aside, self.name)
                raise self._stale("is not what was written")
            os.unlink(aside, dir_fd=self.folder)
            os.fsync(self.folder)
        except OSError as error:
            raise unwritable(error, self.path) from None

    def settle(self, before: bytes | None, after: bytes) -> bool:
        """Clear away what a crash left beside this place; False where only a person can say which file is meant.

        What somebody else wrote, and the crash left displaced, goes back.
        """
        try:
            for name in leftovers(self.folder, self.key):
                ours = name.endswith(HALF) or self._holds(name, after)
                if ours or (before is not None and self._holds(name, before)):
                    drop(self.folder, name)
                elif self._holds(self.name, after) and self.opener.rename is not None:
                    with self._pinned(self.name) as placed:
                        self._put_back(name, placed)
                else:
                    return False
        except OSError as error:
            raise unwritable(error, self.path) from None
        return True

    def _beside(self, before: bytes, after: bytes) -> str:
        standing = self.opener.opened(self.name, FILE, self.folder)
        try:
            if not _is(standing, before):
                raise self._stale("is not what it was")
            return written(self.folder, self.key, after, standing)
        finally:
            os.close(standing)

    def _exchanged(self, swap: str, before: bytes) -> bool:
        """Exchange `swap` with what stands here and drop that if it is `before`; False where nothing is exchanged."""
        if self.opener.rename is None:
            return False
        with self._pinned(swap) as ours:
            try:
                self.opener.rename(self.folder, swap, self.name, EXCHANGE)
            except OSError as error:
                if error.errno in _NO_SUCH_RENAME:
                    return False
                drop(self.folder, swap)
                raise
            self._drop_displaced(swap, before, ours)
        return True

    def _drop_displaced(self, swap: str, before: bytes, ours: int) -> None:
        try:
            displaced = self.opener.opened(swap, FILE, self.folder)
        except OSError:  # a link, or something that may not be read: not what was meant
            self._put_back(swap, ours)
            raise self._stale("was changed at the same moment") from None
        try:
            with FileLease(displaced) as lease:
                try:
                    problem = self._problem(displaced, before, lease)
                    if problem is None:
                        return os.unlink(swap, dir_fd=self.folder)
                except OSError as error:
                    problem = unwritable(error, self.path)
                self._put_back(swap, ours)  # while the lease holds: who waits to write finds it in its place
                raise problem
        finally:
            os.close(displaced)

    def _compared(self, swap: str, before: bytes) -> None:
        """Without an exchange: look once more, then rename. What another program writes in between would be lost."""
        try:
            standing = self.opener.opened(self.name, FILE, self.folder)
            try:
                with FileLease(standing) as lease:
                    problem = self._problem(standing, before, lease)
                    if problem is not None:
                        raise problem
                    named = os.stat(self.name, dir_fd=self.folder, follow_symlinks=False)
                    if not os.path.samestat(named, os.fstat(standing)):
                        raise self._stale("was changed at the same moment")
                    os.rename(swap, self.name, src_dir_fd=self.folder, dst_dir_fd=self.folder)
            finally:
                os.close(standing)
        finally:
            drop(self.folder, swap)

    def _problem(self, fd: int, before: bytes, lease: FileLease) -> KairosError | None:
        """Why what is open here may not be dropped. The lease is asked last: it knows who has come meanwhile."""
        if lease.refused:
            return self._stale("is open for writing in another program", "Close it there, then read it again.")
        if not _is(fd, before):
            return self._stale("was changed at the same moment")
        if not self._still_here():
            return self._moved()
        return self._stale("was opened for writing at the same moment") if lease.wanted else None

    def _put_back(self, swap: str, ours: int) -> None:
        """Exchange until what comes out is what went in last: then nobody has put anything there in between.

        What is pinned open keeps its inode's number, which would else soon be given to another file.
        """
        rename, pins = self.opener.rename, [os.dup(ours)]
        assert rename is not None, "only what was exchanged goes back"
        try:
            for _ in range(PUT_BACKS):
                pins.append(os.open(swap, _PIN, dir_fd=self.folder))
                try:
                    rename(self.folder, swap, self.name, EXCHANGE)
                except FileNotFoundError:
                    with suppress(FileExistsError):
                        return rename(self.folder, swap, self.name, ONTO_NOTHING)
                    continue
                out = os.stat(swap, dir_fd=self.folder, follow_symlinks=False)
                if os.path.samestat(out, os.fstat(pins[-2])):
                    return os.unlink(swap, dir_fd=self.folder)
        except OSError as error:
            word = errno.errorcode.get(error.errno or 0, "unknown error")
            raise self._stale(f"was changed at the same moment and can't be put back ({word}): see {swap}") from None
        finally:
            for pin in pins:
                os.close(pin)
        raise self._stale(f"is changed all the time; what stood there last is in {swap}")

    def _onto_nothing(self, old: str, new: str) -> None:
        """Rename without ever replacing: FileExistsError where something is there."""
        if self.opener.rename is not None:
            try:
                return self.opener.rename(self.folder, old, new, ONTO_NOTHING)
            except OSError as error:
                if error.errno not in _NO_SUCH_RENAME:
                    raise
        os.link(old, new, src_dir_fd=self.folder, dst_dir_fd=self.folder, follow_symlinks=False)
        return os.unlink(old, dir_fd=self.folder)

    def _holds(self, name: str, content: bytes) -> bool:
        try:
            fd = self.opener.opened(name, FILE, self.folder)
        except OSError:
            return False
        try:
            return _is(fd, content)
        finally:
            os.close(fd)

    @contextmanager
    def _pinned(self, name: str) -> Iterator[int]:
        fd = os.open(name, _PIN, dir_fd=self.folder)
        try:
            yield fd
        finally:
            os.close(fd)

    def _still_here(self) -> bool:
        """Whether the folder that was opened is still the one that the path names."""
        try:
            fd = self.opener.opened(self.path.rpartition("/")[0] or ".", FOLDER)
        except OSError:
            return False
        try:
            return os.path.samestat(os.fstat(fd), os.fstat(self.folder))
        finally:
            os.close(fd)

    def _stale(self, what: str, hint: str = ANEW) -> StaleFile:
        return StaleFile(f"{shorten_path(self.path)} {what}; nothing of it was replaced.", hint)

    def _moved(self) -> PathDenied:
        return PathDenied(f"The folder of {shorten_path(self.path)} was moved at the same moment.", "Try again.")


@contextmanager
def place(opener: Workspace, path: str, key: str, *, making: bool = False) -> Iterator[FileSlot]:
    """The place of a file, for a plain path. `making`: missing folders are made, and unmade again if the block fails.

    Raises as the opener does.
    """
    folder, _, name = path.rpartition("/")
    made: list[str] = []
    try:
        try:
            fd = opener.opened(folder or ".", FOLDER)
        except FileNotFoundError:
            if not making:
                raise
            fd = make(opener, folder, made)
    except OSError as error:
        unmake(opener, made)
        raise unwritable(error, path) if made else explained(error, path) from None
    try:
        yield FileSlot(opener, fd, path, name, key)
    except BaseException:
        unmake(opener, made)
        raise
    finally:
        os.close(fd)


def unwritable(error: OSError, path: str) -> KairosError:
    """The leaf that fits what writing failed with."""
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT | errno.EFBIG:
            return NoSpace(
                f"There is no room to write {shorten_path(path)}.", "Nothing was changed; make room, then try again."
            )
        case errno.EACCES | errno.EPERM:
            return PathDenied(f"{shorten_path(path)} may not be written by this server.", "Its permissions forbid it.")
        case errno.EROFS:
            return PathDenied(f"{shorten_path(path)} lies on a file system that is read only.", "It can't be changed.")
        case _:
            return explained(error, path)


def _is(fd: int, content: bytes) -> bool:
    """Whether an open file is a regular one that holds just this."""
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode) or status.st_size != len(content):
        return False
    return os.pread(fd, len(content) + 1, 0) == content


def make(opener: Workspace, folder: str, made: list[str]) -> int:
    """A descriptor of the folder, which is the caller's to close; `made` gets the paths of what was not there.

    Raises OSError as beneath.py does.
    """
    at, done = opener.opened(".", FOLDER), ""
    try:
        for name in folder.split("/"):
            done = f"{done}/{name}".removeprefix("/")
            try:
                inner = opener.opened(name, FOLDER, at)
            except FileNotFoundError:
                with suppress(FileExistsError):  # another was quicker
                    os.mkdir(name, dir_fd=at)
                    made.append(done)
                    os.fsync(at)
                inner = opener.opened(name, FOLDER, at)
            os.close(at)
            at = inner
    except BaseException:
        os.close(at)
        raise
    return at


def unmake(opener: Workspace, made: list[str]) -> None:
    """Remove folders that were made for nothing; one that holds anything by now stays."""
    for path in reversed(made):
        above, _, name = path.rpartition("/")
        with suppress(OSError):
            fd = opener.opened(above or ".", FOLDER)
            try:
                os.rmdir(name, dir_fd=fd)
            finally:
                os.close(fd)
