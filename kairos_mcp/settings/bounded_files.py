"""Read files that others wrote, however they are named: a link to /dev/zero has no end, and its size is 0."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

from kairos_mcp.core.text import decode_text

FILE_BYTES = 20_000_000  # of one file that a command reads: the largest OpenAPI document in wide use has 12 million


def read_bounded(file: Path, most: int = FILE_BYTES) -> bytes:
    """Read a file. Raises OSError, also (EFBIG) where it has more bytes than these; no more of it is read then."""
    with file.open("rb") as opened:
        content = opened.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(file))
    return content


def read_text_bounded(file: Path, most: int = FILE_BYTES) -> str:
    """Read a file as `decode_text` takes it. Raises OSError, UnicodeDecodeError."""
    return decode_text(read_bounded(file, most))


def read_stdin_bounded(most: int = FILE_BYTES) -> str:
    """Read stdin to its end, as `read_text_bounded` does."""
    content = sys.stdin.buffer.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), "stdin")
    return decode_text(content)
