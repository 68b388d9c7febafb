"""Print a model's words while they come, and render their Markdown paragraph by paragraph."""

from __future__ import annotations

import os
import re
from typing import TextIO

from kairos_mcp.cli.markdown import render_markdown
from kairos_mcp.cli.terminal import rendered_columns

_FENCE = re.compile(r" {0,3}(```|~~~)")
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


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
        if columns is None or not any(map(str.strip, lines)):
            return
        from rich.cells import cell_len

        text = "\n".join(lines)
        rendered = render_markdown(text, columns)
        height = sum(max(1, -(-cell_len(line.expandtabs()) // columns)) for line in lines)
        is_plain = _COLOURS.sub("", rendered).split() == text.split() and not _COLOURS.search(rendered)
        if not is_plain and height < os.get_terminal_size(self._stream.fileno()).lines:
            after = "" if lines[-1].strip() else "\n"
            self._stream.write(f"\x1b[{height}A\r\x1b[J{rendered.rstrip()}\n{after}")
