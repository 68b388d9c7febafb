"""Opens a path below a folder's descriptor without ever leaving it: by the kernel (openat2), or component by component.

Both ways refuse symbolic links anywhere in the path and whatever is on another file system, with an OSError: ELOOP
for a link, EXDEV for a way out. Neither checks first and opens afterwards. The kernel can also open only what it finds
without waiting for a disk (`memory_opener`). Also here: renameat2, which exchanges two names in one opened folder, or
renames without replacing; it resolves no path. And what tells a folder from another that took its place.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

_COMMON = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOCTTY", 0)
FILE = _COMMON | getattr(os, "O_NONBLOCK", 0)  # the open of a FIFO without a writer must not block
FOLDER = _COMMON | getattr(os, "O_DIRECTORY", 0)
_NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)

_OPENAT2 = 437  # the same on every architecture of Linux but alpha
_RESOLVE = 0x01 | 0x02 | 0x04 | 0x08  # NO_XDEV, NO_MAGICLINKS, NO_SYMLINKS, BENEATH
_CACHED = 0x20  # RESOLVE_CACHED, from Linux 5.12 on: EAGAIN where a part of the path is not in memory
# The kernel's error for a missing call, and those that sandboxes give.
_NOT_THERE = (errno.ENOSYS, errno.EPERM, errno.EACCES)
# File systems that can tell what is in memory, and open a file without asking a process or another machine, which might
# never answer. (tmpfs can't tell; the folders below an overlay may be anything.)
LOCAL = {"ext3", "ext4", "xfs", "btrfs", "f2fs"}
_TRIES = 8  # EAGAIN: a rename elsewhere raced with the resolution

OpenBeneath = Callable[[int, str, int], int]  # (the folder's descriptor, plain path, FILE or FOLDER) -> descriptor

NO_REPLACE, EXCHANGE = 1, 2  # RENAME_NOREPLACE, RENAME_EXCHANGE
Rename = Callable[[int, str, str, int], None]  # (the folder's descriptor, from, to, one of these)


def kernel_opener(root: int) -> OpenBeneath | None:
    """Return an opener by `openat2`; None if there is none (before Linux 5.6) or a sandbox forbids it.

    Raises OSError if it fails otherwise: then our call of it is wrong, and falling back would hide that.
    """
    if not sys.platform.startswith("linux"):
        return None
    openat2 = _openat2(_RESOLVE, _TRIES)
    try:
        os.close(openat2(root, ".", FOLDER))
    except OSError as error:
        if error.errno in _NOT_THERE:
            return None
        raise
    return openat2


def memory_opener(root: int) -> OpenBeneath | None:
    """Return an opener by `openat2` that never waits for a disk: where part of a path is not in memory it raises
    BlockingIOError. None if the kernel can't say so, or the folder lies on a file system that may ask others."""
    if not sys.platform.startswith("linux") or not hasattr(os, "RWF_NOWAIT"):
        return None
    if file_system_type(root) not in LOCAL:
        return None
    openat2 = _openat2(_RESOLVE | _CACHED, 1)
    try:
        os.close(openat2(root, ".", FOLDER))
    except OSError:
        return None
    return openat2


def _openat2(resolve: int, tries: int) -> OpenBeneath:
    import ctypes

    syscall = ctypes.CDLL(None, use_errno=True).syscall
    syscall.restype = ctypes.c_long
    syscall.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t]
    how_type = ctypes.c_uint64 * 3  # struct open_how: flags, mode, resolve
    hows = {flags: how_type(flags, 0, resolve) for flags in (FILE, FOLDER)}
    size = ctypes.sizeof(how_type)

    def openat2(root: int, path: str, flags: int) -> int:
        encoded = os.fsencode(path)
        code = errno.EAGAIN
        for _ in range(tries):
            fd: int = syscall(_OPENAT2, root, encoded, hows[flags], size)
            if fd >= 0:
                return fd
            code = ctypes.get_errno()
            if code not in (errno.EAGAIN, errno.EINTR):
                break
        raise OSError(code, os.strerror(code))

    return openat2


def find_renameat2() -> Rename | None:
    """Return `renameat2`, None if the system has none. A file system may still refuse a flag, with EINVAL."""
    if not sys.platform.startswith("linux"):
        return None
    import ctypes

    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        return None
    renameat2.restype = ctypes.c_int
    renameat2.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint]

    def rename(folder: int, old: str, new: str, flag: int) -> None:
        if renameat2(folder, os.fsencode(old), folder, os.fsencode(new), flag) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))

    try:
        rename(-1, "", "", EXCHANGE)  # with empty names: if the call exists, it fails with ENOENT
    except FileNotFoundError:
        return rename
    except OSError:
        return None
    return None


