"""Authentication over HTTP: a token names a principal and what it may do, and each principal has a rate limit."""

from __future__ import annotations

import logging
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping

import anyio
import mcp_types as wire
from mcp.server.auth.middleware.auth_context import AuthContextMiddleware
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken, TokenVerifier
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Send
from starlette.types import Scope as AsgiScope

from kairos_mcp.core.decision_rights import LOCAL
from kairos_mcp.core.errors import KairosError, StoreUnavailable
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.server.http_bounds import RequestBounds
from kairos_mcp.server.http_guard import REQUEST_ID, TOOL, error_response, header, refuse
from kairos_mcp.server.http_places import Peers, Places, refuse_place
from kairos_mcp.server.sender import ALL_SCOPES, SCOPES, Scope, has_scope, set_end, set_principal, set_scopes
from kairos_mcp.server.tokens import Tokens
from kairos_mcp.store.outage_log import OutageLog
from kairos_mcp.telemetry.names import TOKENS_REFUSED
from kairos_mcp.telemetry.tally import PROCESS_TALLY

log = logging.getLogger(__name__)


class TokenExpired(Exception):
    """The token gave access until a moment that is over."""


class KeysUnavailable(Exception):
    """The authorization server's keys can't be had, so that nothing is known of a token."""


REFUSAL_WORDS = {
    "missing": "it has no token (missing)",
    "invalid": "its token is wrong, revoked, or none of this server (invalid)",
    "expired": "its token has expired (expired)",
    "scope": "its token has not the scope run (scope)",
    "rate": "its principal makes too many requests (rate)",
}
SILENT_S = 60.0
MAX_PEERS = 1_024

ADMIN_TOOLS = frozenset({"registry_register"})
LOOKING = "run_status"
OBSERVING_TOOLS = frozenset({LOOKING, "run_trace", "budget_status", "mandate_list", "registry_search"})
UNDECIDING: Collection[Scope] = ("run", "admin")


@dataclass(frozen=True, slots=True)
class Admission:
    """The principal and scopes of an admitted request, and when its token ends (milliseconds since 1970). `token`: the
    SDK's view of them."""

    principal: str
    scopes: Collection[str] = SCOPES
    ends_at: int | None = None
    token: AccessToken | None = None


class AccessRule:
    """Who is admitted: who brings a token, and with `no_auth` also who brings none.

    They act as the local owner then, and decide nothing: any program of this machine may be the one that calls.
    """

    def __init__(self, tokens: Tokens, *, no_auth: bool = False, oauth: TokenVerifier | None = None) -> None:
        self._tokens = tokens
        self._outages = OutageLog(__name__)
        self._oauth = oauth
        self._no_auth = no_auth

    async def admit(self, authorization: str) -> Admission | None:
        """Return as whom a request with this Authorization header is admitted; None if it is refused. Raises
        TokenExpired, KeysUnavailable, the store's errors."""
        scheme, _, text = authorization.partition(" ")
        token = text.strip() if scheme.lower() == "bearer" else ""
        if self._no_auth and not authorization:
            return Admission(LOCAL, UNDECIDING)
        began = time.monotonic()  # a database that was reached before is waited for
        try:
            held = await self._tokens.look_up(token)
        except KairosError as error:
            self._outages.note(error, began)
            raise
        self._outages.end()
        if not token:
            return None
        if held is not None:
            if held.has_expired(self._tokens.now()):
                raise TokenExpired
            view = AccessToken(token="", client_id=held.name, scopes=list(held.scopes))
            return Admission(held.name, held.scopes, held.expires_at, view)
        found = None if self._oauth is None else await self._oauth.verify_token(token)
        if found is None:
            return None
        issuer = (found.claims or {})["iss"]
        ends_at = None if found.expires_at is None else found.expires_at * 1_000
        return Admission(f"oauth:{issuer}|{found.subject}", frozenset(found.scopes), ends_at, found)

    async def check_store(self) -> None:
        """Look whether anybody can be admitted, so that the log says why not before the first request."""
        try:
            await self.admit("")
        except KairosError:
            pass  # which is logged
        except Exception:
            log.exception("whether anybody can be admitted is not known")


