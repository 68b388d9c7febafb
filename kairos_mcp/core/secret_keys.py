"""Find private keys: from `-----BEGIN … PRIVATE KEY-----` to its end, without one of the two, or base64 alone.

Lines of base64 count if they decode to the beginning of a key, or if they end in `-----END … PRIVATE KEY-----`.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Iterator
from typing import Any

from kairos_mcp.core.secret_spans import MAX_SECRET_BYTES, Span, line_end, line_start

_END = b"-----END "
PEM = rb"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
PEM_END = rb"-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
BASE64_LINE = r"(?m)^[^A-Za-z0-9+/\r\n]{0,40}([A-Za-z0-9+/]{60,}={0,2})(?:\\n)?[\"',]{0,3}[ \t]*\r?$"
ENCODED_PEM = r"LS0tLS1CRUdJTi[A-Za-z0-9+/]{20,}={0,2}"  # base64 of `-----BEGIN …`, as in a kubeconfig
BASIC = r"(?i)\bauth\\?[\"']?[ \t]*[:=][ \t]*\\?[\"']?([A-Za-z0-9+/]{4,1000}={0,2})"  # `user:password`, as for Docker
_USER_AND_PASSWORD = re.compile(rb"[\x20-\x39\x3b-\x7e]{1,200}:[\x20-\x7e]{1,2000}")
_KEY_LINE = re.compile(  # base64, the last line of it, a header of the key, or nothing
    rb"[^A-Za-z0-9+/=\n]{0,40}(?:[A-Za-z0-9+/=\\]{4,}|[A-Z][A-Za-z-]{1,40}: [^\n]{0,400}|)"
    rb"(?:\\n)?[\"',;+\\]{0,4}[ \t\r]*"
)
_KEY_TAIL = re.compile(rb"[A-Za-z0-9+/=\\\"',;+ \t\r\n]*")  # the rest of a key, also of one in a single long line
_KEY_MATERIAL = re.compile(rb"[A-Za-z0-9+/=]{16,}|^[^A-Za-z0-9+/=\n]{0,40}[A-Za-z0-9+/=]{4,}[ \t\r]*$", re.MULTILINE)


def find_key_blocks(text: bytes, begins: Iterable[Any]) -> Iterator[Span]:
    """Yield each block from its BEGIN line to its END, if key material stands between; else as far as that follows.

    `begins`: matches of PEM. No part of the text is searched twice for an END or for key material, however many BEGIN
    lines it holds.
    """
    closes = reached = 0
    for match in begins:
        start, at = match.span()
        if start < reached:
            continue
        if closes < at:
            found = text.find(_END, at)
            closes = found if found >= 0 else len(text) + MAX_SECRET_BYTES
        if closes + len(_END) > at + MAX_SECRET_BYTES:
            reached = _follow_key_lines(text, at)
            if reached < closes < reached + MAX_SECRET_BYTES and _KEY_TAIL.fullmatch(text, reached, closes):
                reached = _end_of(text, closes)
        elif _KEY_MATERIAL.search(text, at, closes) is not None:
            reached = _end_of(text, closes)
        else:
            reached = closes  # a later BEGIN before this END has no key material either
            continue
        if reached:
            yield start, reached


def _end_of(text: bytes, closes: int) -> int:
    """Return where an END line ends that begins at a place."""
    at = closes + len(_END)
    ends = text.find(b"-----", at, at + 60)
    return line_end(text, at) if ends < 0 else ends + 5


def _follow_key_lines(text: bytes, at: int) -> int:
    """Return where the key material that follows a BEGIN line ends, 0 where none does."""
    end = rest = line_end(text, at)
    if not _KEY_LINE.fullmatch(text, at, rest):
        return 0
    while rest < len(text):
        following = line_end(text, rest + 1)
        if not _KEY_LINE.fullmatch(text, rest + 1, following):
            break
        if text[rest + 1 : following].strip():
            end = following
        rest = following
    return end if rest > at else 0


def judge_pem_end(text: bytes, match: Any, settings: bool) -> Iterable[Span]:
    """The lines of base64 before an END line whose BEGIN is missing."""
    end = match.end()
    begins = line_start(text, match.start())
    start = begins
    while start > 0 and end - start < MAX_SECRET_BYTES:
        above = line_start(text, start - 1)
        line = text[above : start - 1]
        if not line.strip() or not _KEY_LINE.fullmatch(line):
            break
        start = above
    return ((start, end),) if start < begins else ()


def judge_encoded_pem(text: bytes, match: Any, settings: bool) -> Iterable[Span]:
    """A private key in base64, which a value of a kubeconfig or of a Kubernetes Secret holds."""
    return (match.span(),) if b"PRIVATE KEY" in _decode(match.group()[:120]) else ()


def judge_basic(text: bytes, match: Any, settings: bool) -> Iterable[Span]:
    """What decodes to a user and a password, as in Docker's config.json."""
    return (match.span(1),) if _USER_AND_PASSWORD.fullmatch(_decode(match.group(1))) else ()


def _decode(text: bytes) -> bytes:
    """Decode base64, also where its end is missing; return nothing for other text."""
    try:
        return base64.b64decode(text.rstrip(b"=")[: len(text) // 4 * 4] + b"=" * (-len(text.rstrip(b"=")) % 4))
    except (binascii.Error, ValueError):
        return b""


def judge_base64(text: bytes, match: Any, settings: bool) -> Iterable[Span]:
    """Lines of base64 that decode to the beginning of a private key."""
    if not _begins_key(match.group(1)):
        return ()
    start, end = match.span(1)
    at = line_end(text, end)
    while at < len(text):
        following = line_end(text, at + 1)
        line = text[at + 1 : following]
        if not line.strip() or not _KEY_LINE.fullmatch(line):
            break
        end, at = following, following
    return ((start, end),)


def _begins_key(line: bytes) -> bool:
    """Whether base64 begins as a private key does: PKCS #1 and #8, SEC 1, OpenSSH, an encrypted one."""
    try:
        raw = base64.b64decode(line[:60])
    except (binascii.Error, ValueError):
        return False
    if raw.startswith(b"openssh-key-v1\0"):
        return True
    if raw[:1] != b"\x30" or raw[1] < 0x20:
        return False
    body = raw[2 + (raw[1] & 0x7F) :] if raw[1] >= 0x80 else raw[2:]
    return body.startswith((b"\x02\x01\x00\x02", b"\x02\x01\x00\x30", b"\x02\x01\x01\x04", b"\x02\x01\x01\x30")) or (
        body[:1] == b"\x30" and b"\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x05" in body[:16]
    )
