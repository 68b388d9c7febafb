"""Recognise `.env` files by name (`.env`, `.env.local`), and hide every value in them.

Every value is hidden, whatever its form: even a short word may be a password there. `.env.example` is made to be shown.
Names, comments and the number of lines stay as they are.
"""

from __future__ import annotations

import re
from hashlib import sha256

from kairos_mcp.core.redaction import Redacted
from kairos_mcp.core.secret_forms import MASK

_EXAMPLE = ".env.example"
_SETTING = re.compile(r"(?P<name>[ \t]*(?:export[ \t]+)?[^\s=:#][^=:\n]*?[ \t]*[=:][ \t]*)(?P<value>[^\s].*)")
_CONTINUED = re.compile(r"(?:[^\\]|\\.)*\\")
_MARK = "\0"  # does not occur in text files


def is_env_file(path: str) -> bool:
    """Whether a path names a file like `.env`, by its last part and without regard to case."""
    name = path.rstrip("/").rpartition("/")[2].casefold()
    return name.startswith(".env") and name != _EXAMPLE


def redact_env_file(text: str, *, distinguish: bool = False) -> Redacted:
    """Return the text of an `.env` file with all values hidden.

    `distinguish`: different values get different marks, so that a diff shows what changed; `unify_marks` then makes all
    marks equal.
    """
    lines: list[str] = []
    count, open_with = 0, ""  # the quote, or the backslash, by which a value goes on in the next line
    for line in text.split("\n"):
        body, end = (line[:-1], "\r") if line.endswith("\r") else (line, "")
        if open_with:
            lines.append(_hide_value(body, distinguish) + end if body.strip() else line)
            open_with = _open_quote(body, open_with)
            continue
        found = _SETTING.fullmatch(body)
        if found is not None and not body.lstrip().startswith("#"):
            value = found["value"]
            lines.append(found["name"] + _hide_value(value, distinguish) + end)
            open_with, count = _open_quote(value, ""), count + 1
        elif found is None and body.strip() and not body.lstrip().startswith("#") and not _is_bare_name(body):
            lines.append(_hide_value(body, distinguish) + end)  # not a setting: it may be part of a value
            count += 1
        else:
            lines.append(line)
    return Redacted("\n".join(lines), count)


def unify_marks(text: str) -> str:
    """Return the text with all marks of hidden values made equal."""
    return re.sub(f"{_MARK}[0-9a-f]*{_MARK}", MASK, text)


def _hide_value(value: str, distinguish: bool) -> str:
    return f"{_MARK}{sha256(value.encode('utf-8', 'surrogatepass')).hexdigest()}{_MARK}" if distinguish else MASK


def _is_bare_name(line: str) -> bool:
    return re.fullmatch(r"\s*(?:export\s+)?[A-Za-z_][A-Za-z0-9_.]*\s*[=:]?\s*", line) is not None


def _open_quote(text: str, quote: str) -> str:
    """Return the quote that is still open at the end of a line; `quote` was open at its start.

    A backslash where a value without quotes goes on in the next line; "" where the value ends.
    """
    if not quote or quote == "\\":
        rest = text.lstrip()
        if rest[:1] not in ("'", '"', "`"):
            return "\\" if _CONTINUED.fullmatch(text) else ""
        quote, text = rest[0], rest[1:]
    escaped = False
    for letter in text:
        if escaped:
            escaped = False
        elif letter == "\\" and quote != "'":
            escaped = True
        elif letter == quote:
            return ""
    return quote
