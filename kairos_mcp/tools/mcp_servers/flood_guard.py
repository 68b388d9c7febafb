"""Watches what a downstream server sends unasked: it is counted, most of it is dropped, and too much ends the line."""

from __future__ import annotations

import time
from collections import Counter

import mcp_types as wire

MESSAGES = 2_000  # that nobody asked for, at once
PER_SECOND = 100  # and from then on
REQUESTS = 1_000  # of theirs, each of which is answered, on one connection
LINE_BYTES = 8 * 1024 * 1024
REFUSED = {
    "sampling/createMessage": "the model",
    "elicitation/create": "the user",
    "roots/list": "the folders of this client",
}
_HEARD = {"notifications/tools/list_changed", "notifications/subscriptions/acknowledged"}


class FloodError(Exception):
    """The server sends more than is read."""


class ConnectionWatch:
    """What one connection has done. `changed`: its tools may be others now; `asked`: what it asked for and was refused,
    by method; `why`: the reason that it ended for, once it has; `stderr`: the end of what it wrote there."""

    def __init__(self) -> None:
        self.changed = False
        self.asked: Counter[str] = Counter()
        self.unreadable = 0
        self.why: str | None = None
        self.stderr = bytearray()
        self._left = float(MESSAGES)
        self._at = time.monotonic()

    def admit(self, message: wire.JSONRPCMessage) -> bool:
        """Whether the message goes on to the session. Raises Flooded."""
        match message:
            case wire.JSONRPCNotification(method=method):
                self.count()
                if method == "notifications/tools/list_changed":
                    self.changed = True
                return method in _HEARD
            case wire.JSONRPCRequest(method=method):
                self.count()
                if method in REFUSED:
                    self.asked[method] += 1
                if self.asked.total() > REQUESTS:
                    raise FloodError(f"it asked for {REFUSED.get(method, 'things')} over {REQUESTS:,} times")
                return True
            case _:
                return True

    def garbled(self) -> None:
        """A line that is no message: some servers print. Raises Flooded."""
        self.unreadable += 1
        self.count()

    def count(self) -> None:
        """One more that nobody asked for. Raises Flooded."""
        now = time.monotonic()
        self._left = min(MESSAGES, self._left + (now - self._at) * PER_SECOND) - 1
        self._at = now
        if self._left < 0:
            raise FloodError(f"it sent over {MESSAGES:,} messages that nobody asked for")

    def ended(self, why: str) -> None:
        """The first reason counts."""
        if self.why is None:
            self.why = why
