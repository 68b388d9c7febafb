"""Unpacks the body of a reply within a bound, and decodes it if it is text.

Lengths and labels are not trusted: what a body states about itself is used only if it is one of the known values.
"""

from __future__ import annotations

import codecs
import re
import zlib
from collections.abc import Iterable

from kairos_mcp.core.errors import Unreachable
from kairos_mcp.core.hidden_text import spell_hidden as seen
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.tools.http.connection import ReplyHead

SNIFF_BYTES = 8192  # a NUL among these makes a body binary, as git has it
META_BYTES = 1024  # where HTML states its charset
ENCODINGS = {"": 0, "identity": 0, "gzip": 1, "x-gzip": 1, "deflate": 1}
STEP_BYTES = 64 * 1024
BESIDE_CUT_BYTES = 16 * 1024  # behind the bound, read to find the secret that it would part

_CHARSETS = re.compile(
    r"utf-?(8|(16|32)(-?[lb]e)?)|us-ascii|ascii|latin-?1|iso-?8859-\d{1,2}|(windows|cp)-?125[0-8]|"
    r"shift[-_]jis|euc-(jp|kr)|iso-2022-jp|gb2312|gbk|gb18030|big5|koi8-[ru]|macintosh"
)
_CHARSET_LABEL = re.compile(r"charset\s*=\s*[\"']?\s*([A-Za-z0-9_.:-]{1,40})", re.IGNORECASE)
_TEXT_TYPES = re.compile(
    r"text/.*|application/(.*\+)?(json|xml|yaml)|application/(x-)?(javascript|ndjson|yaml|toml|sh|"
    r"www-form-urlencoded|sql|graphql)|.*/.*\+(json|xml|yaml)|message/.*"
)
_BOMS = ((b"\xef\xbb\xbf", "utf-8"), (b"\xff\xfe", "utf-16-le"), (b"\xfe\xff", "utf-16-be"))


@dataclass(frozen=True, slots=True)
class UnpackedBody:
    """An unpacked body; `cut` means that only its beginning was read, up to the bound. `following`: what came behind
    the bound, in which a secret may end that the bound would part."""

    content: bytes
    cut: bool = False
    following: bytes = b""


@dataclass(frozen=True, slots=True)
class BodyText:
    """A body as text, None if it is no text, with notes on how it was decoded."""

    text: str | None
    notes: tuple[str, ...] = ()


def unpack_body(head: ReplyHead, chunks: Iterable[bytes], limit: int) -> UnpackedBody:
    """Unpack at most `limit` bytes of the body, step by step, so that a small body can't grow beyond the bound.

    Raises Unreachable if it is packed in a way that was not asked for, or broken.
    """
    coding = head.header("content-encoding").strip().lower()
    if coding not in ENCODINGS:
        raise Unreachable("The body has an encoding that was not asked for.", "Ask elsewhere.")
    unpacker = _Unpacker() if ENCODINGS[coding] else None
    content, received = bytearray(), 0
    for chunk in chunks:
        received += len(chunk)
        if unpacker is None:
            content += chunk
        else:
            unpacker.add(chunk, content, limit + BESIDE_CUT_BYTES)
        # Both are bounded, since a packed body may be endless and yet unpack to nothing.
        if len(content) > limit + BESIDE_CUT_BYTES or received > limit + STEP_BYTES:
            return _cut_body(content, limit)
    if unpacker is not None and not unpacker.is_complete and received:
        raise Unreachable("The body broke off.", "Try again later.")
    return UnpackedBody(bytes(content)) if len(content) <= limit else _cut_body(content, limit)


def _cut_body(content: bytearray, limit: int) -> UnpackedBody:
    return UnpackedBody(bytes(content[:limit]), True, bytes(content[limit : limit + BESIDE_CUT_BYTES]))


class _Unpacker:
    """Unpacks gzip of one or several members, or deflate with or without its zlib header."""

    def __init__(self) -> None:
        self._inflater = zlib.decompressobj(zlib.MAX_WBITS | 32)
        self._has_begun = False
        self.is_complete = False

    def add(self, chunk: bytes, content: bytearray, limit: int) -> None:
        """Unpack a chunk onto `content`; stop, and drop the rest, once that holds more than `limit` bytes."""
        while chunk and len(content) <= limit:
            if self.is_complete:
                if chunk[:1] != b"\x1f":
                    return  # what follows the last member is not part of the body, by gzip's own rule
                self._inflater, self.is_complete = zlib.decompressobj(zlib.MAX_WBITS | 16), False
            content += self._inflate(chunk, limit + 1 - len(content))
            self._has_begun, self.is_complete = True, self._inflater.eof
            chunk = self._inflater.unused_data if self.is_complete else self._inflater.unconsumed_tail

    def _inflate(self, chunk: bytes, limit: int) -> bytes:
        try:
            return self._inflater.decompress(chunk, limit)
        except zlib.error:
            if self._has_begun:
                raise Unreachable("The body is broken: it can't be unpacked.", "Try again later.") from None
        self._inflater = zlib.decompressobj(-zlib.MAX_WBITS)  # some servers send deflate without its header
        try:
            return self._inflater.decompress(chunk, limit)
        except zlib.error:
            raise Unreachable("The body is broken: it can't be unpacked.", "Try again later.") from None


def decode_body(content: bytes, content_type: str, *, raw: bool = False) -> BodyText:
    """Decode a body by its byte order mark, its content type or the charset that it states; else as UTF-8, with notes.

    Invisible characters are spelled out for a reader, but not if `raw`, for a program.
    """
    kind = content_type.partition(";")[0].strip().lower()
    label = _find_charset(content, content_type, kind)
    known = _known_charset(label or "")
    charset = known or "utf-8"
    if b"\0" in content[:SNIFF_BYTES] and not charset.startswith(("utf-16", "utf-32")):
        return BodyText(None)
    notes = [f"the charset {label} is not known; read as UTF-8"] if label and known is None else []
    try:
        text = content.decode(charset)
    except UnicodeDecodeError:
        if kind and not _TEXT_TYPES.fullmatch(kind) and known is None:
            return BodyText(None)
        text = content.decode(charset, "replace")
        notes.append(f"bytes that are not {charset} are shown as \ufffd")
    text = text.removeprefix("\ufeff")
    shown = text if raw else seen(text)
    if shown != text:
        notes.append("what can't be seen, or imitates a conversation, is spelled out, as ⟦U+200B⟧")
    return BodyText(shown, tuple(notes))


def is_html(content_type: str) -> bool:
    return content_type.partition(";")[0].strip().lower() in ("text/html", "application/xhtml+xml")


def spell_out_line(text: str) -> str:
    """Spell out invisible characters and line ends in a foreign line, such as a header."""
    return seen(text.replace("\r", "\\r").replace("\n", "\\n"))


def _find_charset(content: bytes, content_type: str, kind: str) -> str | None:
    for mark, charset in _BOMS:
        if content.startswith(mark):
            return charset
    found = _CHARSET_LABEL.search(content_type)
    if found is None and ("html" in kind or "xml" in kind):
        found = _CHARSET_LABEL.search(content[:META_BYTES].decode("latin-1"))
    return None if found is None else found[1].lower()


def _known_charset(label: str) -> str | None:
    """Return Python's name of a text charset; None for others, since some of Python's codecs do more than decode."""
    try:
        return codecs.lookup(label).name if _CHARSETS.fullmatch(label) else None
    except LookupError:
        return None