class Challenge:
    """The challenge to a refused client (RFC 6750, and RFC 9728 with OAuth): where to read which authorization server
    issues tokens, and which scopes to request."""

    def __init__(self, metadata_url: str | None = None) -> None:
        self._metadata_url = metadata_url

    def refuse_token(self, *, has_token: bool) -> Response:
        """Refuse a request that has no token, or one that is not valid here."""
        error = {"error": "invalid_token", "error_description": "The token is not valid here."} if has_token else {}
        how = "`kairos-mcp token add NAME`, or `kairos-mcp install HOST --http`"
        text = f"A bearer token is needed: {how}."
        if has_token:
            text = f"This token is not valid here: it is wrong, was revoked, or has expired. A new one: {how}."
        if self._metadata_url is not None:
            text = "A token is needed: of the authorization server that the metadata of this resource names."
        return refuse(401, text, headers=self._header(error, "run approve"))

    def refuse_scope(self, missing: Scope, held: Collection[str]) -> Response:
        """Refuse a request for which the token has no scope."""
        wanted = " ".join(scope for scope in ALL_SCOPES if scope == missing or scope in held)
        error = {"error": "insufficient_scope", "error_description": f"The scope {missing} is needed."}
        return refuse(403, f"The token has no scope {missing}.", headers=self._header(error, wanted))

    def _header(self, error: Mapping[str, str], scopes: str) -> dict[str, str]:
        fields = {"realm": "kairos-mcp", **error}
        if self._metadata_url is not None:
            fields |= {"scope": scopes, "resource_metadata": self._metadata_url}
        return {"www-authenticate": "Bearer " + ", ".join(f'{name}="{value}"' for name, value in fields.items())}


