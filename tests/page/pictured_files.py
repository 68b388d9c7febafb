"""The page's files as the pictures in docs/ show them, by their digest."""

from __future__ import annotations

from hashlib import sha256

from kairos_mcp.page.files import FOLDER

DIGEST_FILE = "page.sha256"


def digest_files() -> str:
    """The digest of every file that a browser draws with: names and contents."""
    digest = sha256()
    for path in sorted(FOLDER.rglob("*.*")):
        if path.suffix in (".js", ".css", ".html", ".svg"):
            digest.update(f"{path.relative_to(FOLDER).as_posix()}\n".encode() + path.read_bytes())
    return digest.hexdigest()
