"""How many there are of something, and how old it is, in words that a person reads."""

from __future__ import annotations


def count_of(count: int, word: str, words: str | None = None) -> str:
    """The count and its word in the right number: `1 call`, `2,000 calls`; `words` where an s alone makes no plural."""
    return f"{count:,} {word if count == 1 else words or word + 's'}"


def format_age(seconds: float) -> str:
    """How long something has been there, in its largest whole unit: `40 s`, `3 h`, `12 d`."""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return f"{max(0, int(seconds))} s"
