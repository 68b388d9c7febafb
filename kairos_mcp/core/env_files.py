"""Files like `.env`: which files they are, and where their values stand.

In such a file every value is hidden, whatever its form: even a short word may be a password there. `.env.example` is
made to be shown. Names, comments and the number of lines stay as they are.
"""

from __future__ import annotations

import re

from kairos_mcp.core.secret_forms import MASK

NAME_LISTING_TOOLS = frozenset({"list_files", "file_tree"})  # they show names of files and no text of them

Span = tuple[int, int]

_EXAMPLE = ".env.example"
_SETTING = re.compile(rb"(?P<name>[ \t]*(?:export[ \t]+)?[^\s=:#][^=:\n]*?[ \t]*[=:][ \t]*)(?P<value>[^\s].*)")
_CONTINUED = re.compile(rb"(?:[^\\]|\\.)*\\")
_BARE_NAME = re.compile(rb"\s*(?:export\s+)?[A-Za-z_][A-Za-z0-9_.]*\s*[=:]?\s*")


def is_env_file(path: str) -> bool:
    """Whether a path names a file like `.env`, by its last part and without regard to case."""
    name = path.rstrip("/").rpartition("/")[2].casefold()
    return name.startswith(".env") and name != _EXAMPLE


def find_env_values(content: bytes) -> list[Span]:
    """Return where the values of a file like `.env` stand, in bytes; each lies within one line."""
    spans: list[Span] = []
    at, open_with = 0, b""  # the quote, or the backslash, by which a value goes on in the next line
    for line in content.split(b"\n"):
        body = line.removesuffix(b"\r")
        if open_with:
            if body.strip():
                spans.append((at, at + len(body)))
            open_with = _open_quote(body, open_with)
        elif body.strip() and not body.lstrip().startswith(b"#"):
            found = _SETTING.fullmatch(body)
            if found is not None:
                spans.append((at + found.start("value"), at + len(body)))
                open_with = _open_quote(found["value"], b"")
            elif not _BARE_NAME.fullmatch(body):  # not a setting: it may be part of a value
                spans.append((at, at + len(body)))
        at += len(line) + 1
    return [span for span in spans if content[slice(*span)].strip() != MASK.encode()]


def _open_quote(text: bytes, quote: bytes) -> bytes:
    """Return the quote that is still open at the end of a line; `quote` was open at its start.

    A backslash where a value without quotes goes on in the next line; nothing where the value ends.
    """
    if not quote or quote == b"\\":
        rest = text.lstrip()
        if rest[:1] not in (b"'", b'"', b"`"):
            return b"\\" if _CONTINUED.fullmatch(text) else b""
        quote, text = rest[:1], rest[1:]
    escaped = False
    for letter in text:
        if escaped:
            escaped = False
        elif letter == 0x5C and quote != b"'":
            escaped = True
        elif letter == quote[0]:
            return b""
    return quote
