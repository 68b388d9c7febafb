"""Make text from outside safe for a model to read: spell unseen characters, and markup that imitates a conversation.

Such a character, or the first one of such markup, is spelled as ⟦U+200B⟧. Everything else stays as it is, so that the
text can still be quoted exactly; a note says that something is spelled. Doing it twice changes nothing.
"""

from __future__ import annotations

import re

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
_SPELLED = re.compile(r"⟦U\+([0-9A-F]{1,6})(?:\*([1-9]\d{0,6}))?⟧")
_MAX_REPEAT = 1_000_000  # characters that one spelling may stand for


def show_with_note(text: str) -> str:
    """Return the text as a model may read it, with a note at its end where something is spelled."""
    shown, unseen, imitating = _spell_all(text)
    return f"{shown}\n{_spelling_note(unseen, imitating)}" if unseen or imitating else text


def spell_hidden(text: str) -> str:
    """As `show_with_note`, without the note: for a text that is a part of another."""
    if text.isascii() and (text.isalnum() or text.isidentifier()):  # most parts are names, numbers and hashes
        return text
    return _spell_all(text)[0]


def unspell(text: str) -> str:
    """Undo the spelling, to find in a file what a model quotes from a result."""
    return _SPELLED.sub(_unspell_match, text) if "⟦U+" in text else text


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


def _unspell_match(found: re.Match[str]) -> str:
    code, times = int(found[1], 16), int(found[2] or 1)
    return chr(code) * times if code <= 0x10FFFF and times <= _MAX_REPEAT else found[0]


def _spelling_note(unseen: int, imitating: int) -> str:
    kinds = ((unseen, "unseen characters"), (imitating, "marks of a conversation"))
    counted = ", ".join(f"{words}: {count:,}" for count, words in kinds if count)
    return f"[{counted}; spelled by code point, as ⟦U+200B⟧: to match a file, write the character itself]"
