"""Render the Markdown of a model's words for a terminal: nothing in it is hidden, and nothing controls the terminal."""

from __future__ import annotations

import html
import os
import re
from collections import Counter
from collections.abc import Iterable
from io import StringIO
from typing import TYPE_CHECKING, Literal

from kairos_mcp.cli.escape import escape_control

MAX_CHARS, MAX_LINES = 20_000, 500  # of a text that is rendered: some 0.3 s at most
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_FORM = re.compile(
    r"(?m)^[ >]*\d+[.)](?= )|^ {0,3}(?:```+|~~~+) *[\w+-]*$"
)  # the number of an item, a language of code

if TYPE_CHECKING:
    from markdown_it.token import Token


def render_markdown(text: str, columns: int) -> str:
    """Return a text as lines with colours: HTML as it was written, a link with its address. The whole text is as it was
    written where it is long, or where something of it would not be shown, as the address of a picture."""
    if len(text) > MAX_CHARS or text.count("\n") > MAX_LINES:
        return text
    from markdown_it import MarkdownIt
    from rich.console import Console
    from rich.markdown import Markdown

    written = StringIO()
    colours: Literal["standard"] | None = None if os.environ.get("NO_COLOR") else "standard"
    console = Console(file=written, force_terminal=True, color_system=colours, width=columns, legacy_windows=False)
    shown = Markdown("", hyperlinks=False)
    shown.parsed = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"]).parse(text)
    _escape(shown.parsed)
    console.print(shown)
    lines = (line.rstrip() for line in written.getvalue().split("\n"))
    rendered = "\n".join(lines).replace("\u258c", "\u2502")  # rich's mark of a quotation is that of our questions
    words = escape_control(html.unescape(_FORM.sub("", text)))
    return text if _letters(words) - _letters(COLOURS.sub("", rendered)) else rendered


def _letters(text: str) -> Counter[str]:
    return Counter(filter(str.isalnum, text))


def _escape(tokens: Iterable[Token]) -> None:
    """Spell out the characters that an entity, as `&#8238;`, has brought into the tokens and a terminal would obey."""
    for token in tokens:
        token.content = escape_control(token.content)
        token.attrs = {name: escape_control(str(value)) for name, value in token.attrs.items()}
        _escape(token.children or ())
