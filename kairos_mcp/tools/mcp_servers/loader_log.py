"""Finds out why npx can't load a server's program: it writes that into a log, and for over a minute nothing to stderr.

The log stands in the server's own cache, so the server may have written it: only an address and a code are taken.
"""

from __future__ import annotations

import os
import re
import stat
from contextlib import suppress
from pathlib import Path

NPM_CACHE = ".npm"
MAX_LOG_BYTES = 65_536  # of its end
_FAILED = re.compile(rb"http fetch GET (https?://[\w.:-]{1,200})\S* attempt \d+ failed with ([A-Z0-9_]{2,60})")


def find_failed_load(npm_cache: Path, since_s: float) -> str | None:
    """Return what could not be fetched last, and npm's code for why, by a log written since; None: nothing is known."""
    with suppress(OSError):
        logs = os.open(npm_cache / "_logs", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            newest = max(name for name in os.listdir(logs) if name.endswith("-debug-0.log"))
            found = _FAILED.findall(_read_end(newest, logs, since_s))
        except ValueError:  # no log
            return None
        finally:
            os.close(logs)
        if found:
            address, code = found[-1]
            return f"npm can't load it from {address.decode()}: {code.decode()}"
    return None


def _read_end(name: str, folder: int, since_s: float) -> bytes:
    log = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    try:
        found = os.fstat(log)
        if not stat.S_ISREG(found.st_mode) or found.st_mtime < since_s:
            return b""
        return os.pread(log, MAX_LOG_BYTES, max(0, found.st_size - MAX_LOG_BYTES))
    finally:
        os.close(log)
