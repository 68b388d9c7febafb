"""Mask the secrets of a server's setting where a person is shown it: in its arguments, its address, what it is given.

A person typed the setting, or a file of another program holds it, and either may hold a key in full. What is shown ends
up in logs and bug reports.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from kairos_mcp.core.redaction import is_key_name
from kairos_mcp.core.secret_forms import MASK, strip_passwords
from kairos_mcp.core.secret_grammar import find_secrets
from kairos_mcp.settings.secret_refs import EMBEDDED_REFERENCE, is_reference
from kairos_mcp.settings.table_values import ServerSetting

_KEY_HEADER = re.compile(r"(?:proxy-)?authorization|cookie|.*(?:api-?key|token|secret|password).*", re.IGNORECASE)
_ANY_VALUE = "x7Kq2mWz9LrT4"  # behind an option, to see whether its value would be a secret


def mask_server(server: ServerSetting) -> ServerSetting:
    """Return the setting with `[secret]` in place of its secrets. References to secrets stay."""
    return replace(
        server,
        command=mask_command(server.command),
        url=None if server.url is None else mask_address(server.url),
        env=tuple((name, mask_value(name, value)) for name, value in server.env),
        headers=tuple((name, mask_value(name, value)) for name, value in server.headers),
    )


def mask_command(words: Sequence[str]) -> tuple[str, ...]:
    """Return a command line with its secrets masked: in a word, or as the word behind an option such as --token."""
    return tuple(_mask_word(before, word) for before, word in zip(("", *words), words, strict=False))


def mask_address(url: str) -> str:
    """Return a URL without its password, and without keys in its query."""
    return _mask_text(strip_passwords(url))


def mask_value(name: str, value: str) -> str:
    """Return the value of a variable or header, masked if its name is that of a key or it has the shape of one."""
    if is_reference(value) or EMBEDDED_REFERENCE.search(value):
        return value
    if _KEY_HEADER.fullmatch(name) or is_key_name(name.replace("-", "_").upper()):
        return MASK
    return _mask_text(strip_passwords(value))


def _mask_word(before: str, word: str) -> str:
    if EMBEDDED_REFERENCE.search(word):
        return word
    follows_option = before.startswith("-") and not word.startswith("-")
    if follows_option and _mask_text(f"{before} {_ANY_VALUE}") == f"{before} {MASK}":
        return MASK
    return _mask_text(strip_passwords(word))


def _mask_text(text: str) -> str:
    content = text.encode("utf-8", "surrogatepass")
    for start, end in reversed(find_secrets(content, settings=True)):
        content = content[:start] + MASK.encode() + content[end:]
    return content.decode("utf-8", "surrogatepass")
