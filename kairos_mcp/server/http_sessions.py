"""The sessions of one HTTP server: how many it holds, and which one ends when one too many begins.

A session outlives the connections of its client, and a stream may stay open though nobody listens any more. So when
all places are taken a new session is not refused: one of whoever holds the most ends for it. That gives each principal
an equal share as soon as others want theirs, and all of it to one that is alone. Where a number is set for each,
whoever has reached it gives up one of their own.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import field

from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.server.http_bounds import RequestBounds
from kairos_mcp.server.http_events import SessionEvents


@dataclass(slots=True, eq=False)
class HttpSession:
    """A client's session. `used_at`: when its client last sent a request or got an answer; `calls`: requests being
    answered; `streams`: open streams that it listens to. `close` ends it for the client; `on_end` is called once it has
    ended. `events`: of its streams."""

    principal: str
    used_at: float
    close: Close
    id: str = ""
    calls: int = 0
    streams: int = 0
    has_ended: bool = False
    on_end: Callable[[], None] = lambda: None
    events: SessionEvents = field(default_factory=SessionEvents)


Close = Callable[[HttpSession], Awaitable[None]]


class HttpSessions:
    """The sessions of both transports. One that ends is forgotten at once; one that the SDK ends by itself, idle for
    `idle_s`, is forgotten by the same rule when the next session begins."""

    def __init__(self, bounds: RequestBounds, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit = bounds.sessions
        self._limit_each = bounds.principal_sessions or bounds.sessions
        self._idle_s = bounds.idle_s
        self._clock = clock
        self._sessions: list[HttpSession] = []

    async def begin(self, principal: str, close: Close) -> HttpSession | None:
        """Begin a session of `principal`, ending another one if all places are taken; None if none may end for it."""
        now = self._clock()
        for session in self._sessions:
            if not (session.calls or session.streams or now - session.used_at < self._idle_s):
                self.end(session)
        evicted: HttpSession | None = None
        held = sum(session.principal == principal for session in self._sessions)
        if held >= self._limit_each or len(self._sessions) >= self._limit:
            evicted = self._choose_evicted(principal)  # of its own, where it holds the most that one may
            if evicted is None:
                return None
            self.end(evicted)
        session = HttpSession(principal, now, close)
        self._sessions.append(session)
        if evicted is not None:
            await evicted.close(evicted)
        return session

    def end(self, session: HttpSession) -> None:
        """Forget a session."""
        session.has_ended = True
        session.on_end()
        self._sessions = [other for other in self._sessions if other is not session]

    def find_session(self, session_id: str, principal: str) -> HttpSession | None:
        """Find the principal's session of that id."""
        if not session_id:
            return None
        owned = (session for session in self._sessions if session.principal == principal)
        return next((session for session in owned if session.id == session_id), None)

    @contextmanager
    def count_request(self, session: HttpSession, *, listens: bool = False) -> Iterator[None]:
        """Count a request of a session while the block lasts. One that only listens does not keep the session from
        ending for others."""
        session.calls += not listens
        session.streams += listens
        session.used_at = self._clock()
        try:
            yield
        finally:
            session.calls -= not listens
            session.streams -= listens
            session.used_at = self._clock()

    def _choose_evicted(self, principal: str) -> HttpSession | None:
        """The longest idle session of whoever holds the most, the new session counted. One with a request being
        answered ends only for somebody who holds less."""
        counts = Counter([principal, *(session.principal for session in self._sessions)])
        largest_count = max(counts.values())
        largest = [session for session in self._sessions if counts[session.principal] == largest_count]
        own = [session for session in largest if session.principal == principal]
        candidates = own or largest or self._sessions
        evicted = min(candidates, key=lambda session: (session.calls > 0, session.used_at), default=None)
        if evicted is not None and evicted.calls and counts[evicted.principal] <= counts[principal]:
            return None
        return evicted
