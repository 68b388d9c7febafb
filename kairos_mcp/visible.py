"""A text made fit to decide on: nothing in it is invisible, turned round or out of sight without being said.

What a file, a model or a server wrote may hold characters that no screen shows, that reverse the direction of
writing, or so much space that the rest is out of sight. They are spelled out, counted, and named before the text.
"""

from __future__ import annotations

import re
import unicodedata

LONG_LINE = 400  # characters: beyond it a terminal or a dialog wraps a line out of sight
LONG_SPACE = 40  # characters of space in a row, or empty lines
_SPACE = re.compile(rf"(?<=\S)[^\S\n]{{{LONG_SPACE},}}|[^\S\n]{{{2 * LONG_SPACE},}}")
_EMPTY = re.compile(rf"(?:\n[ +-]?[^\S\n]*){{{LONG_SPACE},}}\n")
_HIDING = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}  # controls, formats, halves, private, unassigned, separators
_BLANK = frozenset("\u00a0\u115f\u1160\u1680\u2800\u3164\uffa0") | {chr(code) for code in range(0x2000, 0x200B)}
_PLAIN = frozenset("\n\t")


def made_visible(text: str) -> tuple[str, tuple[str, ...]]:
    """The text with everything invisible spelled out as `\\u{200b}`, and a remark on each way in which something in it
    might escape a reader. Nothing is cut."""
    if text.isascii() and text.replace("\n", "").replace("\t", "").isprintable():
        return text, tuple(_remarks(text, 0))
    spelled = [_spelled(character) for character in text]
    hidden = sum(each.startswith("\\u{") for each in spelled)
    shown = "".join(spelled)
    return shown, tuple(_remarks(shown, hidden))


def _spelled(character: str) -> str:
    if character in _PLAIN or (character.isascii() and character.isprintable()):
        return character
    if character == "\r":
        return "\\r"
    hides = character in _BLANK or unicodedata.category(character) in _HIDING or _is_selector(character)
    return f"\\u{{{ord(character):x}}}" if hides else character


def _is_selector(character: str) -> bool:
    """Variation selectors are marks, drawn as nothing: one can carry a text of its own."""
    return "\ufe00" <= character <= "\ufe0f" or "\U000e0100" <= character <= "\U000e01ef"


def _remarks(shown: str, hidden: int) -> list[str]:
    long = sum(len(line) > LONG_LINE for line in shown.split("\n"))
    found = [
        (hidden, "{} invisible characters are spelled out, as \\u{{200b}}"),
        (long, f"{{}} lines are longer than {LONG_LINE} characters: read them to their ends"),
        (len(_SPACE.findall(shown)), "{} times something stands behind a long run of spaces"),
        (len(_EMPTY.findall(shown)), "{} times something stands behind many empty lines"),
    ]
    return [text.format(count) for count, text in found if count]
