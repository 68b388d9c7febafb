"""Find secrets in calls whose names tell them: `setPassword("VALUE")`, `check_password("VALUE", x)`, `.token("VALUE")`.

A quoted argument that looks like a key is one, whatever a call by the name of a secret does. An ordinary word is one
where the call sets a password (its last argument), checks one, or makes credentials; other calls, as
`get_password("db")`, are given a name or a label. In a login it is what stands behind the user's name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from kairos_mcp.core.secret_assignments import is_quoted_secret, read_name
from kairos_mcp.core.secret_quotes import PREFIX, find_pieces, find_quoted
from kairos_mcp.core.secret_spans import Span
from kairos_mcp.core.secret_values import STRONG, WEAK, is_plain_password, looks_like_key

_BASIC = r"(?:basic_?|password_?)auth(?:entication)?"
_LOGINS = rf"(?:{_BASIC}|authenticate|log_?in|sign_?in)"
LOGIN_CALL = rf"{_LOGINS}\("
CALL = (
    rf"(?i)[a-z0-9_]*(?:({STRONG}|{WEAK})\(|{LOGIN_CALL})"
    r"(?:[^()\"'`=]{1,80},)?[ \t\r\n]{0,200}[bruf@$]{0,2}\\{0,2}[\"'`]"
)
_SETS = re.compile(rb"(?i)_*(?:set|with|use(?!r)|put|add|change|update|reset|store|save|hash|make|create).*")
_CHECKS = re.compile(rb"(?i)_*(?:check|verify|validate|compare|confirm).*")
_PASSWORD = re.compile(rb"(?i)(?:passwords?|passwd|passphrase|passcode|pwd)")
_CREDENTIALS = re.compile(rb"(?:[A-Z]\w*)?Credentials?")
_LOGIN = re.compile(rf"(?i).*{_LOGINS}".encode())
_BASIC_AUTH = re.compile(rf"(?i).*{_BASIC}".encode())
_MAX_ARGUMENTS = 6
_ENDS_ARGUMENT = re.compile(rb"\\{0,2}[\"'`]{1,3}[ \t\r\n]*([),.+])")
_TO_NEXT_QUOTED = re.compile(rb"[^()\"'`=]{0,80}?(?=[bBrRfFuUNE$@]{0,2}\\{0,2}[\"'`])")


def judge_call(text: bytes, match: Any, settings: bool) -> Iterable[Span]:
    bracket = text.find(b"(", match.start())
    quoted = list(_list_quoted(text, bracket + 1))
    name = text[match.start() : bracket]
    if _LOGIN.fullmatch(name):
        yield from _judge_login(text, name, quoted)
        return
    named = read_name(text, match.start(1), bracket, settings)
    if named is None:
        return
    is_of_object = text[match.start() - 1 : match.start()] in (b".", b">", b":")
    telling = _find_telling(name, len(quoted), is_of_object)
    for place, (start, end) in enumerate(quoted):
        value = text[start:end].decode("utf-8", "replace")
        is_word = place in telling and is_quoted_secret(text, start, end, named)
        if is_word or (" " not in value and looks_like_key(value, quoted=True)):
            yield start, end
            yield from find_pieces(text, end, in_brackets=False)


def _find_telling(name: bytes, count: int, is_of_object: bool) -> range:
    """Return which of the quoted arguments of a call are secrets even if they are ordinary words."""
    if _CHECKS.fullmatch(name):
        return range(count)
    sets = _SETS.fullmatch(name) or (is_of_object and _PASSWORD.fullmatch(name))
    makes = count > 1 and _CREDENTIALS.fullmatch(name)
    return range(count - 1, count) if sets or makes else range(0)


def _judge_login(text: bytes, name: bytes, quoted: Sequence[Span]) -> Iterator[Span]:
    """Yield the password of a login, which is its second argument."""
    if len(quoted) != 2:
        return
    start, end = quoted[1]
    value = text[start:end].decode("utf-8", "replace")
    is_word = _BASIC_AUTH.fullmatch(name) is not None and is_plain_password(value)
    if is_word or (" " not in value and looks_like_key(value, quoted=True)):
        yield start, end


def _list_quoted(text: bytes, at: int) -> Iterator[Span]:
    """Yield the quoted arguments of a call, whose first one may stand behind others."""
    for _ in range(_MAX_ARGUMENTS):
        reached = _TO_NEXT_QUOTED.match(text, at)
        opened = None if reached is None else PREFIX.match(text, reached.end())
        if opened is None:
            return
        start, end = find_quoted(text, opened, settings=False)
        ends = _ENDS_ARGUMENT.match(text, end)
        if ends is None:
            return
        if start < end:
            yield start, end
        if ends.group(1) != b",":
            return
        at = ends.end()
