"""Who comes in over HTTP, and how often: a bearer token names a principal, each principal has its rate."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from mcp.server.auth.middleware.auth_context import AuthContextMiddleware
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from starlette.types import ASGIApp, Receive, Scope, Send

from kairos_mcp.core.identity import LOCAL
from kairos_mcp.server.bounds import RequestBounds
from kairos_mcp.server.http_guard import header, refuse
from kairos_mcp.server.tokens import TokenStore
from kairos_mcp.server.who import speaks_for

_CHALLENGE = {"www-authenticate": 'Bearer realm="kairos-mcp"'}


class AccessRule:
    """Whether a token is needed: beyond loopback always, else from the first one on until the server ends.

    Revoking the last token must not open the door to everybody.
    """

    def __init__(self, tokens: TokenStore, *, guarded: bool) -> None:
        self._tokens = tokens
        self._guarded = guarded

    def principal(self, authorization: str) -> str | None:
        """Whose request this is, or None for somebody who is not let in."""
        self._guarded = self._guarded or self._tokens.any()
        if not self._guarded:
            return LOCAL
        scheme, _, text = authorization.partition(" ")
        return self._tokens.principal_of(text.strip()) if scheme.lower() == "bearer" else None


@dataclass(slots=True)
class _Bucket:
    """What a principal may still ask for, as of `at`."""

    left: float
    at: float


class RateLimiter:
    """So many requests a second for each principal, after a burst."""

    def __init__(self, bounds: RequestBounds, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_s = bounds.calls_per_s
        self._burst = float(bounds.burst)
        self._clock = clock
        self._buckets: dict[str, _Bucket] = {}

    def wait_s(self, principal: str) -> float:
        """0 where the request may go on; else the seconds until the next one may."""
        now = self._clock()
        bucket = self._buckets.setdefault(principal, _Bucket(self._burst, now))
        bucket.left = min(self._burst, bucket.left + (now - bucket.at) * self._per_s)
        bucket.at = now
        if bucket.left < 1:
            return (1 - bucket.left) / self._per_s
        bucket.left -= 1
        return 0.0


class Authentication:
    """Lets requests in under their principal's name, for our rows and for the SDK's owners of sessions."""

    def __init__(self, app: ASGIApp, entrance: AccessRule, rates: RateLimiter) -> None:
        self._app = app
        self._named = AuthContextMiddleware(app)
        self._entrance = entrance
        self._rates = rates

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        principal = self._entrance.principal(header(scope, b"authorization"))
        if principal is None:
            refusal = refuse(401, "A bearer token is needed: `kairos-mcp token add NAME`.", headers=_CHALLENGE)
            await refusal(scope, receive, send)
            return
        wait_s = self._rates.wait_s(principal)
        if wait_s:
            later = {"retry-after": str(math.ceil(wait_s))}
            await refuse(429, "Too many requests; slow down.", headers=later)(scope, receive, send)
            return
        speaks_for(principal)
        if principal == LOCAL:
            await self._app(scope, receive, send)
            return
        scope["user"] = AuthenticatedUser(AccessToken(token="", client_id=principal, scopes=[]))
        await self._named(scope, receive, send)
