"""Contents by their hash, beside a stage: written once, never changed."""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path

from kairos_mcp.core.errors import StaleFile
from kairos_mcp.core.paths import shorten_path
from kairos_mcp.tools.files.safe_open import FILE
from kairos_mcp.tools.files.workspace import Workspace
from kairos_mcp.tools.stage.layers import State, read_state

BLOB_BYTES = 16 << 20  # a larger file is neither merged nor submitted


class Blobs:
    """The contents in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def keep(self, content: bytes) -> str:
        """Keep a content; return its hash. It survives the server's death; after `sync`, a loss of power."""
        sha = sha256(content).hexdigest()
        path = self.folder / sha
        if not path.exists():
            half = path.with_name(f"{sha}.{os.getpid()}.part")
            half.write_bytes(content)
            os.rename(half, path)
        return sha

    def keep_file(self, root: Workspace, path: str) -> State:
        """Keep what a file holds now, unless it is too large, and return its state; of anything else the state alone.
        Raises OSError, StaleFile for a file that changes meanwhile."""
        state = read_state(root, path)
        if state.kind != "file" or state.size > BLOB_BYTES or self.has(state.sha):
            return state
        with os.fdopen(root.open_fd(path, FILE), "rb") as file:
            content = file.read(BLOB_BYTES + 1)
        if self.keep(content) != state.sha:
            raise StaleFile(f"{shorten_path(path)} changes while it is read.", "Try again.")
        return state

    def get(self, sha: str | None) -> bytes:
        return (self.folder / str(sha)).read_bytes()

    def has(self, sha: str | None) -> bool:
        return sha is not None and (self.folder / sha).exists()

    def sync(self, sha: str) -> None:
        """Write a content to the disk, and check it. Raises OSError, StaleFile for one that is not what it was."""
        descriptor = os.open(self.folder / sha, os.O_RDONLY | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            if sha256(file.read()).hexdigest() != sha:
                raise StaleFile("A content that the stage keeps is damaged; nothing was applied.", "Start anew.")
            os.fsync(file.fileno())

    def sync_folder(self) -> None:
        """Write the names of the contents to the disk."""
        descriptor = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
