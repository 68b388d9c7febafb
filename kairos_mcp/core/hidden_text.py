"""Show a person, or a model, what would stay hidden in a text.

What a file, a model or a server wrote may hold characters that no screen shows, that reverse the direction of writing,
or so much space that the rest is out of sight. `make_visible` spells them out and counts them, so that a person who
decides about the text sees all of it.

For a model such a character, or the first one of markup that imitates a conversation, is spelled as ⟦U+200B⟧.
Everything else stays as it is, so that the text can still be quoted exactly; a note says that something is spelled.
Doing it twice changes nothing.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from typing import Any

LONG_LINE = 400  # characters: beyond it a terminal or a dialog wraps a line out of sight
LONG_SPACE = 40  # characters of space in a row, or empty lines
_SPACE = re.compile(rf"(?<=\S)[^\S\n]{{{LONG_SPACE},}}|[^\S\n]{{{2 * LONG_SPACE},}}")
_EMPTY = re.compile(rf"(?:\n[ +-]?[^\S\n]*){{{LONG_SPACE},}}\n")
_HIDING = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}  # controls, formats, halves, private, unassigned, separators
_BLANK = frozenset("\u00a0\u115f\u1160\u1680\u2800\u3164\uffa0") | {chr(code) for code in range(0x2000, 0x200B)}
_SELECTORS = frozenset(map(chr, (*range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0))))
"""Variation selectors: nothing is drawn for them, and a row of them can carry a text of its own."""
_PLAIN = frozenset("\n\t")
_DIRECTION_MARKS = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_PICTURE = r"[\u00a9\u00ae\u203c\u2049\u2100-\u2bff\u3030\u303d\u3297\u3299\U0001f000-\U0001faff#*0-9]"
_DRAWN = re.compile(rf"(?<={_PICTURE})[\ufe0e\ufe0f]|(?<={_PICTURE})\u200d(?=[\u2100-\u2bff\U0001f000-\U0001faff])")


def make_visible(text: str) -> tuple[str, tuple[str, ...]]:
    """Spell out everything invisible, as `\\u{200b}`; also return a remark for each thing that a reader might miss.

    Nothing is cut.
    """
    if text.isascii() and text.replace("\n", "").replace("\t", "").isprintable():
        return text, tuple(_remarks(text, 0))
    spelled = [_spell_out(character) for character in text]
    hidden = sum(character_text.startswith("\\u{") for character_text in spelled)
    shown = "".join(spelled)
    return shown, tuple(_remarks(shown, hidden))


def spell_out_hidden(text: str) -> str:
    """Spell out everything invisible, as `\\u{200b}`, but no line end and no tab."""
    return text if text.isascii() and text.isprintable() else "".join(map(_spell_out, text))


def has_hidden_characters(text: str) -> bool:
    """Whether a text holds a character that no screen shows, or that turns the direction of writing.

    Line ends as in DOS and selectors that shape an emoji don't count.
    """
    return bool(_count_hidden(text))


def adds_hidden_characters(before: str, after: str) -> bool:
    """Whether a change of a text adds hidden characters.

    That is more of one than the replaced lines held, or any that turns the direction of writing in a new line.
    """
    if not _count_hidden(after):
        return False
    old, new = Counter(before.split("\n")), Counter(after.split("\n"))
    removed, added = _count_hidden("\n".join((old - new).elements())), _count_hidden("\n".join((new - old).elements()))
    return any(count > removed[character] or character in _DIRECTION_MARKS for character, count in added.items())


def _count_hidden(text: str) -> Counter[str]:
    """Count the hidden characters of a text."""
    if text.isascii() and text.replace("\n", "").replace("\t", "").isprintable():
        return Counter()
    plain = text.replace("\r\n", "\n")
    if not plain.isascii():
        plain = _DRAWN.sub("", _DRAWN.sub("", plain))  # a joiner may stand behind a selector
    hiding = (character for character in set(plain) if character == "\r" or _spell_out(character) != character)
    return Counter({character: plain.count(character) for character in hiding})


def _spell_out(character: str) -> str:
    if character in _PLAIN or (character.isascii() and character.isprintable()):
        return character
    if character == "\r":
        return "\\r"
    hides = character in _BLANK or character in _SELECTORS or unicodedata.category(character) in _HIDING
    return f"\\u{{{ord(character):x}}}" if hides else character


def _remarks(shown: str, hidden: int) -> list[str]:
    long = sum(len(line) > LONG_LINE for line in shown.split("\n"))
    found = [
        (hidden, "{} invisible characters are spelled out, as \\u{{200b}}"),
        (long, f"{{}} lines are longer than {LONG_LINE} characters: read them to their ends"),
        (len(_SPACE.findall(shown)), "{} times something stands behind a long run of spaces"),
        (len(_EMPTY.findall(shown)), "{} times something stands behind many empty lines"),
    ]
    return [text.format(count) for count, text in found if count]


_UNSEEN = (
    "\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\xad"  # controls, of a terminal among others; the soft hyphen
    "\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\uffa0"  # joiners and fillers drawn as nothing
    "\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff0-\ufffb"  # zero width, direction, line ends of another kind
    "\ufe00-\ufe0f\U000e0000-\U000e0fff"  # selectors and tags, which can carry a text of their own
    "\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\ud800-\udfff"  # halves of a pair, which no store or wire can carry
)
_OTHER = rf"[^\x00-\x7f{_UNSEEN}]"
_SYMBOL = "[\u2010-\u2027\u2030-\u205e\u2070-\u27ff\u2801-\u3163\U0001f000-\U0001faff]"
_IN_USE = re.compile(  # what writing systems and emoji need, between characters of theirs
    rf"(?:(?<={_OTHER})|(?<=\ufe0f))[\u200c\u200d](?={_OTHER})"
    rf"|(?<={_SYMBOL})[\ufe0e\ufe0f]"
    "|(?<=[0-9#*])\ufe0f(?=\u20e3)"
)
_HIDDEN = re.compile(f"[{_UNSEEN}]")
_RUN = re.compile(rf"([{_UNSEEN}])\1*")
_RETURN = re.compile(r"(\r)(?!\n)\1*")  # one that ends no line goes back to its start
_MARK = re.compile(  # each alternative begins with one of three characters, which a search finds quickly
    r"[<\[\n](?:"
    r"(?<=<)(?:"
    r"[|\uff5c](?:\w|\u2581){1,40}[|\uff5c]>"  # <|im_start|> and its kin
    r"|</?SYS>>|/?(?:start|end)_of_turn>"
    r"|/?(?:tool_(?:calls?|response|results?)|function_(?:calls?|results?)|invoke|antml:\w+)\b[^<>\n]{0,80}>"
    r"|/?(?:system|assistant|system[_-](?:prompt|reminder|message))>)"
    r"|(?<=\[)/?INST\]"
    r"|(?<=\n)(?P<lead>(?>[^\S\n]?(?:[#>*_-]{1,6} ?)?)\[??)(?=[SsAaHhUD\[{])(?P<turn>"
    r"(?:[Ss]ystem|SYSTEM|[Aa]ssistant|ASSISTANT|[Hh]uman|HUMAN|User|USER|Developer|DEVELOPER)(?:\*\*|\])?:"
    r"|\[Result of \w+ \("  # the line above our own results,
    r"|\[round \d|\[[\d.,k]+ of [\d.,k]+ (?:tokens|model calls|tool calls|s\b)|\[\$[\d.]+ of \$"  # the standing line,
    r"|\[[\d,]+ of [\d,]+ characters left out here;"  # what stands for the rest of a long result,
    r'|\{\s*"(?:tool_calls|final)"\s*:))'  # a reply in the text dialect
)
# Of a JSON value as Python writes it: ASCII, no escape, nothing that a mark begins with, a colon only behind a key or a
# digit. A text with an apostrophe, or with a quotation mark, is looked at by itself.
_NOTHING_TO_SPELL = re.compile(r"(?:[^<\[\\:\"\x7f-\U0010ffff]|(?<=['0-9]):)*")


def show_with_note(text: str) -> str:
    """Return the text as a model may read it, with a note at its end where something is spelled."""
    shown, unseen, imitating = _spell_all(text)
    if not unseen and not imitating:
        return text
    kinds = ((unseen, "unseen characters"), (imitating, "marks of a conversation"))
    counted = ", ".join(f"{words}: {count:,}" for count, words in kinds if count)
    cure = "spelled by code point, as ⟦U+200B⟧: to match a file, write the character itself"
    return f"{shown}\n[{counted}; {cure}]"


def spell_hidden(text: str) -> str:
    """As `show_with_note`, without the note: for a text that is a part of another."""
    if text.isascii() and (text.isalnum() or text.isidentifier()):  # most parts are names, numbers and hashes
        return text
    return _spell_all(text)[0]


def shows_all(value: Any) -> bool:
    """Whether no text of this JSON value can have anything to spell, at one look: False says nothing."""
    return _NOTHING_TO_SPELL.fullmatch(repr(value)) is not None


def _spell_all(text: str) -> tuple[str, int, int]:
    unseen = imitating = 0

    def spell(found: re.Match[str]) -> str:
        nonlocal unseen
        kept = _IN_USE.match(found.string, found.start()) is not None
        times = len(found[0]) - kept
        unseen += times
        return found[1] * kept + (_spell_character(found[1], times) if times else "")

    if _HIDDEN.search(text) is not None:
        text = _RUN.sub(spell, text)
    if "\r" in text:
        text = _RETURN.sub(spell, text)
    with_newline = f"\n{text}"  # so that a turn at the very start begins a line too
    if _MARK.search(with_newline) is not None:
        with_newline, imitating = _MARK.subn(_spell_mark, with_newline)
        text = with_newline[1:]
    return text, unseen, imitating


def _spell_mark(found: re.Match[str]) -> str:
    turn = found["turn"]
    return (
        f"\n{found['lead']}{_spell_character(turn[0])}{turn[1:]}"
        if turn
        else f"{_spell_character(found[0][0])}{found[0][1:]}"
    )


def _spell_character(character: str, times: int = 1) -> str:
    return f"⟦U+{ord(character):X}{f'*{times}' if times > 1 else ''}⟧"
