"""Spans of secrets in a text: joined where they meet, each within one line; and where a line begins and ends.

Lines are looked at as far as the longest secret: so a text of one line takes no longer than another.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, takewhile
from operator import itemgetter
from typing import overload

from kairos_mcp.core.secret_forms import MASK

Span = tuple[int, int]  # in bytes: from, to (excluded)
SPAN_BYTES = 16  # that a span takes in `Spans`
MAX_SECRET_BYTES = 16 << 10  # a private key with its lines is shorter; of a longer line, so much is looked at


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


def merge_spans(text: bytes, spans: Iterable[Span]) -> list[Span]:
    """Return spans in order, joined where they meet, split at the ends of lines, without blanks around."""
    joined: list[list[int]] = []
    for start, end in sorted(spans):
        if joined and start <= joined[-1][1]:
            joined[-1][1] = max(joined[-1][1], end)
        elif start < end:
            joined.append([start, end])
    return [line for start, end in joined for line in _split_lines(text, start, end)]


def drop_masked(text: bytes, spans: Iterable[Span]) -> list[Span]:
    """Return spans without those that hold the mask already."""
    masked = MASK.encode()
    return [(start, end) for start, end in spans if text[start:end] != masked]


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