def walk_opener(root: int) -> OpenBeneath:
    """Return an opener that opens one component at a time, relative to the one before, following no link."""
    root_system = _file_system(root)

    def walk(root: int, path: str, flags: int) -> int:
        at = os.dup(root)
        try:
            *folders, last = path.split("/")
            for name in folders:
                inner = _open_component(at, name, FOLDER, root_system)
                os.close(at)
                at = inner
            return _open_component(at, last, flags, root_system)
        finally:
            os.close(at)

    return walk


def _open_component(at: int, name: str, flags: int, root_system: tuple[int, str]) -> int:
    try:
        found = os.open(name, flags | _NOFOLLOW, dir_fd=at)
    except NotADirectoryError:
        # With O_DIRECTORY a link counts as no folder. Nothing more is opened: this only chooses the error.
        if stat.S_ISLNK(os.stat(name, dir_fd=at, follow_symlinks=False).st_mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP)) from None
        raise
    inside = False
    try:
        inside = _file_system(found) == root_system
    finally:
        if not inside:
            os.close(found)
    if not inside:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
    return found


def _file_system(fd: int) -> tuple[int, str]:
    """Return what NO_XDEV compares: the device and, on Linux, the mount, since a bind mount has its source's device.

    Raises OSError if /proc does not tell the mount: nothing is opened then.
    """
    device = os.fstat(fd).st_dev
    if not sys.platform.startswith("linux"):
        return device, ""
    try:
        with open(f"/proc/self/fdinfo/{fd}", encoding="ascii") as info:
            return device, next(line for line in info if line.startswith("mnt_id"))
    except (OSError, StopIteration):
        raise OSError(errno.ENOTSUP, "neither openat2 nor /proc/self/fdinfo is there") from None


def is_local(folder: Path) -> bool:
    """Whether the folder, or the nearest one above it that is there, lies on a file system in LOCAL."""
    for place in (folder, *folder.parents):
        try:
            fd = os.open(place, FOLDER)
        except FileNotFoundError:
            continue
        except OSError:
            return False
        try:
            return file_system_type(fd) in LOCAL
        finally:
            os.close(fd)
    return False


def file_system_type(fd: int) -> str | None:
    """Return what the mount of a descriptor is, as `ext4`; None where /proc does not tell."""
    try:
        mount = _file_system(fd)[1].split()[1]
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as mounts:
            named = next(line for line in mounts if line.split()[0] == mount)
    except (OSError, StopIteration):
        return None
    return named.partition(" - ")[2].split()[0]


_AT_FDCWD, _STATX_BTIME, _BTIME_AT = -100, 0x800, 80  # Linux: the offset of stx_btime in its struct of 256 bytes


def folder_identity(path: str) -> str | None:
    """Return what tells this folder from another that took its place: device, inode, and when it was made, if that is
    known. A file system gives the inode of a removed folder to the next one. None if there is none of this path."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return f"{found.st_dev}:{found.st_ino}:{_birth_time(path, found)}"


def _birth_time(path: str, found: os.stat_result) -> str:
    if not sys.platform.startswith("linux"):
        return str(getattr(found, "st_birthtime", ""))
    import ctypes

    statx = getattr(ctypes.CDLL(None), "statx", None)  # os.stat tells no time of birth on Linux
    answer = ctypes.create_string_buffer(256)
    if statx is None or statx(_AT_FDCWD, os.fsencode(path), 0, _STATX_BTIME, answer) != 0:
        return ""
    known = int.from_bytes(answer.raw[:4], sys.byteorder) & _STATX_BTIME
    return answer.raw[_BTIME_AT : _BTIME_AT + 12].hex() if known else ""


def open_without_links(root: int, parts: Iterable[str]) -> int:
    """Open a folder below `root` name by name, so that no link is followed and any length of path is taken. Raises
    OSError."""
    fd = os.open(".", FOLDER | _NOFOLLOW, dir_fd=root)
    for part in parts:
        try:
            inner_fd = os.open(part, FOLDER | _NOFOLLOW, dir_fd=fd)
        finally:
            os.close(fd)
        fd = inner_fd
    return fd
