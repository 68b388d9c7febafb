"""Files like `.env`: which files they are, and where their values stand.

They are `.env`, `.env.local`, `.envrc`, `prod.env`, and all below `.envs/`. In such a file every value is hidden,
whatever its form: even a short word may be a password there. An example (`.env.example`, `sample.env`) is made to be
shown. Names, comments and the number of lines stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from kairos_mcp.core.secret_forms import MASK

Span = tuple[int, int]

_EXAMPLES = frozenset({"example", "sample", "template"})
_SETTING = re.compile(rb"(?P<name>[ \t]*(?:export[ \t]+)?[^\s=:#][^=:\n]*?[ \t]*[=:][ \t]*)(?P<value>[^\s].*)")
_CONTINUED = re.compile(rb"(?:[^\\]|\\.)*\\")
_BARE_NAME = re.compile(rb"\s*(?:export\s+)?[A-Za-z_][A-Za-z0-9_.]*\s*[=:]?\s*")


def is_env_file(path: str) -> bool:
    """Whether a path names a file like `.env`: by its last part, or as one below `.envs`, without regard to case."""
    folded = path.casefold()
    if ".env" not in folded:
        return False  # at once: programs and searches ask about every file
    *folders, name = folded.rstrip("/").split("/")
    if not (name.startswith(".env") or name.endswith(".env") or ".envs" in folders):
        return False
    return name.removesuffix(".env").rpartition(".")[2] not in _EXAMPLES


def find_env_values(content: bytes) -> Iterator[Span]:
    """Yield where the values of a file like `.env` stand, in bytes and in order; each lies within one line."""
    open_with = b""  # the quote, or the backslash, by which a value goes on in the next line
    for at, line in _list_lines(content):
        body, value_at = line.removesuffix(b"\r"), None
        if open_with:
            value_at = 0 if body.strip() else None
            open_with = _open_quote(body, open_with)
        elif body.strip() and not body.lstrip().startswith(b"#"):
            found = _SETTING.fullmatch(body)
            if found is not None:
                value_at = found.start("value")
                open_with = _open_quote(found["value"], b"")
            elif not _BARE_NAME.fullmatch(body):  # not a setting: it may be part of a value
                value_at = 0
        if value_at is not None and body[value_at:].strip() != MASK.encode():
            yield at + value_at, at + len(body)


def _list_lines(content: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield each line with the byte at which it begins, without a list of all of them."""
    at = 0
    while at < len(content):
        newline = content.find(b"\n", at)
        end = len(content) if newline < 0 else newline
        yield at, content[at:end]
        at = end + 1


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
