"""Redact what comes from outside without holding the event loop: a large text is redacted in a worker thread.

Everything that a client brings is redacted through here before it becomes a row; functions of core/redact_values.py do
the work. Each await is done before a row is written, so that rows keep the order of the requests that write them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import ParamSpec, TypeVar

Given = ParamSpec("Given")
Plain = TypeVar("Plain")

SMALL_CHARS = 10_000  # of texts in a value that are redacted at once: the worst take about 10 ms


async def redact_aside(redact: Callable[Given, Plain], *given: Given.args, **named: Given.kwargs) -> Plain:
    """Call a function that redacts these values, in a worker thread if they hold more than a little text."""
    if count_chars((given, named)) <= SMALL_CHARS:
        return redact(*given, **named)
    return await asyncio.to_thread(redact, *given, **named)


def count_chars(value: object) -> int:
    """Count the characters of all texts in a value: JSON, a record, or a sequence of them."""
    match value:
        case str():
            return len(value)
        case dict():
            return sum(count_chars(name) + count_chars(item) for name, item in value.items())
        case list() | tuple():
            return sum(map(count_chars, value))
        case _ if is_dataclass(value):
            return sum(count_chars(getattr(value, each.name)) for each in fields(value))
        case _:
            return 0
