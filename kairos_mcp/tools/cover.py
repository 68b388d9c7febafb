"""Keeps a program from making a `.git` where there is none: an empty folder holds its place while it runs.

Who writes there decides what git does for the next one who works in that folder: hooks, pagers, monitors.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from threading import Lock

NAMES = (".git", ".kairos")


class Cover:
    """Of one workspace, for all programs that this server runs in it. The folder stays while the last of them runs;
    one that a killed server left goes with the next. Another server's programs are not counted."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._running = 0

    @contextlib.contextmanager
    def over(self, root: int) -> Iterator[None]:
        """`root`: the workspace's descriptor. A sandbox built inside the block finds them there to seal."""
        with self._lock:
            self._running += 1
            for name in NAMES:
                with contextlib.suppress(OSError):  # it is there; or nothing can be made here, by anybody like us
                    os.mkdir(name, dir_fd=root)
        try:
            yield
        finally:
            with self._lock:
                self._running -= 1
                for name in NAMES if self._running == 0 else ():
                    with contextlib.suppress(OSError):  # what is not empty is somebody's, and stays
                        os.rmdir(name, dir_fd=root)
