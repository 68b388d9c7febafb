"""What a command says: results on stdout, all else on stderr; texts from outside can't steer the terminal."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from kairos_mcp.core.text import truncate

_STEERING = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if code not in (9, 10)}
# the marks that turn the direction of writing, and those that can't be seen
_STEERING |= {code: f"\\u{code:04x}" for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A))}

_COLOURS = {"+": 32, "-": 31, "@": 36, "!": 33}  # the first character of a line of a diff, or of a remark on one


def plain(text: str) -> str:
    """The text with everything that a terminal would obey made visible."""
    return text.replace("\r\n", "\n").translate(_STEERING)


def say(text: str) -> None:
    """A line of the result."""
    print(plain(text))  # noqa: T201 - this is where a command speaks


def say_diff(text: str) -> None:
    """A preview, whole; in colours where the terminal shows them."""
    colours = sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    for line in text.removesuffix("\n").split("\n"):
        code = _COLOURS.get(line[:1]) if colours else None
        print(f"  {plain(line)}" if code is None else f"  \x1b[{code}m{plain(line)}\x1b[0m")  # noqa: T201 - as above


def tell(text: str) -> None:
    """A line beside the result."""
    print(plain(text), file=sys.stderr)  # noqa: T201 - this is where a command speaks


def say_json(value: Any) -> None:
    """The result as one JSON document. Its strings are escaped by JSON itself."""
    print(json.dumps(value, indent=2, ensure_ascii=True))  # noqa: T201 - this is where a command speaks


def line_of(text: str, width: int) -> str:
    """The text on one line, at most `width` characters, with … where some were left out."""
    return truncate(" ".join(plain(text).split()), width - 1)
