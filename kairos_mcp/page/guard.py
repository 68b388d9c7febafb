"""What every request to the page has to be, and what every answer carries.

Only the page itself is answered, in a browser of the person at this machine.

Cookies ignore ports: a browser sends those of one port to every other port of this machine, and whoever listens there
could send them back. So no cookie gives anything. The page keeps a secret in its own storage, which belongs to one
origin, port included, and sends it as a header with every request. Origins are compared in full, and the browser has
to state (`Sec-Fetch-Site`) that the request is the page's own. A name that was rebound to this machine is known by the
Host header.
"""

from __future__ import annotations

import secrets
import time
from collections import Counter, OrderedDict
from hashlib import sha256

from starlette.datastructures import MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kairos_mcp.core.quick_dataclass import dataclass

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
SECRET = b"x-kairos-secret"
SESSION_S = 12 * 3_600
MAX_SESSIONS = 64  # the one that was entered longest ago ends first
BODY_BYTES = 256 * 1024
_HOSTS = ("127.0.0.1", "localhost", "[::1]")
_SITE = b"sec-fetch-site"
_ONCE = (b"host", b"origin", b"content-type", b"content-length", _SITE, SECRET)
_ADDED_BY_BROWSERS = (b"cookie", b"referer", b"accept-language")


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
NO_SESSION = Refusal(401, "no_session", "This browser has not entered.", "`kairos-mcp ui` prints a new link.")
CODE_USED = Refusal(
    401, "code_used", "This link was used already, or is older than two minutes.", "`kairos-mcp ui` prints a new one."
)


def with_headers(send: Send) -> Send:
    """Send an answer with the headers that hold a page in its place."""

    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            headers.update(HEADERS)
            headers.setdefault("cache-control", "no-store")
        await send(message)

    return send_with_headers


def error_response(status: int, code: str, message: str, hint: str = "") -> JSONResponse:
    """An error as the page shows it."""
    return JSONResponse({"error": {"code": code, "message": message, "hint": hint}}, status)


class Sessions:
    """The browsers that have entered, in memory alone: the hash of each secret, and until when it holds."""

    def __init__(self) -> None:
        self._ends: OrderedDict[bytes, float] = OrderedDict()

    def enter(self) -> str:
        """Begin a session and return its secret."""
        secret = secrets.token_urlsafe(32)
        self._ends[_hash(secret)] = time.monotonic() + SESSION_S
        while len(self._ends) > MAX_SESSIONS:
            self._ends.popitem(last=False)
        return secret

    def include(self, secret: str) -> bool:
        """Whether this is the secret of a session that is not over."""
        return self._ends.get(_hash(secret), 0.0) > time.monotonic()


def _hash(secret: str) -> bytes:
    return sha256(secret.encode()).digest()


class Guard:
    """Middleware: refuses what the page would not send, and adds the headers that hold the page in its place."""

    def __init__(self, app: ASGIApp, port: int, sessions: Sessions) -> None:
        self._app = app
        self._sessions = sessions
        self._hosts = frozenset(f"{name}:{port}" for name in _HOSTS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._find_refusal(scope)
        await (self._app if refusal is None else refusal.response())(scope, receive, with_headers(send))

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
        # An old browser states no `Sec-Fetch-Site`.
        is_browser = given.get(b"user-agent", "").startswith("Mozilla/") or any(
            name in given for name in _ADDED_BY_BROWSERS
        )
        if given.get(_SITE, "" if is_browser else "none") not in ("same-origin", "none") and not is_link:
            return OTHER_PAGE
        if not path.startswith("/api/"):
            return None
        if scope["method"] == "POST" and (
            b"origin" not in given or given.get(b"content-type", "").lower() != "application/json"
        ):
            return OTHER_PAGE
        if path == "/api/enter":
            return None
        return None if self._sessions.include(given.get(SECRET, "")) else NO_SESSION
