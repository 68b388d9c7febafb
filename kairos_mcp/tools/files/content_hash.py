"""The hash of a file's content by which a model, a caller and our own rows name it.

It is keyed with the store's key, and holds the path: from a plain hash a short secret in a file could be guessed, and
from one of the content alone by giving another file the content that is guessed.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from hashlib import sha256

HashContent = Callable[[str, bytes | None], str | None]
"""Returns the hash of what the file of a plain path holds, in hex; None if there is no file."""


def plain_hash(_path: str, content: bytes | None) -> str | None:
    """Return the SHA-256 of a content, where there is no store and so no key: outside a server."""
    return None if content is None else sha256(content).hexdigest()


def keyed_hash(read_key: Callable[[], bytes]) -> HashContent:
    """Return the hash of files that the key makes which `read_key` returns at each use."""

    def hash_content(path: str, content: bytes | None) -> str | None:
        key = read_key()
        if not key:
            raise RuntimeError("the store's key has to be read before a run moves")
        if content is None:
            return None
        return hmac.digest(key, path.encode("utf-8", "surrogatepass") + b"\0" + content, "sha256").hex()

    return hash_content
