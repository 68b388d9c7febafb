"""The forms in which a known secret may occur in a text, as RE2 patterns: plain, URL, JSON, HTML, hex, base64."""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Iterator
from urllib.parse import quote

MIN_SECRET_CHARS = 8  # a shorter value occurs in ordinary texts too often

MASK = "[secret]"
_USERINFO = re.compile(r"([A-Za-z][A-Za-z0-9+.-]{0,20}://[^\s/:@\"'?#]{0,200}:)[^\s/\"'?#]{1,400}@")
_ANY_BASE64 = "[A-Za-z0-9+/_-]"
MAX_TAIL_CHARS = 6  # of a base64 group that is not full, and its padding


def encoded_patterns(value: str) -> Iterator[str]:
    """Yield an RE2 pattern for each encoding of a value; some may be equal."""
    for text in _literal_forms(value):
        yield _literal_pattern(text)
    for text, tail in _base64_forms(value.encode()):
        yield f"{_literal_pattern(text)}{tail}"


def encoded_beginnings(value: str) -> Iterator[str]:
    """Yield the text that each of those patterns begins with; all that may follow it is MAX_TAIL_CHARS long."""
    yield from _literal_forms(value)
    yield from (text for text, _ in _base64_forms(value.encode()))


def strip_passwords(text: str) -> str:
    """Redact the password of each `scheme://user:password@host`, however short or plain it is."""
    return _USERINFO.sub(rf"\1{MASK}@", text) if "://" in text else text


def _literal_forms(value: str) -> Iterator[str]:
    """Yield each encoding that is one exact text."""
    yield from (value, *_url_forms(value), *_json_forms(value), *_html_forms(value))
    in_hex = value.encode().hex()
    yield in_hex
    yield in_hex.upper()


def _url_forms(value: str) -> Iterator[str]:
    """Yield it percent-encoded once and twice, as in a URL within a URL."""
    for safe in ("", "/"):
        once = quote(value, safe=safe)
        for escaped in (once, quote(once, safe="")):
            if len(escaped) > len(value):
                yield escaped
                yield escaped.lower()
                yield escaped.replace("%20", "+")


def _json_forms(value: str) -> Iterator[str]:
    for escaped in (json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]):
        yield escaped
        yield escaped.replace("/", "\\/")  # as PHP and some others write it


def _html_forms(value: str) -> Iterator[str]:
    """Yield it with named and with numbered entities."""
    escaped = html.escape(value)
    yield html.escape(value, quote=False)
    for quoted in (escaped, escaped.replace("&quot;", "&#34;")):
        for apostrophe in ("&#x27;", "&#39;", "&apos;"):
            text = quoted.replace("&#x27;", apostrophe)
            yield text
            yield text.replace("/", "&#x2F;")
            yield text.replace("/", "&#47;")


def _base64_forms(raw: bytes) -> Iterator[tuple[str, str]]:
    """Yield a text, and a pattern of what may follow it, for each of the three offsets in a base64 group at which the
    value may begin.

    The letters of its first group that also encode what stands before it are left; its whole last group is matched.
    """
    for lead in range(3):
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            text = encode(b"\0" * lead + raw).decode().rstrip("=")
            begin, end = (0, 2, 3)[lead], (lead + len(raw)) // 3 * 4  # `end`: of the last full group
            if end - begin < MIN_SECRET_CHARS + 2:
                continue
            last = text[end:-1]  # its very last letter holds bits of what follows, if anything does
            tail = f"(?:{_literal_pattern(last)}{_ANY_BASE64}={{0,2}})?" if text[end:] else ""
            yield text[begin:end], tail


def _literal_pattern(text: str) -> str:
    """Return a pattern that matches exactly this text."""
    return "".join(char if char.isalnum() or ord(char) > 127 else f"\\x{{{ord(char):x}}}" for char in text)
