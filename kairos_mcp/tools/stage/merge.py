"""Joins two changes of one text by lines."""

from __future__ import annotations

from kairos_mcp.tools.files.diff import changed_blocks


def merge_lines(base: bytes, ours: bytes, theirs: bytes) -> bytes | None:
    """Return the text with the changes of both sides; None where they meet, or where one is no text in UTF-8."""
    try:
        old, new, other = (text.decode().splitlines(keepends=True) for text in (base, ours, theirs))
    except UnicodeDecodeError:
        return None
    changes = [(a0, a1, new[b0:b1]) for a0, a1, b0, b1 in changed_blocks(old, new)]
    for a0, a1, b0, b1 in changed_blocks(old, other):
        change = (a0, a1, other[b0:b1])
        if change in changes:
            continue
        if any(a0 <= end and begin <= a1 for begin, end, _ in changes):
            return None
        changes.append(change)
    merged, at = list[str](), 0
    for a0, a1, lines in sorted(changes, key=lambda change: change[:2]):
        merged += old[at:a0] + lines
        at = a1
    return "".join(merged + old[at:]).encode()
