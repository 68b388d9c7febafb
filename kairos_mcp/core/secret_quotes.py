"""Find where a quoted text ends, and the pieces that are joined to it: `"a" + "b"`, `'it''s'`.

A quoted text may be of any length: one that was cut where it is looked at no further would show its rest. Each search
for a closing quote ends at the next quote of its kind, so that no text is searched more often than there are kinds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from kairos_mcp.core.secret_spans import Span

PREFIX = re.compile(rb"(?:[bBrRfFuUNE$@]{1,2})?(\\{0,2})(\"\"\"|'''|[\"'`])")
MAX_PIECES = (
    1_000  # of one text; from there on what stands between them is taken with them, so that they need no memory
)
_RAW = re.compile(rb"(?:[bBuU]?[rR][bB]?)?(#{1,3})\"")  # of Rust: r#"…"#
_NEXT_PIECE = re.compile(
    rb"[ \t]*(?:\\?\r?\n[ \t]*)?(?:[+&][ \t]*(?:\\?\r?\n[ \t]*)?)(?=[\"'`])|(?<=')(?=')|[ \t]+(?=[\"'])"
)
_NEXT_IN_BRACKETS = re.compile(rb"\s*(?:[+&.]\s*)?(?=[bBrRfFuU]{0,2}[\"'])")


def find_quoted(text: bytes, opened: Any, settings: bool) -> Span:
    """Return where a quoted text stands that begins here; where its quote is not closed, the rest of its line.

    `opened`: a match of PREFIX. Three quotes may enclose several lines, and in settings each kind but `.
    """
    escape, quote = opened.group(1), opened.group(2)
    start = opened.end()
    has_lines = len(quote) == 3 or (settings and quote != b"`")
    escapes = not escape and (quote != b"'" or not settings)
    marker = escape + quote
    closed = text.find(marker, start)
    while escapes and closed >= 0 and _is_escaped(text, start, closed):
        closed = text.find(marker, closed + 1)
    if closed >= 0 and has_lines:
        return start, closed
    ends = text.find(b"\n", start, len(text) if closed < 0 else closed)
    return start, ends if ends >= 0 else closed if closed >= 0 else len(text)


def _is_escaped(text: bytes, start: int, at: int) -> bool:
    """Whether an odd number of backslashes stands before a place, counted back to `start`."""
    first = at
    while first > start and text[first - 1] == 0x5C:
        first -= 1
    return (at - first) % 2 == 1


def find_pieces(text: bytes, end: int, *, in_brackets: bool) -> Iterator[Span]:
    """Yield the quoted texts that are joined to the one whose content ends at `end`. All beyond MAX_PIECES are one."""
    following, begins, count = _NEXT_IN_BRACKETS if in_brackets else _NEXT_PIECE, -1, 0
    while text[end : end + 1] in (b'"', b"'", b"`"):
        closes = end + (3 if text[end : end + 3] in (b'"""', b"'''") else 1)
        joined = following.match(text, closes)
        opened = None if joined is None else PREFIX.match(text, joined.end())
        if opened is None:
            break
        start, end = find_quoted(text, opened, settings=False)
        count += 1
        if count <= MAX_PIECES:
            yield start, end
        elif begins < 0:
            begins = start
    if begins >= 0:
        yield begins, end