class RateLimiter:
    """A token bucket per principal: a burst, then a steady rate of requests."""

    def __init__(self, bounds: RequestBounds, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_s = bounds.calls_per_s
        self._burst = float(bounds.burst)
        self._clock = clock
        self._buckets: dict[str, tuple[float, float]] = {}  # how many requests are left, and as of when

    def wait_s(self, principal: str) -> float:
        """Count a request: 0 if it may go on, else the seconds until the next one may."""
        now = self._clock()
        left, at = self._buckets.get(principal, (self._burst, now))
        left = min(self._burst, left + (now - at) * self._per_s)
        if left < 1:
            self._buckets[principal] = (left, now)
            return (1 - left) / self._per_s
        self._buckets[principal] = (left - 1, now)
        return 0.0


class Refusals:
    """Counts the requests that are not admitted, and logs them: for each reason and peer a line, and a minute later how
    many more there were, so that nobody can fill the log."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._silent: OrderedDict[tuple[str, str], tuple[float, int]] = OrderedDict()  # until when, and how many came

    def note(self, reason: str, peer: str) -> None:
        """Note a refusal for one of the reasons in `names.REFUSALS`."""
        PROCESS_TALLY.add(TOKENS_REFUSED, reason)
        until, more = self._silent.get((reason, peer), (0.0, 0))
        if (now := self._clock()) < until:
            self._silent[reason, peer] = until, more + 1
            return
        self._silent[reason, peer] = now + SILENT_S, 0
        self._silent.move_to_end((reason, peer))
        while len(self._silent) > MAX_PEERS:
            self._silent.popitem(last=False)
        since = f" ({more} more since the last line)" if more else ""
        log.warning("refused a request of %s: %s%s", peer, REFUSAL_WORDS[reason], since)


class Authentication:
    """Middleware: admits requests as their principal, for our rows and for the SDK's owners of sessions.

    Until it is admitted, a request holds a place of its peer, since a database or an authorization server may have to
    be asked first. `answer_unavailable` answers while the store can't be read, so that nobody knows whose a request is;
    `within_s`: and after so long, for who has less patience than a database that is away is given.
    """

    def __init__(
        self,
        app: ASGIApp,
        access: AccessRule,
        rates: RateLimiter,
        places: Places,
        peers: Peers,
        challenge: Challenge,
        answer_unavailable: ASGIApp,
        within_s: float = math.inf,
    ) -> None:
        self._app = app
        self._within_s = within_s
        self._with_user = AuthContextMiddleware(app)
        self._access = access
        self._rates = rates
        self._places = places
        self._peers = peers
        self._challenge = challenge
        self._answer_unavailable = answer_unavailable
        self._refusals = Refusals()

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        peer = self._peers.find_peer(scope)
        with self._places.hold(f"peer {peer}") as has_place:
            admission = await self._admit(header(scope, b"authorization"), peer) if has_place else refuse_place
            if not isinstance(admission, Admission):
                await admission(scope, receive, send)
                return
        with self._places.hold(admission.principal) as has_place:
            await (self._answer_as(admission, scope) if has_place else refuse_place)(scope, receive, send)

    def _answer_as(self, admission: Admission, scope: AsgiScope) -> ASGIApp:
        """Return what answers from here on, in this context, as whoever was admitted."""
        set_principal(admission.principal)
        set_scopes(admission.scopes)
        set_end(admission.ends_at)
        if admission.token is None:
            return self._app
        scope["user"] = AuthenticatedUser(admission.token)
        return self._with_user

    async def _admit(self, authorization: str, peer: str) -> Admission | ASGIApp:
        try:
            with anyio.fail_after(self._within_s):
                admission = await self._access.admit(authorization)
        except TokenExpired:
            self._refusals.note("expired", peer)
            return self._challenge.refuse_token(has_token=True)
        except KeysUnavailable:
            text = "The authorization server's keys can't be had, so no token of it can be verified."
            return refuse(503, text, headers={"retry-after": "10"})
        except (KairosError, TimeoutError):
            return self._answer_unavailable
        if admission is None:
            self._refusals.note("invalid" if authorization else "missing", peer)
            return self._challenge.refuse_token(has_token=bool(authorization))
        if wait_s := self._rates.wait_s(admission.principal):
            self._refusals.note("rate", peer)
            return refuse(429, "Too many requests; slow down.", headers={"retry-after": str(math.ceil(wait_s))})
        if not {"run", "observe"} & set(admission.scopes):
            self._refusals.note("scope", peer)
            return self._challenge.refuse_scope("run", admission.scopes)
        return admission


async def answer_unavailable(scope: AsgiScope, receive: Receive, send: Send) -> None:
    """Answer while the store can't be read: a request over /mcp with an error of its own, which ends no session of its
    client, and anything else with 503. Neither says why: that is in the log."""
    text = "The store can't be used, so nothing is read or done. The server's log says why; call again once it can be."
    response = refuse(503, text, headers={"retry-after": "10"})
    if REQUEST_ID in scope and scope["path"] == "/mcp":
        error = wire.ErrorData(code=wire.INTERNAL_ERROR, message=text, data={"code": StoreUnavailable.code})
        response = error_response(200, wire.JSONRPCError(jsonrpc="2.0", id=scope[REQUEST_ID], error=error))
    await response(scope, receive, send)


class AdminTools:
    """Middleware: lets only who has the scope admin call the tools of an administrator, and who may look alone
    (`observe` without `run`) only those that look."""

    def __init__(self, app: ASGIApp, challenge: Challenge) -> None:
        self._app = app
        self._challenge = challenge

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        if scope.get(TOOL) in ADMIN_TOOLS and not has_scope("admin"):
            held = scope["user"].scopes
            await self._challenge.refuse_scope("admin", held)(scope, receive, send)
            return
        if not has_scope("run") and (scope.get(TOOL) or LOOKING) not in OBSERVING_TOOLS:
            await self._challenge.refuse_scope("run", scope["user"].scopes)(scope, receive, send)
            return
        await self._app(scope, receive, send)
