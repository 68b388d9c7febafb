"""Render the Markdown of a model's words for a terminal: nothing in it is hidden, and nothing controls the terminal."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from io import StringIO
from typing import TYPE_CHECKING, TextIO

from kairos_mcp.cli.terminal import escape_control, rendered_columns

if TYPE_CHECKING:
    from markdown_it.token import Token

_FENCE = re.compile(r" {0,3}(```|~~~)")
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def render_markdown(text: str, columns: int) -> str:
    """Return a text as lines with colours. HTML is shown as it was written, a link with its address."""
    from markdown_it import MarkdownIt
    from rich.console import Console
    from rich.markdown import Markdown

    written = StringIO()
    colours = None if os.environ.get("NO_COLOR") else "standard"
    console = Console(file=written, force_terminal=True, color_system=colours, width=columns, legacy_windows=False)
    shown = Markdown("", hyperlinks=False)
    shown.parsed = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"]).parse(text)
    _escape(shown.parsed)
    console.print(shown)
    lines = (line.rstrip() for line in written.getvalue().split("\n"))
    return "\n".join(lines).replace("\u258c", "\u2502")  # rich's mark of a quotation is that of our questions


def _escape(tokens: Iterable[Token]) -> None:
    """Spell out the characters that an entity, as `&#8238;`, has brought into the tokens and a terminal would obey."""
    for token in tokens:
        token.content = escape_control(token.content)
        token.attrs = {name: escape_control(str(value)) for name, value in token.attrs.items()}
        _escape(token.children or ())


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
