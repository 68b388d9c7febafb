"""Folders made beneath the workspace: each missing one inside the one before it, which is held open meanwhile."""

from __future__ import annotations

import os
from contextlib import suppress

from kairos_mcp.tools.files.beneath import FOLDER
from kairos_mcp.tools.files.workspace import Workspace


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
