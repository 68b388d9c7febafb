"""One request to a provider with its reply: what the pass over both has to know, and what it found.

The libraries between us and the HTTP client don't hand anything on, so an exchange is current for the task that asks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import field
from typing import Any

from kairos_mcp.core.json_bounds import MESSAGE_VALUES, has_more_values
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.models.replies.finishes import Meaning
from kairos_mcp.models.replies.usage import TokenReport

_SURROGATE = re.compile("[\ud800-\udfff]")


class BadProviderReply(Exception):
    """A reply that no library should see. `retryable`: another attempt may succeed."""

    def __init__(self, reason: str, *, retryable: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retryable = retryable


def refuse_many_values(text: str | bytes) -> None:
    """Raise BadProviderReply for a JSON text of more values than are built in the event loop."""
    if has_more_values(text, MESSAGE_VALUES):
        raise BadProviderReply(f"it holds more than {MESSAGE_VALUES:,} values")


class UnexpectedRedirect(BadProviderReply):
    """A reply that only names another address. It isn't followed, since the key would go along.

    Nobody has worked on the request.
    """

    def __init__(self, status: int, host: str | None) -> None:
        where = "elsewhere" if host is None else f"to {host}"
        super().__init__(f"it answered with status {status}, which leads {where}, and a request with a key stays here")


class ErrorInReply(BadProviderReply):
    """An error where a completion should be, in a reply of status 200.

    `body` as in a reply of another status. `has_begun`: after a part of the completion, which has its price.
    """

    def __init__(self, body: object, *, has_begun: bool) -> None:
        super().__init__("it holds an error")
        self.body = body
        self.has_begun = has_begun


class BrokenOff(BadProviderReply):
    """A reply whose finish reason says that the server gave up."""

    def __init__(self, finish: str) -> None:
        super().__init__(f"the server broke off and says so ({finish[:60]!r})", retryable=True)


def mend_surrogates(text: str) -> str:
    """Return the text with U+FFFD in place of each half of a character; two halves that came apart are joined."""
    if _SURROGATE.search(text) is None:
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _ignore(_note: str) -> None:
    return None


@dataclass(slots=True)
class Exchange:
    """A request under way, with what its reply holds.

    `make_id` names the reply's call of this number, from 1; `on_text` hears the text as it comes; `note` takes what the
    run's result should tell. `refused`: the variations by which this server has to be asked; `possible`: those by
    which this request could still be asked. `details`: the `reasoning_details` to send back, by the id of a turn's
    first call.
    `keeps_parts`: the library takes a content in parts, thinking among them.

    Found in the reply: `usage` (`has_usage`: it was looked for; then None is no usage or an unreadable one;
    `reports_usage`: there is one, readable or not), what its `finish` reason means, and its own `reasoning_details`.
    """

    make_id: Callable[[int], str] = "call_{}".format
    on_text: Callable[[str], None] | None = None
    note: Callable[[str], None] = _ignore
    refused: set[str] = field(default_factory=set)
    possible: tuple[str, ...] = ()
    details: dict[str, list[Any]] = field(default_factory=dict)
    keeps_parts: bool = False
    has_usage: bool = False
    reports_usage: bool = False
    usage: TokenReport | None = None
    finish: Meaning | None = None
    reasoning_details: list[Any] | None = None

    def hear(self, text: str) -> None:
        """Pass on a piece of the answer's text."""
        if self.on_text is not None and text:
            self.on_text(mend_surrogates(text))

    def note_repair(self, what: str) -> None:
        """Note once in the run that replies of this server had to be repaired."""
        self.note(f"The provider's replies were repaired: {what}.")


_CURRENT: ContextVar[Exchange | None] = ContextVar("exchange", default=None)


def current_exchange() -> Exchange:
    """Return the exchange of the task that runs; a new one, which is dropped, if it has none."""
    return _CURRENT.get() or Exchange()


@contextmanager
def exchanging(exchange: Exchange) -> Iterator[Exchange]:
    """Make the exchange current until the block ends."""
    token = _CURRENT.set(exchange)
    try:
        yield exchange
    finally:
        _CURRENT.reset(token)
