"""Whether another program has a file open for writing: what the kernel tells whoever asks for a lease on it."""

from __future__ import annotations

import errno
import signal
import sys
from types import TracebackType
from typing import Self


class FileLease:
    """Held over an open descriptor while its block runs. Who opens the file for writing meanwhile waits for its end.

    `refused`: someone had it open for writing when it began; `wanted`: someone has come since. Both stay False where
    nobody can tell: beyond Linux, on file systems without leases, and for files of other users.
    """

    __slots__ = ("_fd", "_held", "refused")

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._held = False
        self.refused = False

    @property
    def wanted(self) -> bool:
        if sys.platform != "linux" or not self._held:
            return False
        import fcntl

        return fcntl.fcntl(self._fd, fcntl.F_GETLEASE) != fcntl.F_RDLCK

    def __enter__(self) -> Self:
        if sys.platform == "linux":
            import fcntl

            try:
                # The kernel tells a holder that its lease is wanted by SIGIO, which would end this program; SIGURG
                # is one that nobody minds.
                fcntl.fcntl(self._fd, fcntl.F_SETSIG, signal.SIGURG)
                fcntl.fcntl(self._fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
                self._held = True
            except OSError as error:
                self.refused = error.errno == errno.EAGAIN
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if sys.platform == "linux" and self._held:
            import fcntl

            fcntl.fcntl(self._fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
