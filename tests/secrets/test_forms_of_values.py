"""A known value is taken out of a text in each of the usual forms, whole; a password in an address is never shown."""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Callable
from urllib.parse import quote

import pytest

from kairos_mcp.core.redaction import MASK, Redactor
from kairos_mcp.core.secret_forms import strip_passwords

KEYS = ["kq-4711-zX9+/pLm=c0ffee", "a'b\"c&d<e>f/g 42 \\E\\Q.*x9", "ends-in-a-backslash-1\\", "pässwörd-ßtrong-42"]
FORMS: dict[str, Callable[[str], str]] = {
    "plain": str,
    "hex": lambda value: value.encode().hex(),
    "upper hex": lambda value: value.encode().hex().upper(),
    "a URL": lambda value: quote(value, safe=""),
    "a URL in a URL": lambda value: quote(quote(value, safe=""), safe=""),
    "JSON": lambda value: json.dumps(value)[1:-1],
    "JSON with its slashes escaped": lambda value: json.dumps(value)[1:-1].replace("/", "\\/"),
    "HTML": html.escape,
    "HTML with numbers": lambda value: html.escape(value).replace("&quot;", "&#34;").replace("&#x27;", "&#39;"),
    "base64": lambda value: base64.b64encode(value.encode()).decode(),
    "base64 for URLs": lambda value: base64.urlsafe_b64encode(value.encode()).decode(),
    "base64 without padding": lambda value: base64.b64encode(value.encode()).decode().rstrip("="),
}


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("form", FORMS)
def test_a_known_value_is_taken_out_whole(form: str, key: str) -> None:
    masked = Redactor([key]).redact_known(f"before {FORMS[form](key)} after")
    assert masked.text == f"before {MASK} after"


@pytest.mark.parametrize("after", ["", "x", "xy", "xyz"])
@pytest.mark.parametrize("before", ["", "u", "u:", "us:"])
def test_nothing_of_the_last_group_of_base64_is_left(before: str, after: str) -> None:
    """Of the first group what it shares with what stands before may stay: half a letter of the value at most."""
    key = KEYS[0]
    left = Redactor([key]).redact_known(base64.b64encode(f"{before}{key}{after}".encode()).decode()).text
    assert MASK in left
    rest = left.split(MASK)[1].rstrip("=")
    assert len(rest) <= -(-len(after) * 4 // 3)
    assert after or not rest


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgres://bob:hunter@db/x", f"postgres://bob:{MASK}@db/x"),
        ("https://u:p@ss@host/a?b=c@d", f"https://u:{MASK}@host/a?b=c@d"),
        ("at https://:x@host and ftp://a:b@c", f"at https://:{MASK}@host and ftp://a:{MASK}@c"),
        ("https://host:8080/@someone", "https://host:8080/@someone"),
        ("mail bob@example.org", "mail bob@example.org"),
    ],
)
def test_a_password_in_an_address_is_not_shown(text: str, shown: str) -> None:
    assert strip_passwords(text) == shown
