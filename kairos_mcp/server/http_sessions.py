"""How many sessions one HTTP server holds, and whose ends when one more begins.

A session outlives the connections of its client, and a stream may be held open by nobody who still listens. So where
all places are taken a newcomer is not turned away: a session ends for it, of whoever holds the most. That gives each
principal an equal share as soon as others want theirs, and one that is alone all of it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from kairos_mcp.server.bounds import RequestBounds


@dataclass(slots=True, eq=False)
class HttpSession:
    """`used_at`: when its client last sent a request or got an answer; `calls`: its requests that are being answered;
    `streams`: what is open for it to listen to. `close` ends it for its client."""

    principal: str
    used_at: float
    close: Close
    id: str = ""
    calls: int = 0
    streams: int = 0
    has_ended: bool = False


Close = Callable[[HttpSession], Awaitable[None]]


class HttpSessions:
    """The sessions of both transports. What ends is forgotten here at once; what the SDK gives up unasked, because it
    was idle for `idle_s`, by the same rule when the next session begins."""

    def __init__(self, bounds: RequestBounds, clock: Callable[[], float] = time.monotonic) -> None:
        self._room = bounds.sessions
        self._idle_s = bounds.idle_s
        self._clock = clock
        self._held: list[HttpSession] = []

    async def begin(self, principal: str, close: Close) -> HttpSession | None:
        """Give a place to a new session of `principal`, if need be another one's; None where none can be had."""
        now = self._clock()
        self._held = [each for each in self._held if each.calls or each.streams or now - each.used_at < self._idle_s]
        leaves: HttpSession | None = None
        if len(self._held) >= self._room:
            leaves = self._first_to_go(principal)
            if leaves is None:
                return None
            self.end(leaves)
        session = HttpSession(principal, now, close)
        self._held.append(session)
        if leaves is not None:
            await leaves.close(leaves)
        return session

    def end(self, session: HttpSession) -> None:
        """Forget a session."""
        session.has_ended = True
        self._held = [each for each in self._held if each is not session]

    def find_session(self, session_id: str, principal: str) -> HttpSession | None:
        """Find the principal's session of that id."""
        mine = (each for each in self._held if each.id == session_id and each.principal == principal)
        return next(mine, None) if session_id else None

    @contextmanager
    def count_request(self, session: HttpSession, *, listens: bool = False) -> Iterator[None]:
        """Count a request of a session while the block lasts. One that only listens keeps nobody else out."""
        session.calls += not listens
        session.streams += listens
        session.used_at = self._clock()
        try:
            yield
        finally:
            session.calls -= not listens
            session.streams -= listens
            session.used_at = self._clock()

    def _first_to_go(self, principal: str) -> HttpSession | None:
        """The longest idle session of whoever holds the most, the newcomer counted. One that is being answered ends
        only for somebody who holds less."""
        held = Counter([principal, *(each.principal for each in self._held)])
        most = max(held.values())
        richest = [each for each in self._held if held[each.principal] == most]
        own = [each for each in richest if each.principal == principal]
        first = min(own or richest or self._held, key=lambda each: (each.calls > 0, each.used_at), default=None)
        if first is not None and first.calls and held[first.principal] <= held[principal]:
            return None
        return first
