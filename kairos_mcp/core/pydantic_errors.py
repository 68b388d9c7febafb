"""What is wrong with values that pydantic refused, in words that quote none of them: one may be a key."""

from __future__ import annotations

from typing import NamedTuple

from pydantic_core import ValidationError

PLACE_CHARS = 80


class Problem(NamedTuple):
    """A problem: pydantic's name of its kind, where it is (`limits.usd`; empty: the whole value), and what it is."""

    kind: str
    place: str
    message: str


def first_problem(error: ValidationError) -> Problem:
    """Return the first problem, without any value."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    return Problem(first["type"], ".".join(str(part) for part in first["loc"])[:PLACE_CHARS], first["msg"])
