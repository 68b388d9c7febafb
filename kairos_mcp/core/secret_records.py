"""Find the members of a record: of the one that a place lies in, or of the one that begins at a place.

A record is what stands between braces, or the lines of one column (YAML, TOML). Members of records inside it are none
of its own. For a pair it is looked at as far as REACH_BYTES, MAX_BRACES and MAX_LINES go, so that each takes the same
time. One whose members are all secrets is looked at to its end. So that the time stays linear where such records lie
within each other, it ends early behind MAX_FAR_BRACES that lie more than NEAR_LEVELS deeper, and right of MAX_COLUMN
where another one lies in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from itertools import islice

from kairos_mcp.core.secret_spans import Span, line_end, line_start

REACH_BYTES = 4 << 10
MAX_BRACES = 64
MAX_LINES = 32  # upwards, and as many downwards
MAX_COLUMN = 32  # up to here a record is looked at to its end whatever lies in it: so many others may lie around it
MAX_MEMBERS = 4  # called `value` and the like that are looked at, the nearest first
NEAR_LEVELS = 4
MAX_FAR_BRACES = 128
_BRACE = re.compile(rb"[{}]")
_BRACKET = re.compile(rb"[{}\]]")
_INDENT = re.compile(rb"[ \t]*(?:-[ \t]+)*")
_LINE = re.compile(rb"\n(?=[^\n]|\n)")
_DEEPER_SECRETS = re.compile(rb"[ \t-]*+[\"']?[\w.-]*(?i:secrets|passwords|string_?data)[\"']?[ \t]*:")
_ITEM = re.compile(rb"[ \t]*-[ \t]")
_VALUE_MEMBER = re.compile(
    rb"(?i)(?<![\w.\"'$-])\\{0,2}[\"']?(value|val|default|default[_-]?value|plain(?:[_-]?text)?|content|"
    rb"string[_-]?value|secret[_-]?string)\\{0,2}[\"']?[ \t]*(?:=>|[:=])"
)
_ANY_MEMBER = re.compile(rb"(?<![\w.\"'$/-])\\{0,2}[\"']?([\w./-]{1,200})\\{0,2}[\"']?[ \t]*(?:=>|[:=])")

Member = tuple[bytes, int, int]  # its name, where that begins, and where its separator ends


def list_values_around(text: bytes, at: int) -> Iterator[Member]:
    """Yield the members called `value` and the like of the record that a place lies in, MAX_MEMBERS at most."""
    begins = _find_open_brace(text, at)
    parts = _list_lines(text, at) if begins is None else _list_flow(text, begins + 1)
    yield from islice(_list_members(text, parts, _VALUE_MEMBER), MAX_MEMBERS)


def list_values_below(text: bytes, at: int) -> Iterator[Member]:
    """Yield the members called `value` and the like of the record that begins at a place: at a brace, or below it."""
    yield from islice(_list_members(text, _list_below(text, at), _VALUE_MEMBER), MAX_MEMBERS)


def list_members_below(text: bytes, at: int) -> Iterator[Member]:
    """Yield all members of the record that begins at a place, or of the records in the list that does."""
    yield from _list_members(text, _list_below(text, at, len(text)), _ANY_MEMBER)


def list_records_around(text: bytes, at: int) -> Iterator[Span]:
    """Yield the parts of the record in braces that a place lies in, as far as a key of a Kubernetes Secret may lie from
    its data."""
    if (begins := _find_open_brace(text, at)) is not None:
        yield from _list_flow(text, begins + 1, 4 * REACH_BYTES)


def list_members_in_list(text: bytes, at: int) -> Iterator[Member]:
    """Yield all members of the records in braces that a list holds, which begins at a place with its bracket."""
    yield from _list_members(text, _list_records(text, at + 1), _ANY_MEMBER)


def _list_records(text: bytes, start: int) -> Iterator[Span]:
    """Yield the parts of the records of a list that lie in no braces of their own."""
    depth = far = 0
    for token in _BRACKET.finditer(text, start):
        letter = token.group()
        if depth == 1 and letter in b"{}":
            yield start, token.start()
        far += depth > NEAR_LEVELS
        if far > MAX_FAR_BRACES or (letter == b"]" and depth == 0):
            return
        if letter in b"{}":
            depth += 1 if letter == b"{" else -1
            start = token.end()


def indent_of(text: bytes, at: int) -> int:
    """Return the column in which a line's text begins, behind the dashes of a list. `at`: where the line starts."""
    found = _INDENT.match(text, at)
    return 0 if found is None else found.end() - at


