"""Fold the events of a streamed reply, so that a stream leaves exactly what a whole reply would have left.

Its text is heard as it comes. Each fold takes the decoded events in their order; `reply` is what they add up to, in
the form of a whole reply, and is repaired like one. Each form has its fold: chat_fold.py, message_fold.py and
response_fold.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from kairos_mcp.core.messages import JsonObject
from kairos_mcp.models.replies.chat import take_usage
from kairos_mcp.models.replies.errors import read_error
from kairos_mcp.models.replies.exchange import ErrorInReply, Exchange

REPEATS = "pieces that repeat those before them were taken once"


class Fold(Protocol):
    """What the events of one form add up to. `has_ended`: an event has said so, though more of it may come."""

    @property
    def has_ended(self) -> bool: ...

    def take(self, event: JsonObject) -> None: ...

    def reply(self, *, is_done: bool) -> JsonObject: ...


def cut_off(said: JsonObject | None) -> str:
    """Return that a stream is cut off, with what it `said` beside an answer."""
    return f"it is cut off ({read_error(said).words[:200]})" if said else "it is cut off"


def end_in_error(
    error: object,
    exchange: Exchange,
    usages: Iterable[object],
    *,
    has_begun: bool,
    is_covered: bool,
    cache_is_apart: bool = False,
) -> ErrorInReply:
    """Return the error that ends a stream, with what the stream has reported by then in the exchange.

    `is_covered`: no piece came after the last report. Else the report says too little, and the whole reservation is
    charged.
    """
    take_usage(exchange, iter(usages), cache_is_apart=cache_is_apart)
    if not is_covered:
        exchange.usage = None
    return ErrorInReply(error, has_begun=has_begun or exchange.reports_usage)


def index_of(event: JsonObject) -> int | None:
    """Return the index that an event names, or None. Some servers send it as a text."""
    match event.get("index"):
        case int(index):
            return index
        case str(text) if text.isdecimal():
            return int(text[:9])
        case _:
            return None
