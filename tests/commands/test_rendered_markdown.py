"""The Markdown of a model on a terminal: nothing of it is lost, and nothing that was printed before it is erased."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import termios
from collections.abc import Callable, Iterator

import pytest

from kairos_mcp.cli.markdown import MAX_CHARS, MAX_LINES, render_markdown
from kairos_mcp.cli.spoken_markdown import SpokenMarkdown

END = "\x00"
Speak = Callable[[str], str]


@pytest.fixture
def speak(monkeypatch: pytest.MonkeyPatch) -> Iterator[Speak]:
    """Says a text on a terminal of 24 lines and 80 columns, and returns all that was written there."""
    monkeypatch.setenv("TERM", "xterm")
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    with os.fdopen(theirs, "w") as stream:

        def said(text: str) -> str:
            spoken = SpokenMarkdown(stream)
            spoken.add(text)
            spoken.end()
            print(END, file=stream, flush=True)
            shown = b""
            while END.encode() not in shown:  # a terminal hands it over in parts
                shown += os.read(ours, 1 << 16)
            return shown.decode()

        yield said
    os.close(ours)


@pytest.mark.parametrize(
    "hidden",
    [
        "![alt](https://evil.example/x.png)",
        "[text](https://a.example 'a title')",
        "```python and more\nprint()\n```",
        "[name]: https://evil.example\n\nelse",
        "| a | b |\n|---|---|\n| 1 | 2 | more |",
    ],
)
def test_what_would_not_be_shown_leaves_the_text_as_it_was_written(hidden: str) -> None:
    assert render_markdown(hidden, 80) == hidden


@pytest.mark.parametrize(
    "shown",
    ["**bold**", "3. one\n3. two", "```python\nprint()\n```", "&lt;b&gt; &#8238;x", "| a | b |\n|---|---|\n| 1 | 2 |"],
)
def test_all_else_is_rendered(shown: str) -> None:
    assert render_markdown(shown, 80) != shown


@pytest.mark.parametrize("long", ["*a* " * (MAX_CHARS // 4 + 1), "~~~\n" * (MAX_LINES + 1)])
def test_a_long_text_is_shown_as_it_was_written(long: str) -> None:
    assert render_markdown(long, 80) == long


def test_a_paragraph_is_rendered_over_itself(speak: Speak) -> None:
    assert re.findall(r"\x1b\[(\d+)A", speak("a **b** \u00e9 \u6f22 " * 8 + "\n\n")) == ["3"]


@pytest.mark.parametrize(
    "narrow", ["\t" * 150, "\U0001f468\u200d\U0001f469\u200d\U0001f467" * 40, "e" + "\u0301" * 300, "\u00ad" * 300]
)
def test_what_may_be_narrower_than_it_counts_erases_nothing_before_it(speak: Speak, narrow: str) -> None:
    assert not re.search(r"\x1b\[\d+A", speak(f"**b** {narrow}\n\n"))
