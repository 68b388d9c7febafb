"""Finds the lines of a text that match a pattern, in pieces small enough to check the time between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from kairos_mcp.core.quick_dataclass import dataclass

WINDOW = 64 << 10  # bytes handed to RE2 at once; its slowest patterns take about a second for these
OVERLAP = 4 << 10
NEWLINE = 0x0A
PREVIEW_CHARS = 200


@dataclass(frozen=True, slots=True)
class SearchHit:
    """A matching line: its number, from 1; and in bytes, where it starts and ends and where the match starts (`at`)."""

    number: int
    start: int
    end: int
    at: int


def find_hits(content: bytes, pattern: Any, is_over: Callable[[], bool], begin: int = 0) -> Iterator[SearchHit]:
    """Yield the lines from byte `begin` on that match a pattern of core/patterns.py, in order; stop when `is_over`.

    A line longer than two windows is searched in overlapping pieces: a match longer than the overlap may be missed
    there, and ^ and $ may match at the ends of a piece.
    """
    search = pattern.search
    number, counted, at, size = 1, 0, begin, len(content)
    while at < size:
        edge = content.find(b"\n", at + WINDOW, at + 2 * WINDOW)  # a window ends with a line if one ends near
        edge = min(size, at + 2 * WINDOW) if edge < 0 else edge
        match = search(content, at, edge)
        if match is None:
            at = edge + 1 if edge == size or content[edge] == NEWLINE else edge - OVERLAP
            if at < size and is_over():
                return
            continue
        match_start: int = match.start()
        start = content.rfind(b"\n", 0, match_start) + 1
        if start == size:
            return  # an empty match after the last newline, where no line is
        end = content.find(b"\n", match_start)
        end = size if end < 0 else end
        number += content.count(b"\n", counted, start)
        counted, at = start, end + 1
        yield SearchHit(number, start, end, match_start)


def preview_hit(content: bytes, hit: SearchHit) -> str:
    """Return the line, or, of a long one, the text around the match."""
    start, end = hit.start, hit.end
    if end - start <= PREVIEW_CHARS:
        return content[start:end].decode("utf-8", "replace").rstrip("\r")
    first = max(start, min(hit.at - PREVIEW_CHARS // 4, end - PREVIEW_CHARS))
    last = min(end, first + PREVIEW_CHARS)
    text = content[first:last].decode("utf-8", "replace").rstrip("\r")
    return f"{'…' if first > start else ''}{text}{'…' if last < end else ''}"
