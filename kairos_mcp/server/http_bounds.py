"""Bounds on what one HTTP server accepts from the network: sizes, times and counts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kairos_mcp.core.quick_dataclass import dataclass

if TYPE_CHECKING:
    from kairos_mcp.settings.settings import Settings


@dataclass(frozen=True, slots=True)
class RequestBounds:
    """Bounds of one server. Times are in seconds: `header_s` and `body_s` for all of a header or body to arrive,
    `unread_s` for a client to read an answer, `idle_s` for a session without a request, `shutdown_s` for requests to
    finish when the server ends. `calls_per_s`, `burst` and `principal_sessions` hold for each principal; `sessions` are
    shared among all. `trusted_proxies`: addresses and networks whose connections are those of many.

    512 connections leave half of the usual 1,024 descriptors to everything else; a legacy client's session takes one to
    listen and one for each call. The largest body is the SDK's own limit.
    """

    header_bytes: int = 16 * 2**10
    header_s: float = 10.0
    body_bytes: int = 4 * 2**20
    body_s: float = 30.0
    unread_s: float = 60.0
    connections: int = 512
    sessions: int = 256
    principal_sessions: int | None = None
    idle_s: float = 900.0
    calls_per_s: float = 100.0
    burst: int = 300
    shutdown_s: float = 1.0
    trusted_proxies: tuple[str, ...] = ()

    @staticmethod
    def from_settings(settings: Settings) -> RequestBounds:
        """The bounds that a person has set; the others are fixed."""
        return RequestBounds(
            sessions=settings.max_sessions,
            principal_sessions=settings.principal_sessions,
            calls_per_s=settings.rate_limit,
            burst=settings.rate_burst,
            shutdown_s=settings.shutdown_s,
            trusted_proxies=settings.trusted_proxies,
        )
