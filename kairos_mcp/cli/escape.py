"""Spell out what a terminal would obey in a text from outside."""

from __future__ import annotations

ESCAPES = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if code not in (9, 10)}
# characters that turn the direction of writing
ESCAPES |= {code: f"\\u{code:04x}" for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A))}
MARK = "\u258c "  # begins each line of a question to the person
# Characters that look like it, anywhere: a long line is broken by the terminal, and any of its words may come first.
ESCAPES |= {code: f"\\u{code:04x}" for code in (*range(0x2588, 0x2591), *range(0x2758, 0x275B))}


def escape_control(text: str) -> str:
    """The text with every character spelled out that a terminal would obey, or that looks like a question's mark."""
    return text.replace("\r\n", "\n").translate(ESCAPES)
