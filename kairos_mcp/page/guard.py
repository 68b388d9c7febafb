"""What every request to the page has to be, and what every answer carries.

Only the page itself is answered, in a browser of the person at this machine.

Another port of this machine is the same site to a browser, and is sent our cookie: so origins are compared in full, and
what a browser says of a request's origin (`Sec-Fetch-Site`) has to be our own. A name that was rebound to this machine
is known by the Host header.
"""

from __future__ import annotations

import hmac
import secrets
import time
from collections import Counter, OrderedDict
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie

from starlette.datastructures import MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "x-frame-options": "DENY",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
}
CSRF = "x-kairos-csrf"
CSRF_OF_SCOPE = "kairos.csrf"  # the key of a scope under which the session's token is kept
SESSION_S = 12 * 3_600
MAX_SESSIONS = 64  # the one that was entered longest ago ends first
BODY_BYTES = 256 * 1024
_HOSTS = ("127.0.0.1", "localhost", "[::1]")
_ONCE = (b"host", b"origin", b"cookie", b"content-type", b"content-length", b"sec-fetch-site", CSRF.encode())


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request is refused: the answer's status, a code, and two sentences for a person."""

    status: int
    code: str
    message: str
    hint: str = ""

    def response(self) -> JSONResponse:
        return error_response(self.status, self.code, self.message, self.hint)


OTHER_HOST = Refusal(421, "other_host", "The page does not answer to that host.", "Open it at 127.0.0.1.")
OTHER_PAGE = Refusal(403, "other_page", "Another page asked for that.", "Only the page itself may.")
NO_CSRF = Refusal(403, "no_csrf", "The page's token is missing or of another session.", "Load the page again.")
NO_SESSION = Refusal(401, "no_session", "This browser has not entered.", "`kairos-mcp ui` prints a new link.")
CODE_USED = Refusal(
    401, "code_used", "This link was used already, or is older than two minutes.", "`kairos-mcp ui` prints a new one."
)


def error_response(status: int, code: str, message: str, hint: str = "") -> JSONResponse:
    """An error as the page shows it."""
    return JSONResponse({"error": {"code": code, "message": message, "hint": hint}}, status)


class Sessions:
    """The browsers that have entered, in memory alone: each cookie with the token that its page sends with acts."""

    def __init__(self, port: int) -> None:
        self.cookie = f"kairos_ui_{port}"  # cookies know no ports
        self._csrf: OrderedDict[str, tuple[str, float]] = OrderedDict()

    def enter(self) -> tuple[str, str]:
        """Begin a session; return its cookie's value and its token."""
        name, csrf = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
        self._csrf[name] = csrf, time.monotonic() + SESSION_S
        while len(self._csrf) > MAX_SESSIONS:
            self._csrf.popitem(last=False)
        return name, csrf

    def find_csrf(self, cookies: str) -> str | None:
        """Return the token of the session that a Cookie header names; None where there is none, or it is over."""
        try:
            found = SimpleCookie(cookies).get(self.cookie)
        except CookieError:
            return None
        csrf, until = self._csrf.get(found.value, ("", 0.0)) if found is not None else ("", 0.0)
        return csrf if until > time.monotonic() else None


class Guard:
    """Middleware: refuses what the page would not send, and adds the headers that hold the page in its place."""

    def __init__(self, app: ASGIApp, port: int, sessions: Sessions) -> None:
        self._app = app
        self._sessions = sessions
        self._hosts = frozenset(f"{name}:{port}" for name in _HOSTS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                headers.setdefault("cache-control", "no-store")
            await send(message)

        refusal = self._find_refusal(scope)
        await (self._app if refusal is None else refusal.response())(scope, receive, send_with_headers)

    def _find_refusal(self, scope: Scope) -> Refusal | None:
        counts = Counter(name for name, _ in scope["headers"])
        if any(counts[name] > 1 for name in _ONCE):
            return Refusal(400, "bad_request", "A header that may come once comes twice.")
        given = {name: value.decode("latin-1") for name, value in scope["headers"]}
        host = given.get(b"host", "")
        if host not in self._hosts:
            return OTHER_HOST
        own_origin = f"http://{host}"
        if given.get(b"origin", own_origin) != own_origin:
            return OTHER_PAGE
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        is_shell = path in ("", "/") and scope["method"] in ("GET", "HEAD")
        # A link in another page may lead here: the shell holds no data, and what it asks for then is its own.
        is_link = is_shell and given.get(b"sec-fetch-mode") == "navigate" and given.get(b"sec-fetch-dest") == "document"
        if given.get(b"sec-fetch-site", "none") not in ("same-origin", "none") and not is_link:
            return OTHER_PAGE
        if not path.startswith("/api/"):
            return None
        if scope["method"] == "POST" and (
            b"origin" not in given or given.get(b"content-type", "").lower() != "application/json"
        ):
            return OTHER_PAGE
        if path == "/api/enter":
            return None
        csrf = self._sessions.find_csrf(given.get(b"cookie", ""))
        if csrf is None:
            return NO_SESSION
        scope[CSRF_OF_SCOPE] = csrf
        if scope["method"] == "POST" and not hmac.compare_digest(given.get(CSRF.encode(), "").encode(), csrf.encode()):
            return NO_CSRF
        return None
