"""Authentication over HTTP: a bearer token names a principal, and each principal has a rate limit."""

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
from kairos_mcp.server.call import set_principal
from kairos_mcp.server.http_bounds import RequestBounds
from kairos_mcp.server.http_guard import header, refuse
from kairos_mcp.server.tokens import TokenStore

_CHALLENGE = {"www-authenticate": 'Bearer realm="kairos-mcp"'}


class AccessRule:
    """Whether a token is needed: beyond loopback always, else once there is a token, until the server ends.

    Revoking the last token must not give access to everybody.
    """

    def __init__(self, tokens: TokenStore, *, needs_token: bool) -> None:
        self._tokens = tokens
        self._needs_token = needs_token

    def principal(self, authorization: str) -> str | None:
        """The principal of a request with this Authorization header; None if it is refused."""
        self._needs_token = self._needs_token or self._tokens.any()
        if not self._needs_token:
            return LOCAL
        scheme, _, token = authorization.partition(" ")
        return self._tokens.find_principal(token.strip()) if scheme.lower() == "bearer" else None


@dataclass(slots=True)
class _Bucket:
    """How many requests a principal may still make, as of `at`."""

    left: float
    at: float


class RateLimiter:
    """Limits each principal to so many requests a second, after a burst."""

    def __init__(self, bounds: RequestBounds, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_s = bounds.calls_per_s
        self._burst = float(bounds.burst)
        self._clock = clock
        self._buckets: dict[str, _Bucket] = {}

    def wait_s(self, principal: str) -> float:
        """Count a request: 0 if it may go on, else the seconds until the next one may."""
        now = self._clock()
        bucket = self._buckets.setdefault(principal, _Bucket(self._burst, now))
        bucket.left = min(self._burst, bucket.left + (now - bucket.at) * self._per_s)
        bucket.at = now
        if bucket.left < 1:
            return (1 - bucket.left) / self._per_s
        bucket.left -= 1
        return 0.0


class Authentication:
    """Middleware: admits requests as their principal, for our rows and for the SDK's owners of sessions."""

    def __init__(self, app: ASGIApp, access: AccessRule, rates: RateLimiter) -> None:
        self._app = app
        self._with_user = AuthContextMiddleware(app)
        self._access = access
        self._rates = rates

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        principal = self._access.principal(header(scope, b"authorization"))
        if principal is None:
            refusal = refuse(401, "A bearer token is needed: `kairos-mcp token add NAME`.", headers=_CHALLENGE)
            await refusal(scope, receive, send)
            return
        wait_s = self._rates.wait_s(principal)
        if wait_s:
            headers = {"retry-after": str(math.ceil(wait_s))}
            await refuse(429, "Too many requests; slow down.", headers=headers)(scope, receive, send)
            return
        set_principal(principal)
        if principal == LOCAL:
            await self._app(scope, receive, send)
            return
        scope["user"] = AuthenticatedUser(AccessToken(token="", client_id=principal, scopes=[]))
        await self._with_user(scope, receive, send)
