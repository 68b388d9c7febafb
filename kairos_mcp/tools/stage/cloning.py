"""Copies a file: both share what they hold until one is written, where the file system can; else byte by byte."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

CopyFile = Callable[[int, int, str], None]  # (the open file, an open folder, the new name in it); raises OSError
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_FICLONE = 0x40049409
_CHUNK_BYTES = 1 << 20


def choose_cloner(system: str = sys.platform) -> CopyFile | None:
    """Return what shares contents on this system; None where nothing can. Its file system may still refuse it."""
    if system.startswith("linux"):
        return clone_by_reflink
    return clone_by_clonefile if system == "darwin" else None


def clone_by_reflink(source: int, folder: int, name: str) -> None:
    """Make the copy by FICLONE, as btrfs and xfs can."""
    import fcntl

    target = os.open(name, _CREATE, 0o600, dir_fd=folder)
    try:
        fcntl.ioctl(target, _FICLONE, source)
    except OSError:
        os.unlink(name, dir_fd=folder)
        raise
    finally:
        os.close(target)


def clone_by_clonefile(source: int, folder: int, name: str) -> None:
    """Make the copy by fclonefileat, as APFS can. Nobody has seen this run on a Mac."""
    import ctypes

    fclonefileat = ctypes.CDLL(None, use_errno=True).fclonefileat
    fclonefileat.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint32]
    if fclonefileat(source, folder, os.fsencode(name), 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def copy_bytes(source: int, folder: int, name: str) -> None:
    """Make the copy byte by byte."""
    target = os.open(name, _CREATE, 0o600, dir_fd=folder)
    try:
        at = 0
        while chunk := os.pread(source, _CHUNK_BYTES, at):
            at += len(chunk)
            rest = memoryview(chunk)
            while rest:
                rest = rest[os.write(target, rest) :]
    finally:
        os.close(target)


def copy_by(cloner: CopyFile | None) -> CopyFile:
    """Return what copies by a cloner, and byte by byte what it can't, as a file of another file system."""
    if cloner is None:
        return copy_bytes

    def copy(source: int, folder: int, name: str) -> None:
        try:
            cloner(source, folder, name)
        except OSError:
            copy_bytes(source, folder, name)

    return copy


def can_clone(cloner: CopyFile | None, workspace: Path, folder: Path) -> bool:
    """Whether a file of the workspace, one at its top, can be cloned into a folder. Nothing stays there."""
    if cloner is None:
        return False
    with os.scandir(workspace) as scan:
        path = next((entry.path for entry in scan if entry.is_file(follow_symlinks=False)), None)
    if path is None:
        return False
    name = "cloned"
    with suppress(OSError):
        source = os.open(path, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0))
        try:
            target = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                cloner(source, target, name)
                os.unlink(name, dir_fd=target)
            finally:
                os.close(target)
        finally:
            os.close(source)
        return True
    return False
