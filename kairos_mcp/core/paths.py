"""Parse paths that a model or a caller writes: relative to the workspace, plain, and inside it.

Text only: nothing here touches a file. What keeps a run inside its workspace is the workspace that opens files.
"""

from __future__ import annotations

import re

from kairos_mcp.core.errors import BadArguments, PathDenied

PATH_BYTES = 4096  # PATH_MAX of Linux
MAX_PATH_CHARS_SHOWN = 200
HINT = "Paths are relative to the workspace, with / between the parts, as in src/main.py."
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://|file:", re.IGNORECASE)
_DRIVE = re.compile(r"[A-Za-z]:")


def plain_path(text: str) -> str:
    """Return the path without `.`, `..` and doubled slashes; "." is the workspace itself.

    Raises BadArguments for a malformed path, PathDenied for one that leaves the workspace. Nothing is
    expanded: ~ and $HOME are names like any other.
    """
    if not text:
        raise BadArguments("The path is empty.", 'The workspace itself is ".".')
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise BadArguments("The path holds a lone surrogate.", HINT) from None
    if size > PATH_BYTES:
        raise BadArguments(f"The path has {size} bytes; {PATH_BYTES} are the most.", HINT)
    if "\0" in text:
        raise BadArguments("The path holds a NUL character.", HINT)
    if "\\" in text:
        raise BadArguments("The path holds a backslash.", HINT)
    if _URL.match(text):
        raise BadArguments("A URL is not a path.", HINT)
    if _DRIVE.match(text):
        raise BadArguments("The path starts with a drive letter.", HINT)
    if text.startswith("/"):
        raise PathDenied("Absolute paths are refused, also those inside the workspace.", HINT)
    return _resolve_parts(text)


def _resolve_parts(text: str) -> str:
    """Resolve `.` and `..` as text, which is what the kernel would do, since no link is ever followed."""
    parts: list[str] = []
    for part in text.split("/"):
        if part in ("", "."):
            continue
        if part != "..":
            parts.append(part)
        elif parts:
            parts.pop()
        else:
            raise PathDenied("The path leaves the workspace.", HINT)
    return "/".join(parts) or "."


def shorten_path(path: str) -> str:
    """Shorten a path for a message; its end is kept, which tells files apart."""
    return path if len(path) <= MAX_PATH_CHARS_SHOWN else f"…{path[-MAX_PATH_CHARS_SHOWN:]}"


def printable_name(name: str) -> str:
    """Return a name for a listing, with bytes that are not UTF-8 and control characters spelled out."""
    if name.isascii() and name.isprintable():
        return name
    spelled = name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in spelled)
