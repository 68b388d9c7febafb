"""The files that a browser loads, sent compressed: those of the folder `assets`, as it is at the first request."""

from __future__ import annotations

import gzip
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).with_name("assets")
SHELL = "index.html"
NOT_SERVED = ("app.js",)  # of the MCP App alone, which is one document
_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}


@cache
def compressed_files() -> dict[str, tuple[bytes, str]]:
    """Return each file's content, compressed by gzip, and its media type, by its path in the folder."""
    paths = {path.relative_to(FOLDER).as_posix(): path for path in sorted(FOLDER.rglob("*")) if path.suffix in _TYPES}
    return {
        name: (gzip.compress(path.read_bytes(), mtime=0), _TYPES[path.suffix])
        for name, path in paths.items()
        if name not in NOT_SERVED
    }