def _list_members(text: bytes, parts: Iterator[Span], pattern: re.Pattern[bytes]) -> Iterator[Member]:
    for start, end in parts:
        for found in pattern.finditer(text, start, end):
            yield found.group(1), found.start(1), found.end()


def _list_below(text: bytes, at: int, reach: int = 0) -> Iterator[Span]:
    """Yield the parts of the record that begins at a place. `reach`: how many bytes and lines of it are looked at, if
    more than of a pair."""
    if text[at : at + 1] == b"{":
        return _list_flow(text, at + 1, max(reach, REACH_BYTES), NEAR_LEVELS if reach else 0)
    first = _next_line(text, at)
    if first is None or indent_of(text, first) <= indent_of(text, line_start(text, at)):
        return iter(())
    return _list_lines(text, first, reach or MAX_LINES, ends_with_item=not reach)


def _next_line(text: bytes, at: int) -> int | None:
    """Return where the next line starts that is neither empty nor a comment."""
    for _ in range(MAX_LINES):
        at = line_end(text, at) + 1
        if at >= len(text):
            return None
        if text[at : line_end(text, at)].strip() and _line_kind(text, at, 0) != "empty":
            return at
    return None


def _find_open_brace(text: bytes, at: int) -> int | None:
    """Return where the brace stands that a place lies in."""
    first, depth = max(0, at - REACH_BYTES), 0
    for _ in range(MAX_BRACES):
        opens, closes = text.rfind(b"{", first, at), text.rfind(b"}", first, at)
        if opens < 0:
            return None
        if closes < opens and depth == 0:
            return opens
        depth += 1 if closes > opens else -1
        at = max(opens, closes)
    return None


def _list_flow(text: bytes, start: int, reach: int = REACH_BYTES, near: int = 0) -> Iterator[Span]:
    """Yield the parts of what stands between braces that lie in no braces of their own. `start`: behind the first.
    `near`: how many levels below are no far ones."""
    depth = far = 0
    most = MAX_FAR_BRACES if near else MAX_BRACES
    limit = min(len(text), start + reach)
    for brace in _BRACE.finditer(text, start, limit):
        if depth == 0:
            yield start, brace.start()
        far += depth >= near
        depth += 1 if brace.group() == b"{" else -1
        if depth < 0 or far > most:
            return
        start = brace.end()
    if depth == 0:
        yield start, limit


def _list_lines(text: bytes, at: int, most_down: int = MAX_LINES, *, ends_with_item: bool = True) -> Iterator[Span]:
    """Yield the lines of the column in which the line at a place begins: downwards to the end of its record, or of the
    list that it is in, then upwards to its start."""
    first = line_start(text, at)
    column, ends = indent_of(text, first), line_end(text, first)
    yield first, ends
    lines = _LINE.finditer(text, ends) if ends_with_item else _not_deeper(column).finditer(text, ends)
    for count, line in enumerate(islice(lines, most_down)):
        begins = line.end()
        if column > MAX_COLUMN and count >= MAX_LINES and _DEEPER_SECRETS.match(text, begins):
            break
        ends = line_end(text, begins)
        kind = _line_kind(text, begins, column)
        if kind == "outside" or (ends_with_item and kind == "member" and _ITEM.match(text, begins)):
            break
        if kind == "member":
            yield begins, ends
    begins = first
    for _ in range(MAX_LINES):
        if begins == 0 or _ITEM.match(text, begins):
            return
        begins = line_start(text, begins - 1)
        if (kind := _line_kind(text, begins, column)) == "outside":
            return
        if kind == "member":
            yield begins, line_end(text, begins)


@lru_cache(maxsize=64)
def _not_deeper(column: int) -> re.Pattern[bytes]:
    """Return a pattern for the ends of lines before those that begin in this column or left of it; right of MAX_COLUMN
    also before those that begin another record of secrets."""
    others = rb"|" + _DEEPER_SECRETS.pattern if column > MAX_COLUMN else b""
    return re.compile(rb"\n(?=[ \t-]{0,%d}[^ \t\r\n-]|---%b)" % (column, others))


def _line_kind(text: bytes, begins: int, column: int) -> str:
    found = indent_of(text, begins)
    first = text[begins + found : begins + found + 1]
    if first in (b"", b"\r", b"\n", b"#"):
        return "empty"
    if found < column or first == b"[" or text[begins : begins + 3] == b"---":
        return "outside"
    return "member" if found == column else "below"
