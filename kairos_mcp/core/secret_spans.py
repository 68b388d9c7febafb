"""Spans of secrets in a text: joined where they meet, each within one line; and where a line begins and ends.

Lines are looked at as far as the longest secret: so a text of one line takes no longer than another.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

Span = tuple[int, int]  # in bytes: from, to (excluded)
MAX_SECRET_BYTES = 16 << 10  # a private key with its lines is shorter; of a longer line, so much is looked at


def merge_spans(text: bytes, spans: Iterable[Span]) -> list[Span]:
    """Return spans in order, joined where they meet, split at the ends of lines, without blanks around."""
    joined: list[list[int]] = []
    for start, end in sorted(spans):
        if joined and start <= joined[-1][1]:
            joined[-1][1] = max(joined[-1][1], end)
        elif start < end:
            joined.append([start, end])
    return [line for start, end in joined for line in _split_lines(text, start, end)]


def _split_lines(text: bytes, start: int, end: int) -> Iterator[Span]:
    at = start
    while at < end:
        newline = text.find(b"\n", at, end)
        stop = end if newline < 0 else newline
        body = text[at:stop]
        left = at + len(body) - len(body.lstrip(b" \t\r"))
        right = left + len(body.strip(b" \t\r"))
        if left < right:
            yield left, right
        at = stop + 1


def line_end(text: bytes, at: int) -> int:
    """Return where the line ends, or of a long one where it is looked at no further."""
    end = text.find(b"\n", at, at + MAX_SECRET_BYTES)
    return min(len(text), at + MAX_SECRET_BYTES) if end < 0 else end


def line_start(text: bytes, at: int) -> int:
    first = max(0, at - MAX_SECRET_BYTES)
    return max(first, text.rfind(b"\n", first, at) + 1)
