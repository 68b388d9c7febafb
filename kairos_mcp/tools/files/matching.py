"""Lines of a text that match a pattern, one hit a line, in pieces small enough to look at the clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

WINDOW = 64 << 10  # bytes handed to RE2 at once; its slowest patterns take about a second for these
OVERLAP = 4 << 10
NEWLINE = 0x0A
PREVIEW_CHARS = 200


@dataclass(frozen=True, slots=True)
class SearchHit:
    """A line that matches: its number from 1, where it starts and ends, where the match starts; in bytes."""

    number: int
    start: int
    end: int
    at: int


def find_hits(content: bytes, pattern: Any, is_over: Callable[[], bool], begin: int = 0) -> Iterator[SearchHit]:
    """The lines from byte `begin` that match a pattern of patterns.py, in order; ends when `over`.

    A line longer than two windows is matched in overlapping pieces, so a match longer than the overlap may be
    missed there, and ^ and $ may hold at a piece's ends.
    """
    search = pattern.search
    number, counted, at, size = 1, 0, begin, len(content)
    while at < size:
        edge = _edge(content, at)
        match = search(content, at, edge)
        if match is None:
            at = edge + 1 if edge == size or content[edge] == NEWLINE else edge - OVERLAP
            if at < size and is_over():
                return
            continue
        found: int = match.start()
        start = content.rfind(b"\n", 0, found) + 1
        if start == size:
            return  # an empty match after the last newline, where no line is
        end = _line_end(content, found)
        number += content.count(b"\n", counted, start)
        counted, at = start, end + 1
        yield SearchHit(number, start, end, found)


def preview_hit(content: bytes, hit: SearchHit) -> str:
    """The line, or, of a long one, what is around the match."""
    start, end = hit.start, hit.end
    if end - start <= PREVIEW_CHARS:
        return content[start:end].decode("utf-8", "replace").rstrip("\r")
    first = max(start, min(hit.at - PREVIEW_CHARS // 4, end - PREVIEW_CHARS))
    last = min(end, first + PREVIEW_CHARS)
    text = content[first:last].decode("utf-8", "replace").rstrip("\r")
    return f"{'…' if first > start else ''}{text}{'…' if last < end else ''}"


def _edge(content: bytes, at: int) -> int:
    """Where a window ends: at a line's end if there is one near."""
    end = content.find(b"\n", at + WINDOW, at + 2 * WINDOW)
    return min(len(content), at + 2 * WINDOW) if end < 0 else end


def _line_end(content: bytes, at: int) -> int:
    end = content.find(b"\n", at)
    return len(content) if end < 0 else end
