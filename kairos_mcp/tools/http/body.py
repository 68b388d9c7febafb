"""The body of a reply: unpacked within its bound, and read as text where it is text.

Nothing here trusts a length or a label: what a body says of itself is used only where it is one of the known.
"""

from __future__ import annotations

import codecs
import re
import zlib
from collections.abc import Iterable
from dataclasses import dataclass

from kairos_mcp.core.errors import Unreachable
from kairos_mcp.core.untrusted_text import spell_hidden as seen
from kairos_mcp.tools.http.connection import ReplyHead

SNIFF_BYTES = 8192  # a NUL among these makes a body binary, as in a file
META_BYTES = 1024  # where HTML states its charset
ENCODINGS = {"": 0, "identity": 0, "gzip": 1, "x-gzip": 1, "deflate": 1}
STEP = 64 * 1024

_CHARSETS = re.compile(
    r"utf-?(8|(16|32)(-?[lb]e)?)|us-ascii|ascii|latin-?1|iso-?8859-\d{1,2}|(windows|cp)-?125[0-8]|"
    r"shift[-_]jis|euc-(jp|kr)|iso-2022-jp|gb2312|gbk|gb18030|big5|koi8-[ru]|macintosh"
)
_STATED = re.compile(r"charset\s*=\s*[\"']?\s*([A-Za-z0-9_.:-]{1,40})", re.IGNORECASE)
_TEXTUAL = re.compile(
    r"text/.*|application/(.*\+)?(json|xml|yaml)|application/(x-)?(javascript|ndjson|yaml|toml|sh|"
    r"www-form-urlencoded|sql|graphql)|.*/.*\+(json|xml|yaml)|message/.*"
)
_BOMS = ((b"\xef\xbb\xbf", "utf-8"), (b"\xff\xfe", "utf-16-le"), (b"\xfe\xff", "utf-16-be"))


@dataclass(frozen=True, slots=True)
class UnpackedBody:
    """A body unpacked, or its beginning: `cut` says that there was more than the bound allows."""

    content: bytes
    cut: bool = False


@dataclass(frozen=True, slots=True)
class BodyText:
    """A body as text, with what was done to it; `text` is None for one that is none."""

    text: str | None
    notes: tuple[str, ...] = ()


def unpack_body(head: ReplyHead, chunks: Iterable[bytes], limit: int) -> UnpackedBody:
    """At most `most` bytes of the body, unpacked step by step, so that a small body can't become a large one.

    Raises Unreachable for one that is packed in another way than asked, or broken.
    """
    coding = head.header("content-encoding").strip().lower()
    if coding not in ENCODINGS:
        raise Unreachable("The body is packed in a way that was not asked for.", "Ask elsewhere.")
    unpacking = _Unpacker() if ENCODINGS[coding] else None
    content, came = bytearray(), 0
    for chunk in chunks:
        came += len(chunk)
        if unpacking is None:
            content += chunk
        else:
            unpacking.add(chunk, content, limit)
        if len(content) > limit or came > limit + STEP:  # packed, it may also be endless and come to nothing
            return UnpackedBody(bytes(content[:limit]), cut=True)
    if unpacking is not None and not unpacking.whole and came:
        raise Unreachable("The body broke off.", "Try again later.")
    return UnpackedBody(bytes(content))


class _Unpacker:
    """gzip of one or several members, or deflate with or without its wrapping."""

    def __init__(self) -> None:
        self._inflating = zlib.decompressobj(zlib.MAX_WBITS | 32)
        self._begun = False
        self.whole = False

    def add(self, chunk: bytes, content: bytearray, limit: int) -> None:
        """Unpack onto `content` until it holds more than `most`; what is left of the chunk is then let go."""
        while chunk and len(content) <= limit:
            if self.whole:
                if chunk[:1] != b"\x1f":
                    return  # what follows the last member is no part of the body, as gzip has it
                self._inflating, self.whole = zlib.decompressobj(zlib.MAX_WBITS | 16), False
            content += self._inflated(chunk, limit + 1 - len(content))
            self._begun, self.whole = True, self._inflating.eof
            chunk = self._inflating.unused_data if self.whole else self._inflating.unconsumed_tail

    def _inflated(self, chunk: bytes, limit: int) -> bytes:
        try:
            return self._inflating.decompress(chunk, limit)
        except zlib.error:
            if self._begun:
                raise Unreachable("The body is broken: it can't be unpacked.", "Try again later.") from None
        self._inflating = zlib.decompressobj(-zlib.MAX_WBITS)  # some send deflate bare
        try:
            return self._inflating.decompress(chunk, limit)
        except zlib.error:
            raise Unreachable("The body is broken: it can't be unpacked.", "Try again later.") from None


def decode_body(content: bytes, content_type: str, *, as_it_is: bool = False) -> BodyText:
    """The body as text, by its type, its mark or what it states; else as UTF-8, and what that does is noted.

    What can't be seen is spelled out for a reader; with `as_it_is`, for a program, it stays.
    """
    kind = content_type.partition(";")[0].strip().lower()
    stated = _stated_charset(content, content_type, kind)
    known = _known_charset(stated or "")
    charset = known or "utf-8"
    if b"\0" in content[:SNIFF_BYTES] and not charset.startswith(("utf-16", "utf-32")):
        return BodyText(None)
    notes = [f"the charset {stated} is not known; read as UTF-8"] if stated and known is None else []
    try:
        text = content.decode(charset)
    except UnicodeDecodeError:
        if kind and not _TEXTUAL.fullmatch(kind) and known is None:
            return BodyText(None)
        text = content.decode(charset, "replace")
        notes.append(f"bytes that are no {charset} are shown as \ufffd")
    text = text.removeprefix("\ufeff")
    shown = text if as_it_is else seen(text)
    if shown != text:
        notes.append("what can't be seen, or imitates a conversation, is spelled out, as ⟦U+200B⟧")
    return BodyText(shown, tuple(notes))


def is_html(content_type: str) -> bool:
    return content_type.partition(";")[0].strip().lower() in ("text/html", "application/xhtml+xml")


def spell_out_line(text: str) -> str:
    """One line of somebody else's, as a header: what can't be seen, and line ends, spelled out."""
    return seen(text.replace("\r", "\\r").replace("\n", "\\n"))


def _stated_charset(content: bytes, content_type: str, kind: str) -> str | None:
    for mark, charset in _BOMS:
        if content.startswith(mark):
            return charset
    found = _STATED.search(content_type)
    if found is None and ("html" in kind or "xml" in kind):
        found = _STATED.search(content[:META_BYTES].decode("latin-1"))
    return None if found is None else found[1].lower()


def _known_charset(label: str) -> str | None:
    """Python's name of a charset of texts; it also knows codecs that are none, or do more than decode."""
    try:
        return codecs.lookup(label).name if _CHARSETS.fullmatch(label) else None
    except LookupError:
        return None
