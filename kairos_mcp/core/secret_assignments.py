"""Find the values that stand beside the name of a secret: until the line ends, quoted, in a block or on lines below.

    assignment  = NAME separator VALUE; secret_grammar.py has the words

Whether the value is a secret, secret_values.py decides. In settings a value may also lie in a record below its name,
whose members secret_records.py finds.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain, islice
from typing import Any

from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.secret_forms import MASK
from kairos_mcp.core.secret_placeholders import MAX_VALUE_CHARS, is_nothing
from kairos_mcp.core.secret_quotes import PREFIX, find_pieces, find_quoted
from kairos_mcp.core.secret_records import (
    Member,
    indent_of,
    list_members_below,
    list_members_in_list,
    list_values_below,
)
from kairos_mcp.core.secret_spans import (
    MAX_SECRET_BYTES,
    Span,
    line_end,
    line_start,
    spans_between,
    to_end,
    whole_line_end,
)
from kairos_mcp.core.secret_values import (
    STRONG,
    STRONG_NAME,
    WEAK,
    ends_as_word,
    is_plain_password,
    is_set_secret,
    is_setting,
    is_variable,
    looks_like_key,
)

MAX_JUDGED_MEMBERS = 10_000  # of one record; then the rest of it is masked unseen
BLANK = r"(?:[ \t]|\x{a0}|[\x{2000}-\x{200b}]|\x{202f}|\x{3000}|\x{feff})"  # also those that only look like one
SEPARATOR = r"(?:=>|[:?+]=|[:=\x{ff1a}\x{ff1d}\x{fe55}])"
_NAME = rf"(?:{STRONG}|{WEAK})(?:[_-]?[0-9]{{1,3}})?"
ASSIGNMENT = (  # up to the place where the value begins
    rf"(?i){_NAME}(?:[ \t]\([^()\r\n]{{1,40}}\))?\\{{0,2}}[\"'`]?\]?{BLANK}{{0,20}}"
    r"(?:[ \t]{1,4}string[ \t]{0,4}=|"  # a type of Go, then those behind a colon, of Rust with `&`
    r":([ \t]{0,3}(?:&(?:'[a-z]{1,20}[ \t])?)?"
    r"[A-Za-z_][\w.]{0,40}(?:\[[\w., ]{1,40}\])?(?:[ \t]?\|[ \t]?[\w.]{1,40}){0,3}[ \t]{0,3})=|"
    rf"{SEPARATOR})"
)
ESCAPED = (  # a name with a letter written as its number: `"pa\u0073sword"`
    r"[A-Za-z0-9_.-]*(?:\\{1,2}(?:u00|x)[2-7][0-9A-Fa-f][A-Za-z0-9_.-]*)+\\{0,2}[\"'`]?\]?[ \t]*[:=]"
)
EXPLICIT = rf"(?mi)^[ \t]*\?[ \t]+[\"']?[a-z0-9_.-]*({_NAME})[\"']?[ \t]*\r?\n[ \t]*:"  # a key of YAML, said to be one
_ESCAPE = re.compile(rb"\\{1,2}(?:u00|x)([2-7][0-9A-Fa-f])")
_SHORT_NAME = re.compile(r"(?:pass|pwd|psk|_auth)(?:[_-]?\d{1,3})?", re.IGNORECASE)
_ANY_NAME = re.compile(rf"(?:{STRONG}|{WEAK})(?:[_-]?\d{{1,3}})?$".encode(), re.IGNORECASE)
_COUNTS = re.compile(r"token|cookies?|_auth", re.IGNORECASE)
_SECRETS = re.compile(r"secrets|passwords|string_?data", re.IGNORECASE)  # names of records whose members are secrets
_LISTS_NAMES = re.compile(r"secrets|credentials?|cookies?", re.IGNORECASE)  # a list so called is one of names
_LIST_BEGINS = re.compile(rb"\[[ \t\r\n]*[\"']")
_LIST_ITEM = re.compile(rb"(?<=[\[,])[ \t\r\n]*([^\s,\[\]\"'][^,\[\]\"'\n]*)")
_NAME_CHARS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-"
_WIDE = {b"\x9a": b":", b"\x95": b":", b"\x9d": b"="}  # the last byte of a separator of full width
_OPENING = {b"}": b"{", b")": b"(", b"]": b"["}
_BLANKS = re.compile(rb"(?:[ \t]|\xc2\xa0|\xe2\x80[\x80-\x8b\xaf]|\xe3\x80\x80|\xef\xbb\xbf)*")
_CODE_VALUE = re.compile(rb"[^\s\"'\\`,;&<>(){}\[\]|$*]{1,800}")
_CODE_REST = re.compile(rb"[^\s\"'\\`,;&<>(){}\[\]|$*]*")
_BARE_VALUE = re.compile(rb"[^\s\"'`]{1,800}")
_BARE_REST = re.compile(rb"[^\s\"'`]*")
_PARAMETER = re.compile(rb"[^\s&\"'<>#]{0,800}")
_PARAMETER_REST = re.compile(rb"[^\s&\"'<>#]*")
_QUOTED_BELOW = re.compile(rb"\r?\n[ \t]{0,200}(?=[\"'])")
_QUOTED_NAME = re.compile(rb"(?:\"[^\"\r\n]{0,200}\"|'[^'\r\n]{0,200}')[ \t]*:(?:[ \t\r\n]|$)")  # of a member below
_BRACE_BELOW = re.compile(rb"\s{1,200}(?=\{(?!\{))")
_BRACKET = re.compile(rb"\([ \t]*(?:\r?\n[ \t]{0,200})?(?=[\"'])")
_CLOSED_BRACKET = re.compile(rb"[\"']{1,3}\s*\)")
_YAML_BLOCK = re.compile(rb"[|>][-+0-9]{0,2}[ \t]*(?:#[^\n]{0,2000})?\r?\n")
_YAML_TAGS = re.compile(rb"(?:[!&][^\s,\[\]{}]{0,200}[ \t]+)+(?=\S)|(?:[!&][^\s,\[\]{}]{0,200}[ \t]*)+(?=\r?\n)")
_YAML_REFERENCE = re.compile(
    rb"(?i)!(?:ref|sub|getatt|importvalue|findinmap|join|select|if|env|env_var|secret|reference|include\w*)\b"
)
_NO_VALUE = re.compile(rb"[ \t]*(?:#(?:[ \t#][^\n]{0,2000})?)?\r?\n")  # a value may follow on the lines below
_MEMBER_LINE = re.compile(
    rb"[ \t]*(?:-(?:[ \t]|\r?$)|[\"']?[\w./-]+[\"']?[ \t]*(?:[:=](?:[ \t\r\n]|$))|[{}\[\]<#])", re.M
)
_ITEM_VALUE = re.compile(rb"[ \t]*-[ \t]+(?=\S)")
_COMMENT = re.compile(rb"(?:#|;|//)(?:[ \t#;/].*|)", re.DOTALL)  # `#hunter` is a value
_PARTNER = re.compile(  # another member of a connection string
    rb"(?i)(?:^|[;\s?,])(?:server|data source|host|hostname|addr|address|user|user ?id|username|uid|database|dbname|db|"
    rb"initial catalog|port|endpoint|account ?name|defaultendpointsprotocol|sharedaccesskeyname|driver|sslmode)\s*="
)
_CONNECTION_VALUE = re.compile(rb"[^;\"'`\r\n]{1,400}")
_WORD_VALUE = re.compile(rb"[^;\s\"'`]{1,400}")
_NAMES_AGAIN = ("password", "passwd", "pass", "secret", "cookie", "cookies")  # values that only repeat what they are


@dataclass(frozen=True, slots=True)
class SecretName:
    """What a name says of its value. `starts`: where the name stands, with all that is joined to it."""

    name: str
    starts: int
    strong: bool  # it names a password
    variable: bool  # it is an environment variable that holds a secret whatever it is set to
    settings: bool  # the text is a file of settings

    @property
    def counts(self) -> bool:
        """Whether it may be the name of a number or a switch, as `max_token` and `smtp_auth`."""
        return _COUNTS.fullmatch(self.name) is not None


def read_name(text: bytes, start: int, end: int, settings: bool) -> SecretName | None:
    """Return what a name says, of which `start` to `end` matched. None: it only ends like the name of a secret."""
    before = text[max(0, start - 80) : start]
    prefix = before[len(before.rstrip(_NAME_CHARS)) :]
    return _judge_name(prefix, text[start:end], start - len(prefix), settings)


def _judge_name(prefix: bytes, matched: bytes, starts: int, settings: bool) -> SecretName | None:
    found = re.match(rb"[A-Za-z0-9_.-]*", matched)
    name = (found.group() if found else b"").decode()
    whole = prefix.decode("utf-8", "replace").lstrip(".-") + name
    if _SHORT_NAME.fullmatch(name):  # `compass` and `bypass` name no secret; `PGPASS` and `smtppass` do
        begins_word = not prefix[-1:].isalpha() or (matched[:1].isupper() and prefix[-1:].islower())
        last_word = re.split(r"[^A-Za-z0-9]", whole)[-1]
        if not begins_word and (not last_word.isupper() or ends_as_word(whole)):
            return None
    return SecretName(name, starts, STRONG_NAME.fullmatch(name) is not None, is_variable(whole), settings)


def judge_assignment(text: bytes, match: Any, settings: bool) -> Iterable[Span]:
    start, at = match.span()
    if text.startswith(MASK.encode(), start - 1) and not text[start - 2 : start - 1].isalnum():
        return ()  # the mask itself
    named = read_name(text, start, at, settings)
    if (typed := match.start(1)) >= 0 and (settings or not text[at : line_end(text, at)].strip()):
        at = typed  # no type, but a value that ends in `=`, as base64 does
    return () if named is None else find_value(text, at, named)


def judge_escaped(text: bytes, match: Any, settings: bool) -> Iterable[Span]:
    """Read a name in which letters are written as their numbers, as JSON, TOML and YAML may."""
    start, at = match.span()
    plain = _ESCAPE.sub(lambda found: bytes([int(found.group(1), 16)]), match.group()).rstrip(b" \t:=\\\"'`]")
    found = _ANY_NAME.search(plain[-80:])
    if found is None:
        return ()
    named = _judge_name(plain[-80:][: found.start()], found.group(), start, settings)
    return () if named is None else find_value(text, at, named)


def judge_explicit(text: bytes, match: Any, settings: bool) -> Iterable[Span]:
    named = read_name(text, match.start(1), match.end(1), settings) if settings else None
    return () if named is None else find_value(text, match.end(), named)


def find_value(text: bytes, at: int, named: SecretName) -> Iterable[Span]:
    """Find the secret behind a separator that ends at a place."""
    settings = named.settings
    separator = _WIDE.get(text[at - 1 : at], text[at - 1 : at])
    if separator == b"=" and text[at : at + 1] in (b"=", b"~"):  # a comparison
        at += 1
    begins = _skip_blanks(text, at)
    if begins > at and text[at:begins].count(b"\n"):
        return _quoted_below(text, at, begins, named) if settings else ()
    if settings and separator == b":" and (tags := _YAML_TAGS.match(text, begins)) is not None:
        if _YAML_REFERENCE.match(text, begins):
            return ()
        has_value = _NO_VALUE.match(text, tags.end()) is None
        if has_value or _next_deeper(text, named.starts, line_end(text, begins) + 1) is not None:
            begins = tags.end()
    if settings and separator == b":" and (block := _YAML_BLOCK.match(text, begins)) is not None:
        return _block_lines(text, named.starts, block.end())
    if settings and _NO_VALUE.match(text, begins):
        return _values_below(text, begins, named)
    if settings and text[begins : begins + 1] in (b"{", b"["):
        return _values_within(text, begins, named)
    opened = PREFIX.match(text, begins)
    if opened is not None and (settings or opened.group(2) != b"`" or separator == b"="):
        return _quoted_value(text, begins, named)
    if text[named.starts - 1 : named.starts] in (b"?", b"&"):
        return _parameter_value(text, begins, named)
    if settings:
        return _line_value(text, begins, named, folds=separator == b":")
    return _value_in_code(text, at, begins, named)


def _value_in_code(text: bytes, at: int, begins: int, named: SecretName) -> list[Span]:
    """Find a value in code or prose that is in brackets, or in no quotes."""
    if (bracket := _BRACKET.match(text, begins)) is not None:
        return _quoted_value(text, bracket.end(), named, in_brackets=True)
    if text[begins : begins + 1] == b"[" and not _LISTS_NAMES.fullmatch(named.name):
        return _quoted_items(text, begins, named)
    connection = _connection_value(text, begins, named) if text[at - 1 : at] == b"=" else []
    return connection or _bare_value(text, at, begins, named)


def _quoted_below(text: bytes, at: int, begins: int, named: SecretName) -> list[Span]:
    """Find what begins with a quote on the line below its name: a text, or a record by the name of its first member."""
    if _QUOTED_NAME.match(text, begins):
        return _member_values(text, at, named)
    return _quoted_value(text, begins, named)


def _quoted_value(text: bytes, begins: int, named: SecretName, *, in_brackets: bool = False) -> list[Span]:
    opened = PREFIX.match(text, begins)
    if opened is None:
        return []
    start, end = find_quoted(text, opened, named.settings)
    if start >= end or not is_quoted_secret(text, start, end, named):
        return []
    spans = [(start, end), *find_pieces(text, end, in_brackets=in_brackets)]
    return spans if not in_brackets or _CLOSED_BRACKET.match(text, spans[-1][1]) else []  # a tuple


def _quoted_items(text: bytes, begins: int, named: SecretName) -> list[Span]:
    """Find the secrets in a list of quoted texts in code."""
    end, at, spans = text.find(b"]", begins, begins + MAX_SECRET_BYTES), begins + 1, list[Span]()
    while _LIST_BEGINS.match(text, begins) and (opened := PREFIX.search(text, at, max(end, at))) is not None:
        start, at = find_quoted(text, opened, settings=False)
        spans.append((start, at if start < at and is_quoted_secret(text, start, at, named) else start))
        at += 1
    return spans


def is_quoted_secret(text: bytes, start: int, end: int, named: SecretName) -> bool:
    """Whether a quoted text beside a name is a secret."""
    value = text[start:end].decode("utf-8", "replace")
    if named.settings:
        return is_setting(value, counts=named.counts)
    if text[end : end + 1] in (b"", b"\r", b"\n") and not named.variable:
        return False  # the quote is not closed: it is one of the text around
    if named.variable:
        return is_set_secret(value, quoted=True)
    called = text[end + 1 : end + 2] in (b"(", b"[", b"{", b"<", b"$")
    plain = named.strong and "\n" not in value and is_plain_password(value)
    return not called and (plain or looks_like_key(value, quoted=True))


def _parameter_value(text: bytes, begins: int, named: SecretName) -> list[Span]:
    """Find the value of a parameter in an address."""
    found = _PARAMETER.match(text, begins)
    value = "" if found is None else found.group().decode("utf-8", "replace")
    if named.settings:
        secret = is_setting(value, counts=named.counts)
    else:
        secret = (named.strong and is_plain_password(value)) or looks_like_key(value, quoted=False)
    return [to_end(text, found.span(), _PARAMETER_REST)] if found is not None and secret else []


def _line_value(text: bytes, begins: int, named: SecretName, *, folds: bool) -> list[Span]:
    """Find a value without quotes in settings: what stands until the line ends, and the lines that it goes on in."""
    end = line_end(text, begins)
    value = text[begins:end].rstrip()
    value = value.removesuffix(b",").removesuffix(b";")
    while value[-1:] in (b"}", b")", b"]") and value.count(value[-1:]) > value.count(_OPENING[value[-1:]]):
        value = value[:-1].rstrip()
    if _COMMENT.fullmatch(value) or not is_setting(value.decode("utf-8", "replace"), counts=named.counts):
        return []
    if end - begins >= MAX_SECRET_BYTES:  # so much of it was looked at; all of it is the value
        end = whole_line_end(text, end)
        value = text[begins:end].rstrip()
    spans = [(begins, begins + len(value))]
    while value.endswith(b"\\") and end < len(text):
        begins, end = end + 1, whole_line_end(text, end + 1)
        value = text[begins:end].rstrip()
        spans.append((begins, end))
    return [*spans, *_folded_lines(text, named.starts, end + 1)] if folds and len(spans) == 1 else spans


def _folded_lines(text: bytes, name_at: int, at: int) -> Iterator[Span]:
    """Yield the lines in which a YAML value without quotes goes on: deeper ones that are no members themselves."""
    for start, end in _block_lines(text, name_at, at):
        if not text[start:end].strip() or _MEMBER_LINE.match(text, start):
            return
        yield start, end


def _values_below(text: bytes, at: int, named: SecretName) -> Iterable[Span]:
    """Find a value that begins on the line below its name: a plain text, the items of a list, or a record."""
    if (opened := _BRACE_BELOW.match(text, at)) is not None:
        return _values_within(text, opened.end(), named)
    end = line_end(text, at)
    lines = _folded_lines(text, named.starts, end + 1)
    if first := list(islice(lines, MAX_VALUE_CHARS)):  # of so many lines a longer value is made, which is a secret
        value = b" ".join(text[start:end].strip() for start, end in first).decode("utf-8", "replace")
        return chain(first, lines) if is_setting(value, counts=named.counts) else ()
    below = _next_deeper(text, named.starts, end + 1)
    if below is None:
        return ()
    if _ITEM_VALUE.match(text, below) is not None and not _LISTS_NAMES.fullmatch(named.name):
        return _item_values(text, below, named)
    return _member_values(text, at, named)


def _item_values(text: bytes, at: int, named: SecretName) -> Iterator[Span]:
    """Yield the values of a list of plain ones that begins at a line."""
    for start, stop in _block_lines(text, named.starts, at):
        if (item := _ITEM_VALUE.match(text, start, stop)) is None or _MEMBER_LINE.match(text, item.end()):
            return
        if PREFIX.match(text, item.end()) is not None:
            yield from _quoted_value(text, item.end(), named)
        else:
            yield from _line_value(text, item.end(), named, folds=False)


def _values_within(text: bytes, begins: int, named: SecretName) -> list[Span]:
    """Find the values of a record or a list that begins behind the separator."""
    if text[begins : begins + 1] == b"{":
        is_record = text[begins : begins + 2] != b"{{" and any(True for _ in list_members_below(text, begins))
        return _member_values(text, begins, named) if is_record else _line_value(text, begins, named, folds=False)
    if text.startswith(MASK.encode(), begins):
        return _line_value(text, begins, named, folds=False)
    if _SECRETS.fullmatch(named.name) and any(True for _ in list_members_in_list(text, begins)):
        return list(find_members(text, list_members_in_list(text, begins), named))
    end, last = text.find(b"]", begins, begins + MAX_SECRET_BYTES), begins + MAX_SECRET_BYTES
    if end < 0 and last < len(text) and _LIST_BEGINS.match(text, begins):
        end = last  # a list of which so much is looked at
    if end < 0:
        return _line_value(text, begins, named, folds=False)
    if _LISTS_NAMES.fullmatch(named.name):
        return []
    quoted, at = list[Span](), begins + 1
    while (opened := PREFIX.search(text, at, end)) is not None:
        start, at = find_quoted(text, opened, settings=False)
        quoted.append((start, at))
        at += 1
    plain = (found.span(1) for found in _LIST_ITEM.finditer(text, begins, end))
    whole = (item for item in plain if item[1] < last)  # none that is cut: the rest may be a name
    spans = sorted((*quoted, *(item for item in whole if next(spans_between(quoted, *item), None) is None)))
    # What is no secret is an empty span: each value that was judged counts (MAX_JUDGED).
    return [
        (start, stop if is_setting(text[start:stop].decode("utf-8", "replace"), counts=named.counts) else start)
        for start, stop in spans
    ]


def _member_values(text: bytes, at: int, named: SecretName) -> list[Span]:
    """Find the secrets in a record that has the name of a secret: its value or default; each member of `secrets`."""
    members = list_members_below if _SECRETS.fullmatch(named.name) else list_values_below
    return list(find_members(text, members(text, at), named))


def find_members(text: bytes, members: Iterator[Member], named: SecretName) -> Iterator[Span]:
    """Yield the secrets in the members of a record, as if each had the name itself.

    What lies behind MAX_JUDGED_MEMBERS is one span, up to the end of the last one.
    """
    for _, starts, behind in islice(members, MAX_JUDGED_MEMBERS):
        yield from find_member(text, starts, behind, named)
    if (first := next(members, None)) is not None:
        _, starts, behind = deque(chain((first,), members), maxlen=1).pop()
        yield first[1], max((behind, *(end for _, end in find_member(text, starts, behind, named))))


def find_member(text: bytes, starts: int, behind: int, named: SecretName) -> Iterable[Span]:
    """Find the secret in a member of a record, as if it had the name itself. It holds no record of its own."""
    begins = _skip_blanks(text, behind)
    if text[begins : begins + 1] in (b"{", b"["):
        return ()
    if named.settings and _NO_VALUE.match(text, begins):
        return list(_folded_lines(text, starts, line_end(text, begins) + 1))
    return find_value(text, behind, replace(named, starts=starts))


def _bare_value(text: bytes, after: int, begins: int, named: SecretName) -> list[Span]:
    """Find a value without quotes in code or prose: it has to look like a key, or be what a variable is set to."""
    if named.variable and (found := _BARE_VALUE.match(text, begins)) is not None:
        value = found.group().decode("utf-8", "replace")
        alone = text[after - 1 : after] == b":" and begins > after and _is_alone(text, named.starts, found.end())
        tight = text[after - 1 : after] == b"=" and begins == after
        if (tight or alone) and is_set_secret(value) and value.casefold() not in _NAMES_AGAIN:
            return [to_end(text, found.span(), _BARE_REST)]
    found = _CODE_VALUE.match(text, begins)
    if found is None:
        return []
    called = text[found.end() : found.end() + 1] in (b"(", b"[", b"{", b"<", b"$")
    value = found.group().decode("utf-8", "replace")
    if called or is_nothing(value):
        return []
    plain = named.strong and _is_alone(text, named.starts, found.end()) and is_plain_password(value, quoted=False)
    is_secret = plain or looks_like_key(value, quoted=False)
    return [to_end(text, found.span(), _CODE_REST)] if is_secret else []


def _connection_value(text: bytes, begins: int, named: SecretName) -> list[Span]:
    """Find the value of a member of a connection string in code: `"Server=x;Password=VALUE;"`.

    It stands in quotes, beside another member that such texts have, or alone from its quote to a semicolon.
    """
    first = max(line_start(text, named.starts), named.starts - MAX_SECRET_BYTES // 32)
    before = re.split(rb"[\"'`]", text[first : named.starts])
    found = _CONNECTION_VALUE.match(text, begins)
    if len(before) < 2 or found is None:
        return []
    if text[found.end() : found.end() + 1] != b";" and b";" not in before[-1]:
        found = _WORD_VALUE.match(text, begins) or found
    behind = re.split(rb"[\"'`\r\n]", text[found.end() : found.end() + MAX_SECRET_BYTES // 32], maxsplit=1)[0]
    whole = not before[-1] and behind == b";"
    if not whole and not _PARTNER.search(before[-1]) and not _PARTNER.search(behind):
        return []
    value = found.group().decode("utf-8", "replace")
    is_secret = is_plain_password(value) if named.strong else looks_like_key(value, quoted=True)
    return [found.span()] if is_secret or looks_like_key(value, quoted=True) else []


def _block_lines(text: bytes, name_at: int, at: int) -> Iterator[Span]:
    """Yield the lines of an indented YAML block, which are deeper than the line of its name."""
    depth = indent_of(text, line_start(text, name_at))
    while at < len(text):
        end = whole_line_end(text, at)
        line = text[at : at + MAX_SECRET_BYTES] if end - at > MAX_SECRET_BYTES else text[at:end]
        if line.strip() and len(line) - len(line.lstrip(b" \t")) <= depth:
            return
        yield at, end
        at = end + 1


def _next_deeper(text: bytes, name_at: int, at: int) -> int | None:
    """Return where the next line starts that is neither empty nor a comment.

    None: it is neither deeper than that of the name nor a list in its column.
    """
    depth = indent_of(text, line_start(text, name_at))
    while at < len(text):
        end = line_end(text, at)
        if (line := text[at:end]).strip() and not line.lstrip().startswith(b"#"):
            inside = len(line) - len(line.lstrip(b" \t"))
            return at if inside > depth or (inside == depth and _ITEM_VALUE.match(line)) else None
        at = end + 1
    return None


def _is_alone(text: bytes, name_at: int, end: int) -> bool:
    """Whether nothing but this setting stands in its line."""
    before = text[line_start(text, name_at) : name_at]
    behind = text[end : line_end(text, end)].strip()
    return before.strip() in (b"", b"-") and (not behind or behind.startswith(b"#"))


def _skip_blanks(text: bytes, at: int) -> int:
    """Skip blanks, and the end of a line where a quoted text begins in the next."""
    blanks = _BLANKS.match(text, at)
    at = at if blanks is None else blanks.end()
    found = _QUOTED_BELOW.match(text, at)
    return found.end() if found is not None else at
