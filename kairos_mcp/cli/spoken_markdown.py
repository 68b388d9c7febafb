"""Print a model's words while they come, and render their Markdown paragraph by paragraph."""

from __future__ import annotations

import os
import re
import unicodedata
from typing import TextIO

from kairos_mcp.cli.markdown import COLOURS, render_markdown
from kairos_mcp.cli.terminal import rendered_columns

_FENCE = re.compile(r" {0,3}(```|~~~)")
_UNSURE = frozenset(("Cf", "Cn", "Co", "Cs", "Mc", "Me", "Mn", "Sk", "So"))  # marks, joiners, emoji


class SpokenMarkdown:
    """A text that is printed while it comes. On a terminal each paragraph is replaced by its rendered form once it is
    whole, as long as all of it is on the screen."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lines: list[str] = []  # of the paragraph that has begun
        self._line = ""
        self._fence: str | None = None

    def add(self, piece: str) -> None:
        """Print a piece, whose control characters have been spelled out."""
        *whole, rest = piece.split("\n")
        for part in whole:
            self._stream.write(f"{part}\n")
            self._end_line(self._line + part)
            self._line = ""
        self._stream.write(rest)
        self._line += rest

    def end(self) -> None:
        """End the text."""
        if self._line:
            self.add("\n")
        self._end_paragraph()

    def _end_line(self, line: str) -> None:
        self._lines.append(line)
        if (fence := _FENCE.match(line)) is not None:
            self._fence = fence[1] if self._fence is None else None if self._fence == fence[1] else self._fence
        if not line.strip() and self._fence is None:
            self._end_paragraph()

    def _end_paragraph(self) -> None:
        lines, self._lines, self._fence = self._lines, [], None
        columns = rendered_columns(self._stream)
        if (
            columns is None
            or not any(map(str.strip, lines))
            or not all(_has_known_width(line, columns) for line in lines)
        ):
            return
        from rich.cells import cell_len

        height = sum(max(1, -(-cell_len(line.expandtabs()) // columns)) for line in lines)
        if height >= os.get_terminal_size(self._stream.fileno()).lines:
            return
        text = "\n".join(lines)
        rendered = render_markdown(text, columns)
        is_plain = COLOURS.sub("", rendered).split() == text.split() and not COLOURS.search(rendered)
        if not is_plain:
            after = "" if lines[-1].strip() else "\n"
            self._stream.write(f"\x1b[{height}A\r\x1b[J{rendered.rstrip()}\n{after}")


def _has_known_width(line: str, columns: int) -> bool:
    """Whether every terminal gives a line the same room. If one gave it less than was counted, what was printed before
    it would be erased: tabs end at the right edge, and emoji join."""
    if "\t" in line and len(line.expandtabs()) > columns:
        return False
    return line.isascii() or not any(unicodedata.category(each) in _UNSURE for each in line)
