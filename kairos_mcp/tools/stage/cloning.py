"""Copies a file: both share what they hold until one is written, where the file system can; else byte by byte."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

CopyFile = Callable[[int, int, str], None]  # (the open file, an open folder, the new name in it); raises OSError
_CREATE = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
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
    """Whether files of a workspace can be cloned into a folder: on the same file system, if that can. Nothing stays."""
    if cloner is None or workspace.stat().st_dev != folder.stat().st_dev:
        return False
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    name = "to-clone"
    try:
        source = os.open(name, _CREATE, 0o600, dir_fd=descriptor)
        try:
            os.write(source, b"text")
            cloner(source, descriptor, f"{name}-2")
        finally:
            os.close(source)
    except OSError:
        return False
    else:
        return True
    finally:
        for each in (name, f"{name}-2"):
            with suppress(OSError):
                os.unlink(each, dir_fd=descriptor)
        os.close(descriptor)
