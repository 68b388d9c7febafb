"""Find secrets in calls whose names tell them: `setPassword("VALUE")`, `.withToken('VALUE')`, `.password("VALUE")`.

Only the one argument of a call that sets something counts: one that asks, checks or looks up gets a name or a label.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from kairos_mcp.core.secret_assignments import is_quoted_secret, read_name
from kairos_mcp.core.secret_quotes import PREFIX, find_pieces, find_quoted
from kairos_mcp.core.secret_spans import Span
from kairos_mcp.core.secret_values import STRONG, WEAK, looks_like_key

CALL = rf"(?i)[a-z0-9_]*({STRONG}|{WEAK})\([ \t]*(?:\r?\n[ \t]{{0,200}})?[\"'`]"
_SETS = re.compile(rb"(?i)(?:set|with|use|put|add)(?:[A-Z_].*|.*)")
_PASSWORD = re.compile(rb"(?i)(?:passwords?|passwd|passphrase|passcode|pwd)")
_ENDS_CALL = re.compile(rb"[\"'`]{1,3}[ \t\r\n]*(?:\)|\.|\+)")


def judge_call(text: bytes, match: Any, settings: bool) -> Iterable[Span]:
    bracket = text.find(b"(", match.start())
    method = text[match.start() : bracket]
    named = read_name(text, match.start(1), bracket, settings)
    opened = PREFIX.match(text, match.end() - 1)
    if named is None or opened is None:
        return ()
    is_of_object = text[match.start() - 1 : match.start()] in (b".", b">", b":")
    if not _SETS.fullmatch(method) and not is_of_object:
        return ()
    start, end = find_quoted(text, opened, settings=False)
    if start >= end or _ENDS_CALL.match(text, end) is None:
        return ()
    if _SETS.fullmatch(method) or _PASSWORD.fullmatch(method):
        is_secret = is_quoted_secret(text, start, end, named)
    else:
        is_secret = looks_like_key(text[start:end].decode("utf-8", "replace"), quoted=True)
    return ((start, end), *find_pieces(text, end, in_brackets=False)) if is_secret else ()
