"""Where a line of a byte stream ends, how much of it is kept, and how ours stay one. Nothing is parsed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from json import loads

LINE_BYTES = 16 * 2**20  # several times the largest call with every argument at its bound
EDGE_BYTES = 512  # what is kept of the end of a line too long, where the id of a request may stand

LINE_ENDS = {"\u2028": "\\u2028", "\u2029": "\\u2029", "\x85": "\\u0085"}
"""What some readers take for the end of a line and JSON lets stand; it escapes the other such characters."""

_ID = rb'"id"\s*:\s*(-?\d{1,18}|"[^"\\]{0,200}")'
_HEAD = re.compile(rb'\s*\{\s*(?:"(?:jsonrpc|method)"\s*:\s*"[^"\\]{0,200}"\s*,\s*){0,2}' + _ID)
_REPLY = re.compile(_HEAD.pattern + rb'\s*,\s*"(?:result|error)"')
_TAIL = re.compile(rb'"jsonrpc"\s*:\s*"2\.0"\s*,\s*' + _ID + rb"\s*\}\s*$")


def on_one_line(json: str) -> str:
    """The same JSON in what every reader takes for one line."""
    for end, escaped in LINE_ENDS.items():
        json = json.replace(end, escaped)
    return json


@dataclass(frozen=True, slots=True)
class FramedLine:
    """A line without its end. `left_out` bytes of one too long are gone; `tail` is then its last part."""

    text: bytes
    left_out: int = 0
    tail: bytes = b""

    def request_id(self) -> int | str | None:
        """The id of the request in a line that can't be parsed, if it stands before the params or at the end.

        Those are the places where SDKs write it; anywhere else it is not looked for, lest another request be
        answered.
        """
        end = self.tail if self.left_out else self.text[-EDGE_BYTES:]
        found = _HEAD.match(self.text[:EDGE_BYTES]) or _TAIL.search(end)
        if found is None:
            return None
        try:
            number: int | str = loads(found[1])
        except ValueError:
            return None
        return number


def id_of_answer(line: FramedLine) -> int | str | None:
    """The id of our request that a line answers which can't be read, where it stands before the result."""
    return line.request_id() if _REPLY.match(line.text[:EDGE_BYTES]) else None


class LineCutter:
    """Cuts chunks into lines and holds at most `limit` bytes of an unfinished one."""

    def __init__(self, limit: int = LINE_BYTES) -> None:
        self._limit = limit
        self._kept = bytearray()
        self._left_out = 0
        self._tail = b""

    def cut(self, chunk: bytes) -> Iterator[FramedLine]:
        """Only \\n ends a line: JSON may hold the other characters that look like an end."""
        *ended, unfinished = chunk.split(b"\n")
        for piece in ended:
            self._keep(piece)
            yield self._line()
        self._keep(unfinished)

    def flush(self) -> Iterator[FramedLine]:
        """What stood after the last end of a line, if anything."""
        if self._kept:
            yield self._line()

    def _keep(self, piece: bytes) -> None:
        room = self._limit - len(self._kept)
        self._kept += piece[:room]
        if len(piece) > room:
            self._left_out += len(piece) - room
            self._tail = (self._tail + piece[room:])[-EDGE_BYTES:]

    def _line(self) -> FramedLine:
        line = FramedLine(bytes(self._kept), self._left_out, self._tail)
        self._kept, self._left_out, self._tail = bytearray(), 0, b""
        return line
