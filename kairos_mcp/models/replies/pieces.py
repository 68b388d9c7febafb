"""Put together what comes in pieces: each adds to those before it, or repeats all that has come and goes on.

OpenAI and Anthropic send the first kind. In the second kind each piece begins with the whole one before it, which no
piece of the first kind does.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from kairos_mcp.models.replies.exchange import refuse_many_values

MIN_REPEATED_CHARS = 20  # of a text that came before, by which two pieces alone tell: `ha` and `haha` are four ha
_MIN_LETTERS = 4  # different ones: a line of dashes may come in ever longer pieces


class GrowingText:
    """A text as its pieces come. `hear` gets the new part of each, once it is clear which that is."""

    def __init__(self, hear: Callable[[str], None] = lambda _: None) -> None:
        self._hear = hear
        self._pieces: list[str] = []
        self._size = 0
        self._unheard: list[str] = []  # pieces of which it is not clear yet whether they repeat those before
        self._last: str | None = ""  # the piece before, as long as each began with the one before it
        self.repeats = False

    def add(self, piece: str) -> None:
        if self.repeats and self._last is not None and piece.startswith(self._last):
            self._hear(piece[len(self._last) :])
            self._last = piece
        elif self._is_whole_again(piece):
            self.repeats = True
        else:
            self._append(piece)

    def end(self) -> None:
        """Decide what the pieces are, if they have not told by now. Further ones may still come."""
        if self._unheard and self._last is not None and len(self._pieces[0]) >= MIN_REPEATED_CHARS:
            self._take_as_repeating()
        else:
            self._hear_all()

    def __str__(self) -> str:
        return self._last if self.repeats and self._last is not None else "".join(self._pieces)

    def _append(self, piece: str) -> None:
        if self.repeats and self._last is not None:  # what has been repeated up to here is one piece
            self._pieces, self._size, self._last = [self._last], len(self._last), None
        grows = self._last is not None and len(piece) > len(self._last) and piece.startswith(self._last)
        is_first = not self._pieces
        self._last = piece if grows else None
        self._pieces.append(piece)
        self._size += len(piece)
        if is_first:
            self._hear(piece)
            return
        self._unheard.append(piece)
        if self._last is None:
            self._hear_all()
        elif len(self._pieces) > 2 and len(set(piece)) >= _MIN_LETTERS:
            self._take_as_repeating()

    def _is_whole_again(self, piece: str) -> bool:
        """Whether this is all the text once more, as some servers send it at the end."""
        if len(piece) != self._size or self._size < MIN_REPEATED_CHARS or len(self._pieces) < 3:
            return False
        return len(set(piece)) >= _MIN_LETTERS and "".join(self._pieces) == piece

    def _take_as_repeating(self) -> None:
        self.repeats, self._unheard = True, []
        self._hear(str(self)[len(self._pieces[0]) :])

    def _hear_all(self) -> None:
        for piece in self._unheard:
            self._hear(piece)
        self._unheard = []


class ArgumentPieces:
    """The arguments of a call as their pieces come, which add up to one JSON object."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._scanner = _ObjectScanner()
        self._size = 0
        self._last: str | None = ""  # the piece before, as long as each began with the one before it
        self._last_is_whole = False

    def __bool__(self) -> bool:
        return bool(self._pieces)

    @property
    def is_complete(self) -> bool:
        return self._scanner.is_complete or self._last_is_whole

    def add(self, piece: str) -> None:
        if not piece or (self._size == len(piece) and self._scanner.is_complete and "".join(self._pieces) == piece):
            return
        self._last = piece if self._last is not None and piece.startswith(self._last) else None
        self._last_is_whole = self._last is not None and bool(self._pieces) and _is_whole_object(piece)
        self._pieces.append(piece)
        self._size += len(piece)
        self._scanner.scan(piece)

    def text(self) -> str:
        joined = "".join(self._pieces)
        if not self._last_is_whole or self._last is None:
            return joined
        refuse_many_values(joined)
        try:
            json.loads(joined)
        except (ValueError, RecursionError):
            return self._last
        return joined


class _ObjectScanner:
    """Finds out whether a text that comes in pieces is one whole object by now, looking at each character once."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = self._is_escaped = self._has_begun = False

    @property
    def is_complete(self) -> bool:
        return self._has_begun and self._depth == 0

    def scan(self, piece: str) -> None:
        for char in piece:
            if self._is_escaped:
                self._is_escaped = False
            elif self._in_string:
                self._is_escaped, self._in_string = char == "\\", char != '"'
            elif char == '"':
                self._in_string = True
            elif char in "{[":
                self._depth, self._has_begun = self._depth + 1, True
            elif char in "}]":
                self._depth -= 1


def _is_whole_object(text: str) -> bool:
    scanner = _ObjectScanner()
    scanner.scan(text)
    return scanner.is_complete
