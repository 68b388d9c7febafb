"""How many there are of something, in words that a person reads."""

from __future__ import annotations


def many(count: int, word: str, words: str | None = None) -> str:
    """The count and its word in the right number: `1 call`, `2,000 calls`; `words` where an s alone makes no plural."""
    return f"{count:,} {word if count == 1 else words or word + 's'}"
