"""Formats a change for a person: a unified diff of masked texts, with the hash of the file before and after.

The lines are compared by anchors (those that occur once on both sides), not by the shortest edit: it takes near the
same time for any two files, where difflib is quadratic for a file that was only sorted.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence

from kairos_mcp.core.file_changes import NO_NEWLINE
from kairos_mcp.core.masked_file import MaskedFile, unify_marks
from kairos_mcp.core.paths import printable_name
from kairos_mcp.core.secret_spans import Span
from kairos_mcp.tools.files.edit import ends_in_crlf

CONTEXT_LINES = 3  # lines around a change
SHORT_HASH = 12  # hexadecimal digits that a person is shown; an approval is bound to the whole hash
MAX_DEPTH = 24  # of searches for anchors between anchors; below that, what differs is one block

Hashes = tuple[str | None, str | None]  # of the file before (None: there was none) and after
Block = tuple[int, int, int, int]  # lines from, to (excluded) of the one side, then of the other


def unified_diff(
    path: str,
    before: MaskedFile | None,
    after: MaskedFile,
    hashes: Hashes,
    *,
    hashes_last: bool = False,
    kept: Sequence[Span] = (),
) -> str:
    """Return the diff of one file. Both sides are UTF-8; `before` is None for a new file.

    `hashes_last`: for whoever has to decide, the change comes first, and the hashes are short.

    No secret is shown, nor whether two are equal: else a caller could find out whether it has guessed one. `kept`:
    where the secrets of before stand in the file after, in order; every other one shows as new. Where there are
    secrets, no hash of what the file would hold is shown either. All other lines are unchanged: the caller spells out
    invisible characters. If every line of both sides ends in CRLF, that is stated once instead of shown.
    """
    old, new = _comparable_texts(before, after, kept)
    has_secrets = bool(after.spans or (before is not None and before.spans))
    crlf = ends_in_crlf(new) and (before is None or ends_in_crlf(old))
    if crlf:
        old, new = old.replace("\r\n", "\n"), new.replace("\r\n", "\n")
    name, a, b = printable_name(path), _split_lines(old), _split_lines(new)
    lines = [f"{'create' if before is None else 'edit'} {name}{' (line ends CRLF)' * crlf}"]
    old_hash, new_hash = hashes[0] or "no file", hashes[1] or ""
    if not hashes_last:
        lines += [f"before sha256:{old_hash}", *([] if has_secrets else [f"after sha256:{new_hash}"])]
    lines += ["--- /dev/null" if before is None else f"--- a/{name}", f"+++ b/{name}"]
    for hunk in _group_hunks(changed_blocks(a, b)):
        lines += _format_hunk(a, b, hunk)
    if hashes_last and not has_secrets:
        lines.append(f"before {old_hash[:SHORT_HASH]}, after {new_hash[:SHORT_HASH]}")
    return unify_marks("\n".join(lines) + "\n")


def _comparable_texts(before: MaskedFile | None, after: MaskedFile, kept: Sequence[Span]) -> tuple[str, str]:
    """Return both texts, with marks that are equal for a secret that was kept, and for no other."""
    places = {span: f"{n}" for n, span in enumerate(kept)}
    old = "" if before is None else before.comparable_text([f"{n}" for n in range(len(before.spans))])
    return old, after.comparable_text([places.get(span, f"new {n}") for n, span in enumerate(after.spans)])


def changed_blocks(a: Sequence[str], b: Sequence[str]) -> list[Block]:
    """Return the blocks that differ, in order: replacing each block of `a` by that of `b` turns `a` into `b`."""
    found: list[Block] = []
    _compare(a, b, (0, len(a), 0, len(b)), MAX_DEPTH, found)
    return found


def _compare(a: Sequence[str], b: Sequence[str], block: Block, depth: int, found: list[Block]) -> None:
    a0, a1, b0, b1 = block
    while a0 < a1 and b0 < b1 and a[a0] == b[b0]:
        a0, b0 = a0 + 1, b0 + 1
    while a0 < a1 and b0 < b1 and a[a1 - 1] == b[b1 - 1]:
        a1, b1 = a1 - 1, b1 - 1
    if a0 == a1 and b0 == b1:
        return
    anchors = _anchors(a, b, (a0, a1, b0, b1)) if depth and a0 < a1 and b0 < b1 else []
    if not anchors:
        found.append((a0, a1, b0, b1))
        return
    for i, j in anchors:
        _compare(a, b, (a0, i, b0, j), depth - 1, found)
        a0, b0 = i + 1, j + 1
    _compare(a, b, (a0, a1, b0, b1), depth - 1, found)


def _anchors(a: Sequence[str], b: Sequence[str], block: Block) -> list[tuple[int, int]]:
    """Return pairs of lines that occur once on each side: the longest sequence in the same order on both."""
    a0, a1, b0, b1 = block
    counts_a = Counter(a[a0:a1])
    counts_b = Counter(b[b0:b1])
    positions = {b[j]: j for j in range(b0, b1) if counts_b[b[j]] == 1}
    pairs = [(i, positions[a[i]]) for i in range(a0, a1) if counts_a[a[i]] == 1 and a[i] in positions]
    tails: list[int] = []  # the smallest j that ends an increasing sequence of each length
    ends: list[int] = []  # the pair that it belongs to
    previous: list[int] = []
    for at, (_, j) in enumerate(pairs):
        length = bisect_left(tails, j)
        tails[length : length + 1] = [j]
        ends[length : length + 1] = [at]
        previous.append(ends[length - 1] if length else -1)
    sequence: list[tuple[int, int]] = []
    at = ends[-1] if ends else -1
    while at >= 0:
        sequence.append(pairs[at])
        at = previous[at]
    return sequence[::-1]


def _group_hunks(found: Sequence[Block]) -> Iterator[list[Block]]:
    """Group blocks that are near enough to share their context lines."""
    hunk: list[Block] = []
    for block in found:
        if hunk and block[0] - hunk[-1][1] > 2 * CONTEXT_LINES:
            yield hunk
            hunk = []
        hunk.append(block)
    if hunk:
        yield hunk


def _format_hunk(a: Sequence[str], b: Sequence[str], hunk: Sequence[Block]) -> list[str]:
    before = min(CONTEXT_LINES, hunk[0][0])
    a_from, b_from = hunk[0][0] - before, hunk[0][2] - before
    after = min(CONTEXT_LINES, len(a) - hunk[-1][1])
    a_to, b_to = hunk[-1][1] + after, hunk[-1][3] + after
    lines = [f"@@ -{_format_range(a_from, a_to)} +{_format_range(b_from, b_to)} @@"]
    at = a_from
    for a0, a1, b0, b1 in hunk:
        lines += [_format_line(" ", line) for line in a[at:a0]]
        lines += [_format_line("-", line) for line in a[a0:a1]]
        lines += [_format_line("+", line) for line in b[b0:b1]]
        at = a1
    return lines + [_format_line(" ", line) for line in a[at:a_to]]


def _format_range(start: int, end: int) -> str:
    count = end - start
    return f"{start + 1 if count else start},{count}"


def _format_line(sign: str, line: str) -> str:
    body = line.removesuffix("\n")
    return f"{sign}{body}" + (f"\n{NO_NEWLINE}" if body == line else "")


def _split_lines(text: str) -> list[str]:
    """Split a text into lines with their ends: a last line without one differs from the same line with one."""
    lines = [f"{line}\n" for line in text.split("\n")]
    last = lines.pop().removesuffix("\n")
    return [*lines, last] if last else lines
