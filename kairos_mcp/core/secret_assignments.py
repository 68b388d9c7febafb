"""Find the value of an assignment: where it begins and ends, quoted, over several lines, or until its line ends.

    assignment  = NAME separator VALUE; secret_grammar.py has the words

Whether the value is a secret, secret_values.py decides.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

from kairos_mcp.core.secret_spans import MAX_SECRET_BYTES, Span, line_end, line_start
from kairos_mcp.core.secret_values import (
    STRONG,
    STRONG_NAME,
    WEAK,
    is_label,
    is_nothing,
    is_plain_password,
    is_set_secret,
    is_setting,
    is_variable,
    looks_like_key,
    repeats_name,
)

MAX_VALUE_LINES = 60  # of a value that is quoted over several lines, or an indented block
ASSIGNMENT = (  # up to the place where the value begins
    rf"(?i)(?:{STRONG}|{WEAK})(?:[_-]?[0-9]{{1,3}})?\\{{0,2}}[\"'`]?\]?[ \t]{{0,20}}"
    r"(?::[ \t]{0,3}[A-Za-z_][\w.]{0,40}(?:\[[\w., ]{1,40}\])?(?:[ \t]?\|[ \t]?[\w.]{1,40}){0,3}[ \t]{0,3}=|=>|:=|[:=])"
)
_SHORT_NAME = re.compile(r"(?:pass|pwd|_auth)(?:[_-]?\d{1,3})?", re.IGNORECASE)
_NAME_CHARS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-"
PREFIX = re.compile(rb"(?:[bBrRfFuU$@]{1,2})?(\\{0,2})(\"\"\"|'''|[\"'`])")
_OPENING = {b"}": b"{", b")": b"(", b"]": b"["}
_CODE_VALUE = re.compile(rb"[^\s\"'\\`,;&<>(){}\[\]|$*]{1,800}")
_BARE_VALUE = re.compile(rb"[^\s\"'`]{1,800}")
_PARAMETER = re.compile(rb"[^\s&\"'<>#]{0,800}")
_QUOTED_BELOW = re.compile(rb"\r?\n[ \t]{0,200}(?=[\"'])")
_YAML_BLOCK = re.compile(rb"[|>][-+0-9]{0,2}[ \t]*(?:#[^\n]*)?\r?\n")


def judge_assignment(text: bytes, match: Any, settings: bool) -> Iterable[Span]:
    start, at = match.span()
    before = text[max(0, start - 80) : start]
    prefix = before[len(before.rstrip(_NAME_CHARS)) :]
    name = _name_in(match.group())
    if _SHORT_NAME.fullmatch(name) and not _begins_word(prefix, text[start : start + 1]):
        return ()
    strong = STRONG_NAME.fullmatch(name) is not None
    variable = is_variable((prefix + name.encode()).decode("utf-8", "replace").lstrip(".-"))
    separator = text[at - 1 : at]
    if separator == b"=" and text[at : at + 1] in (b"=", b"~"):  # a comparison
        at += 1
    begins = _skip_blanks(text, at)
    if begins > at and text[at:begins].count(b"\n"):
        return _quoted_value(text, begins, name, strong, variable, settings) if settings else ()
    if settings and separator == b":" and (block := _YAML_BLOCK.match(text, begins)) is not None:
        return _block_lines(text, start, block.end())
    opened = PREFIX.match(text, begins)
    if opened is not None and (settings or opened.group(2) != b"`" or separator == b"="):
        return _quoted_value(text, begins, name, strong, variable, settings)
    is_parameter = text[start - len(prefix) - 1 : start - len(prefix)] in (b"?", b"&")
    if settings:
        return _line_value(text, begins, name, strong, is_parameter)
    return _bare_value(text, start - len(prefix), at, begins, name, strong, variable)


def _quoted_value(text: bytes, begins: int, name: str, strong: bool, variable: bool, settings: bool) -> Iterable[Span]:
    opened = PREFIX.match(text, begins)
    if opened is None:
        return ()
    start, end = find_quoted(text, opened, settings)
    value = text[start:end].decode("utf-8", "replace")
    if settings:
        secret = is_setting(value, strong=strong)
    elif text[end : end + 1] in (b"", b"\r", b"\n") and not variable:
        return ()  # the quote is not closed: it is one of the text around
    elif variable:
        secret = is_set_secret(value) and not is_label(value)
    else:
        called = text[end + 1 : end + 2] in (b"(", b"[", b"{", b"<", b"$")
        plain = strong and "\n" not in value and is_plain_password(value)
        secret = not called and (plain or looks_like_key(value, quoted=True))
    return ((start, end),) if secret and start < end else ()


def _line_value(text: bytes, begins: int, name: str, strong: bool, is_parameter: bool) -> Iterable[Span]:
    """Find a value without quotes in settings: what stands until the line ends, and the lines that it goes on in."""
    if is_parameter:
        found = _PARAMETER.match(text, begins)
        return (found.span(),) if found and is_setting(found.group().decode("utf-8", "replace"), strong=strong) else ()
    end = line_end(text, begins)
    value = text[begins:end].rstrip()
    value = value.removesuffix(b",").removesuffix(b";")
    while value[-1:] in (b"}", b")", b"]") and value.count(value[-1:]) > value.count(_OPENING[value[-1:]]):
        value = value[:-1].rstrip()
    if value.startswith((b"#", b";", b"//")) or not is_setting(value.decode("utf-8", "replace"), strong=strong):
        return ()
    spans = [(begins, begins + len(value))]
    while value.endswith(b"\\") and len(spans) < MAX_VALUE_LINES and end < len(text):
        begins, end = end + 1, line_end(text, end + 1)
        value = text[begins:end].rstrip()
        spans.append((begins, end))
    return spans


def _bare_value(
    text: bytes, name_at: int, after: int, begins: int, name: str, strong: bool, variable: bool
) -> Iterable[Span]:
    """Find a value without quotes in code or prose: it has to look like a key, or be what a variable is set to."""
    if variable and (found := _BARE_VALUE.match(text, begins)) is not None:
        value = found.group().decode("utf-8", "replace")
        alone = text[after - 1 : after] == b":" and begins > after and _is_alone(text, name_at, found.end())
        tight = text[after - 1 : after] == b"=" and begins == after
        if (tight or alone) and is_set_secret(value) and not repeats_name(value):
            return (found.span(),)
    found = _CODE_VALUE.match(text, begins)
    if found is None:
        return ()
    called = text[found.end() : found.end() + 1] in (b"(", b"[", b"{", b"<", b"$")
    value = found.group().decode("utf-8", "replace")
    if called or is_nothing(value):
        return ()
    plain = strong and _is_alone(text, name_at, found.end()) and is_plain_password(value)
    return (found.span(),) if plain or looks_like_key(value, quoted=False) else ()


def _block_lines(text: bytes, name_at: int, at: int) -> Iterator[Span]:
    """Yield the lines of an indented YAML block, which are deeper than the line of its name."""
    line = text[line_start(text, name_at) : name_at]
    depth = len(line) - len(line.lstrip(b" "))
    for _ in range(MAX_VALUE_LINES):
        end = line_end(text, at)
        line = text[at:end]
        if (line.strip() and len(line) - len(line.lstrip(b" ")) <= depth) or at >= len(text):
            return
        yield at, end
        at = end + 1


def find_quoted(text: bytes, opened: Any, settings: bool) -> Span:
    """Return where a quoted text stands that begins here; where its quote is not closed, the rest of its line."""
    escape, quote = opened.group(1), opened.group(2)
    start = opened.end()
    ends = line_end(text, start)
    has_lines = len(quote) == 3 or (settings and quote != b"`")
    limit = start + MAX_SECRET_BYTES if has_lines else ends
    closed = _closing(escape + quote, quote != b"'" or not settings).match(text, start, limit)
    if closed is None or (closed.start(1) > ends and text.count(b"\n", ends, closed.start(1)) > MAX_VALUE_LINES):
        return start, ends
    return start, closed.start(1)


@cache
def _closing(quote: bytes, escapes: bool) -> re.Pattern[bytes]:
    """A pattern of what stands up to a closing quote, the one group."""
    skipped = rb"(?:\\.|(?!\\).)*?" if escapes and not quote.startswith(b"\\") else rb".*?"
    return re.compile(skipped + rb"(" + re.escape(quote) + rb")", re.DOTALL)


def _is_alone(text: bytes, name_at: int, end: int) -> bool:
    """Whether nothing but this setting stands in its line."""
    before = text[line_start(text, name_at) : name_at]
    behind = text[end : line_end(text, end)].strip()
    return before.strip() in (b"", b"-") and (not behind or behind.startswith(b"#"))


def _begins_word(prefix: bytes, first: bytes) -> bool:
    """Whether a short name, as `pass`, begins a word: `compass` and `bypass` name no secret."""
    return not prefix or not prefix[-1:].isalpha() or (first.isupper() and prefix[-1:].islower())


def _name_in(matched: bytes) -> str:
    found = re.match(rb"[A-Za-z0-9_-]*", matched)
    return (found.group() if found else b"").decode()


def _skip_blanks(text: bytes, at: int) -> int:
    """Skip blanks, and the end of a line where a quoted text begins in the next."""
    while text[at : at + 1] in (b" ", b"\t"):
        at += 1
    found = _QUOTED_BELOW.match(text, at)
    return found.end() if found is not None else at
