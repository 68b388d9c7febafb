"""How much one HTTP server takes on from the network: sizes, times and numbers, in one value."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RequestBounds:
    """`header_s` and `body_s`: in which the whole of it has to arrive; `unread_s`: how long a client may
    leave an answer unread; `idle_s`: how long a session lives without a request; `leaving_s`: what is left to
    a request when the server is told to end. `calls_per_s` and `burst` hold for each principal;
    `sessions` are shared out among those who have some.

    512 connections leave half of the usual 1,024 descriptors to the house; a legacy client's session takes
    one for what it listens to and one for each call. The largest body is the SDK's own.
    """

    header_bytes: int = 16 * 2**10
    header_s: float = 10.0
    body_bytes: int = 4 * 2**20
    body_s: float = 30.0
    unread_s: float = 60.0
    connections: int = 512
    sessions: int = 256
    idle_s: float = 900.0
    calls_per_s: float = 100.0
    burst: int = 300
    leaving_s: float = 1.0
