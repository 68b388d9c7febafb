"""A new state file is a copy of one with all tables, in this process: to make them takes as long as a short run.

The copy appears whole, under the name of the file. Tests about files that are new have them made (core/test_store.py),
and so have those about the tables of other versions.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path

from kairos_mcp.store import file_store, schema
from kairos_mcp.store.connection import connect

_MIGRATIONS = schema.MIGRATIONS
_make_folder = file_store.make_folder


def copy_new_stores() -> None:
    """From here on each new state file of this process, and of its forks, is such a copy."""
    vars(file_store)["make_folder"] = _make_folder_with_store


def _make_folder_with_store(home: Path) -> None:
    _make_folder(home)
    file = home / file_store.FILE
    if schema.MIGRATIONS is _MIGRATIONS and not file.exists():
        copy = home / f".copied-{os.getpid()}"
        with suppress(OSError):  # the store says what is wrong with the folder, or another process was quicker
            fd = os.open(copy, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
            try:
                with open(fd, "wb") as opened:
                    opened.write(_read_new_store())
                os.link(copy, file)
            finally:
                copy.unlink()


@cache
def _read_new_store() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / file_store.FILE
        session = connect(file, "process")
        schema.migrate(session)
        session.close()
        return file.read_bytes()
