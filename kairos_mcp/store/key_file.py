"""The key of a state folder with which is sealed what clients carry between two calls."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

KEY_FILE = "request-state.key"
KEY_BYTES = 32


def state_key(home: Path) -> bytes:
    """Read the key of this state folder, or make it: of several processes that do, the first one wins. Raises OSError.

    A damaged key is replaced: what was sealed with it is refused, with the text that says how to go on.
    """
    path = home / KEY_FILE
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    exists = path.exists()
    if exists and len(key := path.read_bytes()) == KEY_BYTES:
        return key
    fresh = home / f".{KEY_FILE}-{secrets.token_hex(8)}"
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.write(descriptor, os.urandom(KEY_BYTES))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    try:
        (os.replace if exists else os.link)(fresh, path)
    except FileExistsError:
        pass  # another process was first
    finally:
        fresh.unlink(missing_ok=True)
    return path.read_bytes()
