"""How many values a JSON text may hold, counted before a parser builds them.

A text of 4 MiB may hold two million empty objects: a parser builds some 40 times the text's own size of them, and each
is walked several times afterwards. As many bytes in one string cost next to nothing. So bytes alone bound nothing, and
every JSON text from outside is counted here before it is parsed.
"""

from __future__ import annotations

MAX_VALUES = 20_000  # of one reply, answer or call, which our own code walks: some 20 ms
MESSAGE_VALUES = 50_000  # of one message of a server or a provider, which a library parses: some 20 ms
DOCUMENT_VALUES = 2_000_000  # of one file that a command reads in a process of its own


def has_more_values(text: str | bytes | bytearray, most: int) -> bool:
    """Whether a parser could build more than `most` values of this text, sound or broken."""
    raw = text.encode(errors="replace") if isinstance(text, str) else text
    if _count_openers(raw) < most:
        return False
    # Where a byte is 0 it is perhaps UTF-16, which some parsers take: its quotes can't be told here.
    return 0 in raw or ValueCounter(most).feed(raw)


class ValueCounter:
    """Counts the values of a JSON text that comes in parts.

    Each value but the first follows a comma, or the bracket that it is in. These count outside strings alone. Each
    string is a value or a name, so there are at most twice as many of them as values.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._values = self._quotes = 0
        self._is_in_string = False
        self._held = b""  # a backslash at the end of a part: what it escapes is in the next one

    def feed(self, part: bytes | bytearray) -> bool:
        """Count a further part; return whether there are too many values by now."""
        unescaped = (self._held + part).replace(b"\\\\", b"").replace(b'\\"', b"")
        self._held = b"\\" if unescaped.endswith(b"\\") else b""
        unescaped = unescaped.removesuffix(b"\\")
        quotes = unescaped.count(b'"')
        self._quotes += quotes
        if self._quotes > 4 * self._most:
            return True
        outside = unescaped.split(b'"')[self._is_in_string :: 2]
        self._is_in_string ^= bool(quotes % 2)
        self._values += sum(map(_count_openers, outside))
        return self._values >= self._most


def _count_openers(raw: bytes | bytearray) -> int:
    return raw.count(b",") + raw.count(b"[") + raw.count(b"{")
