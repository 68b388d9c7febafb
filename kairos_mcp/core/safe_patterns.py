"""Patterns of schemas, compiled by RE2 within bounds of work and of memory.

RE2 takes time in proportion to a text, but the factor is the size of the pattern's program, and `\\pL{300}` has one of
360,000 instructions, which alone takes 120 ms and 8 MB to compile. So a pattern is refused before its program grows
large, and a search is charged by the product of both sizes.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from kairos_mcp.core.errors import SchemaRejected
from kairos_mcp.core.text import truncate
from kairos_mcp.core.work import Work

PATTERN_CHARS = 1_000
PATTERN_BYTES = 512 * 1024  # of a pattern's program and its automaton; to find out that one is larger takes 2 ms
UNICODE_CLASSES = 50  # such as \pL, each of which takes up to 76 microseconds to write out, whatever the program's size
SEARCH_UNITS = 10  # of a search in a text of no length: the way into the library and back
KEPT_PATTERNS = 64  # so all compiled patterns take at most 32 MiB
BYTES_PER_UNIT = 64  # of the product of a text and a program: an instruction takes at most 3 ns for a byte


def compile_safe_pattern(pattern: str) -> Any:
    """Compile a pattern for texts in UTF-8 with RE2, whose time is linear.

    Raises SchemaRejected for what RE2 can't do, or not cheaply.
    """
    if len(pattern) > PATTERN_CHARS or pattern.lower().count("\\p") > UNICODE_CLASSES:
        raise SchemaRejected(
            f"Pattern {truncate(pattern, 80, '...')} is too large.",
            f"At most {PATTERN_CHARS} characters and {UNICODE_CLASSES} classes such as \\pL.",
        )
    return _compile(pattern)


@lru_cache(maxsize=KEPT_PATTERNS)
def _compile(pattern: str) -> Any:
    import re2

    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    options.max_mem = PATTERN_BYTES
    try:
        return re2.compile(pattern.encode(), options=options)
    except re2.error as error:
        shown = truncate(pattern, 80, "... ({total} characters)")
        if "too large" in str(error.args[0]):
            raise SchemaRejected(
                f"Pattern {shown} is too large once its repetitions are written out.", "Repeat less, or classes less."
            ) from None
        raise SchemaRejected(f"Pattern {shown} is not RE2.", "No look-around, no back-references.") from None


def search_safely(pattern: str, text: str, work: Work) -> bool:
    """Whether the text matches somewhere. Raises TooMuchWork before a search that costs more than is left."""
    compiled, searched = compile_safe_pattern(pattern), text.encode()
    work.spend(SEARCH_UNITS + len(searched) * compiled.programsize // BYTES_PER_UNIT)
    return compiled.search(searched) is not None
