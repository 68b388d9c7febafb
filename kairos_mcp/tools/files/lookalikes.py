"""Finds the place that a text was meant for, where it only looks the same: no-break spaces, typographic quotes, tabs.

A model is shown such characters, but writes the plain ones; it has to be told which they are.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Iterator

MAX_NAMED = 3  # characters that a description names

_SPACES = dict.fromkeys(map(ord, "\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
                                 "\u202f\u205f\u3000"), " ")  # fmt: skip
_QUOTES = dict.fromkeys(map(ord, "\u2018\u2019\u201a\u201b\u2032\u02bc\uff07\u00b4"), "'") | dict.fromkeys(
    map(ord, "\u201c\u201d\u201e\u201f\u2033\uff02\u00ab\u00bb"), '"'
)
_DASHES = dict.fromkeys(map(ord, "\u2010\u2011\u2012\u2013\u2014\u2015\u2212\ufe63\uff0d"), "-")
_UNSEEN = dict.fromkeys(map(ord, "\u00ad\u200b\u200c\u200d\u2060\ufeff\u200e\u200f"), "")
_PLAIN = {**_SPACES, **_QUOTES, **_DASHES, **_UNSEEN, 0x2026: "..."}
_BLANKS = re.compile(r"[ \t]+")


def describe_lookalike(text: str, old: str) -> str | None:
    """Say where `text` has what looks like `old`, and by which characters it differs; None if it is nowhere."""
    for plain in (_make_plain, _join_blanks):
        wanted = plain(old)
        if wanted.strip() and (at := plain(text).find(wanted)) >= 0:
            ends = range(len(text) + 1)
            start = bisect_left(ends, at, key=lambda end: len(plain(text[:end])))
            end = bisect_right(ends, at + len(wanted), key=lambda end: len(plain(text[:end]))) - 1
            return _describe(text, start, text[start:end], old)
    return None


def _make_plain(text: str) -> str:
    return unicodedata.normalize("NFC", text).translate(_PLAIN)


def _join_blanks(text: str) -> str:
    return _BLANKS.sub(" ", _make_plain(text)).replace("\r\n", "\n")


def _describe(text: str, start: int, found: str, old: str) -> str:
    line = text.count("\n", 0, start) + 1
    theirs = ", ".join(_name_characters(found, old))
    ours = ", ".join(_name_characters(old, found))
    if theirs and ours:
        return f"Line {line} looks the same, but has {theirs} where old_string has {ours}."
    if theirs:
        return f"Line {line} looks the same, but has {theirs}, which old_string has not."
    if ours:
        return f"Line {line} looks the same, but has no {ours}, as old_string has."
    return f"Line {line} differs by blanks or by the order of characters alone."


def _name_characters(text: str, other: str) -> Iterator[str]:
    """Name the characters of a text that the other lacks."""
    lacking = [character for character in dict.fromkeys(text) if character not in other]
    for character in lacking[:MAX_NAMED]:
        name = "tab" if character == "\t" else unicodedata.name(character, "control character").lower()
        yield f"U+{ord(character):04X} ({name})"
