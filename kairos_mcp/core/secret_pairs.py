"""Find secrets whose name and value are two members, attributes, arguments or elements beside each other.

pair      = `name: NAME` and `value: VALUE` of one record, in either order (Kubernetes, compose, ECS)
element   = `<NAME>VALUE</NAME>`
tag       = `<add key="NAME" value="VALUE"/>`, `<string name="NAME">VALUE</string>`
elements  = `<name>NAME</name><value>VALUE</value>`
arguments = `define('NAME', 'VALUE')`
block     = `variable "NAME" { default = VALUE }`
data      = the members of `data` in a Kubernetes Secret
table     = all members of a table `[secrets]` of TOML or INI
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from itertools import islice
from typing import Any

from kairos_mcp.core.secret_assignments import (
    MAX_JUDGED_MEMBERS,
    find_member,
    find_members,
    find_value,
    is_quoted_secret,
    read_name,
)
from kairos_mcp.core.secret_quotes import PREFIX, find_pieces, find_quoted
from kairos_mcp.core.secret_records import (
    REACH_BYTES,
    indent_of,
    list_members_below,
    list_records_around,
    list_values_around,
    list_values_below,
)
from kairos_mcp.core.secret_spans import MAX_SECRET_BYTES, Span, line_start
from kairos_mcp.core.secret_values import STRONG, WEAK, is_setting, looks_like_key

_END = rf"({STRONG}|{WEAK})(?:[_-]?[0-9]{{1,3}})?"
_NAME = rf"[A-Za-z0-9_.:-]*{_END}"
_KEYS = r"name|key|id|k|n|property|variable|env|option|setting|field|parameter(?:_?(?:name|key))?|secret_?id"
PAIR = (
    rf"(?i)\b(?:{_KEYS})\\{{0,2}}[\"']?[ \t]{{0,20}}(?:=>|[:=])[ \t]{{0,20}}(?:\\{{0,2}}[\"'])?"
    rf"{_NAME}(?:\\{{0,2}}[\"'])?[ \t]*(?:[,;}}\r\n#]|$)"
)
TAG = rf"(?i)<[A-Za-z][^<>]*\s(?:{_KEYS})\s*=\s*[\"']{_NAME}[\"'][^<>]*>"
ELEMENT = rf"(?i)<{_NAME}(?:\s[^<>]*)?>\s*(?:<!\[CDATA\[)?([^<>]+)(?:\]\]>\s*)?</"
ELEMENTS = rf"(?i)<(?:{_KEYS})>\s*{_NAME}\s*</[a-z]+>\s*<[a-z]+>([^<>]+)</"
ARGUMENTS = rf"(?i)[\"']{_NAME}[\"']\s*,\s*(?:default\s*=\s*)?[\"']"
BLOCK = (
    rf"(?i)\b(?:variable|output|param(?:eter)?|secret|local|property|setting)[ \t]+"
    rf"\"?{_NAME}\"?[ \t]*(?:\{{|string[ \t]*=)"
)
DATA = r"(?m)^[ \t]*(?:-[ \t]{1,20})?\"?kind\"?[ \t]*:[ \t]*\"?Secret\"?[ \t]*,?[ \t]*\r?$"
DATA_IN_BRACES = r"\"kind\"[ \t\r\n]*:[ \t\r\n]*\"Secret\""
TABLE = (
    r"(?mi)^[ \t]*\[{1,2}[ \t]*(?:[\w.\"'-]*\.)?[\"']?(secrets|passwords)[\"']?(?:\.[\w.\"'-]+)?[ \t]*\]{1,2}"
    r"[ \t]*(?:[#;][^\r\n]*)?\r?$"
)
_TABLE_END = re.compile(rb"(?m)^[ \t]*\[")
_TABLE_MEMBER = re.compile(rb"(?m)^[ \t]*([^\s=:#;\[\]{}][^=:\r\n]{0,200}?)[ \t]*[=:]")
_DATA_MEMBER = re.compile(rb"\"(?:data|stringData)\"[ \t\r\n]*:[ \t\r\n]*$")
_DATA = re.compile(rb"(?m)^[ \t]*(?:-[ \t]{1,20})?\"?(?:data|stringData)\"?[ \t]*:[ \t]*(?=\{|\r?$)")
_MAX_DATA = 2  # `data` and `stringData`, before the kind and behind it
_DOCUMENT_END = re.compile(rb"(?m)^---")
_ATTRIBUTE = re.compile(rb"(?i)\s(?:value|default|defaultvalue|content)\s*=\s*(\"([^\"]*)\"|'([^']*)')")
_CONTENT = re.compile(rb"(?i)\s*(?:<value[^<>]*>)?\s*(?:<!\[CDATA\[)?([^<>\]]+)")
_SETS = re.compile(rb"(?i)\b(?:define|set\w*|put\w*|add\w*|with\w*)\s*\([^()\r\n]*$")
_GETS = re.compile(rb"(?i)\b(?:get\w*|env\w*|config)\s*\([^()\r\n]*$")  # with a default
_AROUND = {b"(": b")", b"[": b"]", b"{": b"}"}


def judge_pair(text: bytes, match: Any, settings: bool) -> Iterable[Span]:
    """Read the `value` of the record in which a member says the name."""
    named = read_name(text, match.start(1), match.end(1), settings)
    if named is None:
        return []
    found = list_values_around(text, match.start())
    return [span for _, starts, behind in found for span in find_member(text, starts, behind, named)]


def judge_tag(text: bytes, match: Any, settings: bool) -> Iterable[Span]:
    """Read another attribute of the tag, or what the element holds."""
    start, end = match.span()
    if (attribute := _ATTRIBUTE.search(text, start, end)) is not None:
        span = attribute.span(2 if attribute.group(2) is not None else 3)
    elif text[end - 2 : end - 1] != b"/" and (content := _CONTENT.match(text, end, end + REACH_BYTES)) is not None:
        span = content.span(1)
    else:
        return ()
    return (span,) if _is_text_secret(text, span, settings) else ()


def judge_element(text: bytes, match: Any, settings: bool) -> Iterable[Span]:
    """Read an element that has the name itself, `<dbPassword>`."""
    named = read_name(text, match.start(1), match.end(1), settings)
    start, end = match.span(2)
    end = start + len(text[start:end].removesuffix(b"]]"))
    return ((start, end),) if named is not None and _is_text_secret(text, (start, end), settings) else ()


def judge_elements(text: bytes, match: Any, settings: bool) -> Iterable[Span]:
    """Read the element that follows one that says the name."""
    return (match.span(2),) if _is_text_secret(text, match.span(2), settings) else ()


def judge_arguments(text: bytes, match: Any, settings: bool) -> Iterable[Span]:
    """Read the text that follows a name as an argument.

    Beside a call that sets something any value counts; for a variable the default of a call that reads it does too, and
    what stands with it in brackets. In a longer list of names a value has to look like a key.
    """
    named = read_name(text, match.start(1), match.end(1), settings)
    opened = PREFIX.match(text, match.end() - 1)
    if named is None or opened is None:
        return ()
    start, end = find_quoted(text, opened, settings=False)
    before = text[max(line_start(text, match.start()), match.start() - 80) : match.start()]
    behind = text[end + 1 : end + 40].lstrip()[:1]
    value = text[start:end].decode("utf-8", "replace")
    is_pair = _AROUND.get(before[-1:]) == behind and not value.replace("_", "").isupper()
    if behind in (b":", b"="):
        secret = False  # the name of the next member
    elif _SETS.search(before) is not None or (named.variable and (is_pair or _GETS.search(before) is not None)):
        secret = is_quoted_secret(text, start, end, named)
    else:
        secret = looks_like_key(value, quoted=True)
    return ((start, end), *find_pieces(text, end, in_brackets=False)) if secret and start < end else ()


def judge_block(text: bytes, match: Any, settings: bool) -> Iterable[Span]:
    """Read what a block whose head says the name gives as its value or default."""
    named = read_name(text, match.start(1), match.end(1), settings)
    if named is None:
        return []
    if not match.group().endswith(b"{"):  # `param adminPassword string = …`
        return list(find_value(text, match.end(), named))
    found = list_values_below(text, match.end() - 1)
    return [span for _, starts, behind in found for span in find_member(text, starts, behind, named)]


def judge_data(text: bytes, match: Any, settings: bool) -> Iterable[Span]:
    """Read every value of a Kubernetes Secret: its `data` stands in the same document, as deep as its `kind`."""
    if not settings:
        return []
    named = read_name(b"secret", 0, 6, settings)
    column = indent_of(text, line_start(text, match.start()))
    first, last = max(0, match.start() - MAX_SECRET_BYTES), min(len(text), match.end() + MAX_SECRET_BYTES)
    kind = match.group().strip(b" \t\r-")  # of another Secret, with a `data` of its own
    first = max(first, text.rfind(kind, first, match.start()))
    last = last if (other := text.find(kind, match.end(), last)) < 0 else other
    first = max([first, *(found.end() for found in _DOCUMENT_END.finditer(text, first, match.start()))])
    ends = _DOCUMENT_END.search(text, match.end(), last)
    spans = list[Span]()
    before = list(_DATA.finditer(text, first, match.start()))[-_MAX_DATA:]
    behind_it = islice(_DATA.finditer(text, match.end(), last if ends is None else ends.start()), _MAX_DATA)
    for data in (*before, *behind_it):
        if named is None or indent_of(text, line_start(text, data.start())) != column:
            continue
        at = data.end() if text[data.end() : data.end() + 1] == b"{" else data.start()
        spans += find_members(text, list_members_below(text, at), named)
    return spans


def judge_data_in_braces(text: bytes, match: Any, settings: bool) -> Iterable[Span]:
    """Read every value of a Kubernetes Secret that is written in braces, as JSON is."""
    named = read_name(b"secret", 0, 6, settings) if settings else None
    records = [] if named is None else list(list_records_around(text, match.start()))
    spans = list[Span]()
    for start, end in records:
        if named is not None and text[end : end + 1] == b"{" and _DATA_MEMBER.search(text, start, end):
            spans += find_members(text, list_members_below(text, end), named)
    return spans


def judge_table(text: bytes, match: Any, settings: bool) -> Iterable[Span]:
    """Read every value of a table of TOML or INI whose name tells that all of them are secrets."""
    named = read_name(b"secret", 0, 6, settings) if settings else None
    if named is None:
        return
    found = _TABLE_END.search(text, match.end())
    ends = len(text) if found is None else found.start()
    for count, member in enumerate(_TABLE_MEMBER.finditer(text, match.end(), ends)):
        if count == MAX_JUDGED_MEMBERS:
            yield member.start(), ends
            return
        yield from find_value(text, member.end(), replace(named, starts=member.start(1)))


def _is_text_secret(text: bytes, span: Span, settings: bool) -> bool:
    value = text[slice(*span)].decode("utf-8", "replace")
    return is_setting(value) if settings else looks_like_key(value, quoted=True)
