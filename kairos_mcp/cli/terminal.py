"""Print to the terminal: results to stdout, notes to stderr. Text from outside cannot control the terminal."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any, NamedTuple, TextIO

from kairos_mcp.cli.escape import ESCAPES, MARK, escape_control
from kairos_mcp.cli.markdown import render_markdown
from kairos_mcp.core.quick_dataclass import dataclass

_JSON_ESCAPES = {code: f"\\u{code:04x}" for code in ESCAPES if code > 126}  # JSON itself escapes those below 32

_COLOURS = {"+": 32, "-": 31, "@": 36, "!": 33}  # by the first character of a diff's line; ! begins a remark on it


@dataclass(frozen=True, slots=True)
class DiffLine:
    """A line of a preview: printed indented, and in colour where the terminal shows colours."""

    text: str


@dataclass(frozen=True, slots=True)
class Prose:
    """Text to be read, not to be pasted: on a terminal its lines end between words, and go on after `margin` spaces.

    `has_times`: times of ours in it, which are in UTC, are said on a terminal in words and in its time zone.
    """

    text: str
    margin: int = 0
    has_times: bool = False


@dataclass(frozen=True, slots=True)
class Reply:
    """What a model said: on a terminal its Markdown is rendered."""

    text: str


@dataclass(frozen=True, slots=True)
class QuestionLine:
    """A line of a question to the person. It begins with a mark that no text from outside can have: a model could else
    print the question itself, and have it answered before there is one."""

    line: DiffLine | Prose | str


Line = str | DiffLine | Prose | Reply | QuestionLine


def emit(value: Any, text: Iterable[Line], *, as_json: bool) -> None:
    """Print a command's result: `value` as one JSON document, or the lines of `text`, which are made only then."""
    if as_json:
        print_json(value)
    else:
        for line in text:
            print_line(line)


def print_line(line: Line) -> None:
    """Print a line of the result to stdout."""
    _print(_render(line, sys.stdout), sys.stdout)


def print_json(value: Any, *, is_to_be_edited: bool = False) -> None:
    """Print the result to stdout as one JSON document, in ASCII: JSON escapes what could control the terminal. In one
    that is to be edited letters stay as they are."""
    text = json.dumps(value, indent=2, ensure_ascii=not is_to_be_edited)
    _print(text.translate(_JSON_ESCAPES), sys.stdout)


def print_note(line: Line) -> None:
    """Print something that is not the result to stderr."""
    _print(_render(line, sys.stderr), sys.stderr)


def diff_lines(preview: str) -> Iterator[DiffLine]:
    """The lines of a preview, all of them."""
    return map(DiffLine, preview.removesuffix("\n").split("\n"))


def one_line(text: str, width: int) -> str:
    """The text on one line of at most `width` characters; … ends it where some were left out."""
    from kairos_mcp.core.text import truncate  # here: `serve` prints notes, but no long texts

    return truncate(" ".join(escape_control(text).split()), width - 1)


def columns_of(stream: TextIO) -> int | None:
    """How many characters fit on a line of this terminal; None if it is no terminal, or does not say."""
    try:
        return os.get_terminal_size(stream.fileno()).columns or None
    except (OSError, ValueError):
        return None


def rendered_columns(stream: TextIO) -> int | None:
    """How wide Markdown is rendered; None where the stream shows texts as they are."""
    return columns_of(stream) if stream.isatty() and os.environ.get("TERM") != "dumb" else None


# With the "at" before it: "at today" is no English.
_TIME = re.compile(r"(?:\bat )?(\d{4}-\d\d-\d\dT\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:\d\d))")
_NAMED_DAYS = {-1: "yesterday", 0: "today", 1: "tomorrow"}
_WEEK = 7


def when_words(moment: str) -> str:
    """Say a moment of ISO 8601 in the local time zone: `tomorrow 09:00`, `Mon 09:00`, `2026-12-24 09:00`."""
    at = datetime.fromisoformat(moment).astimezone()
    days = (at.date() - datetime.now(at.tzinfo).date()).days
    weekday = f"{at:%a}" if 0 < days < _WEEK else f"{at:%Y-%m-%d}"
    return f"{_NAMED_DAYS.get(days, weekday)} {at:%H:%M}"


class Signs(NamedTuple):
    """What stands before a thing that is good, one to know of, and one that is bad; each as wide as the others."""

    good: str
    note: str
    bad: str


def signs_of(stream: TextIO, plain: Signs) -> Signs:
    """Return check marks where the stream is a terminal that shows them, else the plain signs."""
    drawn = Signs(*(sign.ljust(len(plain.good)) for sign in ("\u2713", "!", "\u2717")))
    if not stream.isatty() or os.environ.get("TERM") == "dumb":
        return plain
    try:
        "".join(drawn).encode(stream.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return plain
    return drawn


def mark(text: str, stream: TextIO) -> str:
    """Put the mark of a question before each line of a text, whose control characters have been spelled out."""
    before = f"\x1b[1;33m{MARK}\x1b[0m" if _shows_colours(stream) else MARK
    return "\n".join(f"{before}{line}" for line in text.split("\n"))


def fold(text: str, columns: int | None, margin: int = 0) -> str:
    """The text with line breaks between words, so that no line is longer, if no word is. A command in backticks stays
    whole, so that it can be copied. A line goes on below where it began, or after `margin` spaces."""
    if columns is None:
        return text
    return "\n".join(part for line in text.split("\n") for part in _fold_line(line, columns, margin))


def _fold_line(line: str, columns: int, least: int) -> Iterator[str]:
    margin = " " * min(max(least, len(line) - len(line.lstrip())), columns // 2)
    current = ""
    for word in _WORDS.findall(line):
        if current.strip() and not word.isspace() and len(current) + len(word) > columns:
            yield current.rstrip()
            current = margin
        current += word
    yield current.rstrip()


_WORDS = re.compile(r"\s+|(?:`[^`]*`|\S)+")


def _render(line: Line, stream: TextIO) -> str:
    """A line as this stream shows it."""
    match line:
        case str():
            return escape_control(line)
        case Prose(text, margin, has_times):
            told = _TIME.sub(lambda time: when_words(time[1]), text) if has_times and stream.isatty() else text
            return fold(escape_control(told), columns_of(stream), margin)
        case Reply(text) if (columns := rendered_columns(stream)) is not None:
            return render_markdown(escape_control(text), columns).rstrip("\n")
        case Reply(text):
            return escape_control(text)
        case QuestionLine(Prose(text, margin)):
            columns = columns_of(stream)
            return mark(fold(escape_control(text), columns and columns - len(MARK), margin), stream)
        case QuestionLine(inner):
            return mark(_render(inner, stream), stream)
        case DiffLine(text):
            colour = _COLOURS.get(text[:1]) if _shows_colours(stream) else None
            escaped = escape_control(text)
            return f"  {escaped}" if colour is None else f"  \x1b[{colour}m{escaped}\x1b[0m"


def _shows_colours(stream: TextIO) -> bool:
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _print(text: str, stream: TextIO) -> None:
    print(text, file=stream)
