"""Finds out whether a file is another name, a hard link, of one that may not be read unasked.

Its own name tells nothing of that, so the workspace is searched for files that may not be read unasked and have several
names. What is found is kept: a new link changes the time of its file (`st_ctime`), so an older file has no others.
"""

from __future__ import annotations

import os
import stat
import time
from collections import deque
from collections.abc import Callable

from kairos_mcp.core.env_files import is_env_file
from kairos_mcp.core.errors import PathDenied
from kairos_mcp.core.paths import DEPENDENCIES, shorten_path
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.tools.files.safe_open import FOLDER

MAX_SEARCHED = 20_000  # folders, some 0.2 s; in a larger workspace a file with several names is refused
KEPT_S = 60.0  # what a search found: a folder may be given another name, which no file's time tells
CLOCK_S = 2.0  # by which the clock of a file system may differ from ours
SKIPPED = DEPENDENCIES | {".git"}  # a file like .env in there is a package's own

IsProtected = Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class _Search:
    """One search of a workspace, and the protected files with several names, by device and inode; None: it holds too
    many folders."""

    is_hidden: IsProtected | None
    began_at: float  # on time.time()
    found: dict[tuple[int, int], str] | None


class HardLinks:
    """Tells of files of one workspace whether they are other names of protected ones. Threads may share it."""

    def __init__(self) -> None:
        self._last: _Search | None = None

    def check(self, root: int, plain: str, status: os.stat_result, is_hidden: IsProtected | None = None) -> None:
        """Raise PathDenied if a file with several names is one that may not be read unasked, or may be one.

        Files like `.env` are protected, and those that `is_hidden` says. By its own name a call is judged elsewhere.
        """
        if _is_protected(plain, is_hidden):
            return
        is_hidden = None if is_hidden is is_env_file else is_hidden
        last = self._last
        if last is None or last.is_hidden is not is_hidden or not _covers(last, status):
            began_at = time.time()
            last = self._last = _Search(is_hidden, began_at, _find_linked(root, is_hidden))
        if last.found is None:
            if DEPENDENCIES.isdisjoint(plain.split("/")):
                raise PathDenied(
                    f"{shorten_path(plain)} has other names (hard links), and over {MAX_SEARCHED:,} folders would have "
                    "to be searched to find out whether one of them is a file like .env.",
                    "A person copies the file, or names a smaller workspace.",
                )
            return
        if (other := last.found.get((status.st_dev, status.st_ino))) is not None:
            named = shorten_path(other) if is_env_file(other) else "a file that a rule of the gate protects"
            raise PathDenied(
                f"{shorten_path(plain)} is another name (a hard link) of {named}, which may not be read unasked.",
                "Name that file itself: then a person is asked.",
            )


def _covers(search: _Search, status: os.stat_result) -> bool:
    """Whether the file has got no name since the search."""
    return status.st_ctime < search.began_at - CLOCK_S and time.time() < search.began_at + KEPT_S


def _is_protected(path: str, is_hidden: IsProtected | None) -> bool:
    return is_env_file(path) or (is_hidden is not None and is_hidden(path))


def _find_linked(root: int, is_hidden: IsProtected | None) -> dict[tuple[int, int], str] | None:
    found: dict[tuple[int, int], str] = {}
    folders, searched = deque([""]), 0
    while folders:
        searched += 1
        if searched > MAX_SEARCHED:
            return None
        folder = folders.popleft()
        try:
            fd = os.open(folder or ".", FOLDER | os.O_NOFOLLOW, dir_fd=root)
        except OSError:
            continue  # it is gone, or may not be read
        try:
            with os.scandir(fd) as scan:
                for entry in scan:
                    path = folder + entry.name
                    if entry.is_dir(follow_symlinks=False):
                        if entry.name not in SKIPPED:
                            folders.append(f"{path}/")
                    elif _is_protected(path, is_hidden):
                        status = entry.stat(follow_symlinks=False)
                        if stat.S_ISREG(status.st_mode) and status.st_nlink > 1:
                            found[status.st_dev, status.st_ino] = path
        except OSError:
            continue
        finally:
            os.close(fd)
    return found
