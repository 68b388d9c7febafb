"""Spans of secrets in a text: joined where they meet, each within one line; and where a line begins and ends.

Lines are looked at as far as MAX_SECRET_BYTES, so that a text of one line takes no longer than another. What is found
to be a secret is masked to its end, however far that is.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, takewhile
from operator import itemgetter
from typing import overload

from kairos_mcp.core.secret_forms import MASK

Span = tuple[int, int]  # in bytes: from, to (excluded)
SPAN_BYTES = 16  # that a span takes in `Spans`
MAX_SECRET_BYTES = 16 << 10  # of a longer line, or around a place, so much is looked at to tell what a value is
_NEWLINE = 0x0A
_MASK = MASK.encode()


class Spans(Sequence[Span]):
    """Spans in order, apart from each other, each in SPAN_BYTES: a window of 8 MiB may hold a million of them."""

    __slots__ = ("_edges",)

    def __init__(self, spans: Iterable[Span] = ()) -> None:
        self._edges = array("q")
        for span in spans:
            self.append(span)

    def append(self, span: Span) -> None:
        """Add a span that begins behind all others; one that meets the last one is joined with it."""
        if self._edges and span[0] <= self._edges[-1]:
            self._edges[-1] = max(self._edges[-1], span[1])
        else:
            self._edges.extend(span)

    def __len__(self) -> int:
        return len(self._edges) // 2

    def __iter__(self) -> Iterator[Span]:
        edges = iter(self._edges)
        return zip(edges, edges, strict=True)

    @overload
    def __getitem__(self, index: int) -> Span: ...
    @overload
    def __getitem__(self, index: slice) -> list[Span]: ...
    def __getitem__(self, index: int | slice) -> Span | list[Span]:
        if isinstance(index, slice):
            return list(self)[index]
        at = range(0, len(self._edges), 2)[index]
        return self._edges[at], self._edges[at + 1]


def spans_between(spans: Sequence[Span], start: int, end: int) -> Iterator[Span]:
    """Yield those of spans in order that have a byte from `start` to `end`, as a whole."""
    first = bisect_right(spans, start, key=itemgetter(1))
    return takewhile(lambda span: span[0] < end, islice(spans, first, None))


def join_spans(spans: Iterable[Span]) -> list[Span]:
    """Return spans in order, joined where they meet."""
    joined: list[Span] = []
    for start, end in sorted(spans):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        elif start < end:
            joined.append((start, end))
    return joined


def join_lines(text: bytes, spans: Iterable[Span]) -> list[Span]:
    """Return spans with those joined that follow each other on adjacent lines: a block is one span, however long."""
    joined: list[Span] = []
    for start, end in spans:
        if joined and (start == joined[-1][1] or (start == joined[-1][1] + 1 and text[start - 1] == _NEWLINE)):
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return joined


def is_masked(text: bytes, start: int, end: int) -> bool:
    """Whether nothing but the mask stands there, perhaps without its bracket, at which some forms of a value end."""
    return len(_MASK) - 1 <= end - start <= len(_MASK) and text[start : start + len(_MASK)] == _MASK


def split_lines(text: bytes, start: int, end: int) -> Iterator[Span]:
    """Yield the parts of a span that lie in one line each, without blanks around."""
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


def to_end(text: bytes, span: Span, following: re.Pattern[bytes]) -> Span:
    """Return the span of a secret with what follows it of its own characters: the beginning of a long one is judged."""
    found = following.match(text, span[1])
    return span if found is None else (span[0], found.end())


def line_end(text: bytes, at: int) -> int:
    """Return where the line ends, or of a long one where it is looked at no further."""
    end = text.find(b"\n", at, at + MAX_SECRET_BYTES)
    return min(len(text), at + MAX_SECRET_BYTES) if end < 0 else end


def whole_line_end(text: bytes, at: int) -> int:
    """Return where the line ends, however long it is: for what is masked up to there, and so looked at once."""
    end = text.find(b"\n", at)
    return len(text) if end < 0 else end


def line_start(text: bytes, at: int) -> int:
    first = max(0, at - MAX_SECRET_BYTES)
    return max(first, text.rfind(b"\n", first, at) + 1)
