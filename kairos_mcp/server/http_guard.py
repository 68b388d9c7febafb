"""Refuse HTTP requests that no MCP client sends before anything else reads them: wrong hosts, odd headers and bodies.

The SDK's own checks let too much pass: its host patterns match prefixes, and `application/jsonp` counts as JSON. Here
everything is compared in full.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cached_property
from ipaddress import ip_address

import anyio
import mcp_types as wire
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.server.framing import FramedLine, UnreadableLine, parse_line
from kairos_mcp.server.http_bounds import RequestBounds

_FETCH_SITE = b"sec-fetch-site"
SINGLE_HEADERS = {
    b"host",
    b"origin",
    b"authorization",
    b"content-type",
    b"content-length",
    b"content-encoding",
    _FETCH_SITE,
}
"""Headers that may come only once, as those of MCP: of two, one reader may take the first, another the second."""

METHOD = "kairos.method"
"""The key of a scope under which the message's method is kept, so that the body is parsed once."""

TOOL = "kairos.tool"
"""The key for the name of the tool that a message calls."""

REQUEST_ID = "kairos.request_id"
"""The key for the id of a message that is a request; one that wants no answer has none."""

_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
_LOOPBACK_ORIGIN = re.compile(r"https?://(localhost|127\.0\.0\.1|\[::1\])(:[0-9]{1,5})?")
_JSON = re.compile(r'application/json\s*(;\s*charset\s*=\s*"?utf-8"?\s*)?', re.IGNORECASE)


def refuse(
    status: int, text: str, code: int = wire.INVALID_REQUEST, headers: Mapping[str, str] | None = None
) -> Response:
    """A refusal in the form of the protocol, so that a client can show the reason."""
    return error_response(status, UnreadableLine(code, text).as_error(None), headers)


def error_response(status: int, error: wire.JSONRPCError, headers: Mapping[str, str] | None = None) -> Response:
    """A response with a JSON-RPC error."""
    body = error.model_dump_json(by_alias=True, exclude_unset=True)
    return Response(body, status, dict(headers or {}), "application/json")


def header(scope: Scope | Message, name: bytes) -> str:
    """The header's value, empty if absent. `HttpGuard` has refused a second one."""
    return next((value.decode("latin-1") for key, value in scope["headers"] if key == name), "")


@dataclass(frozen=True)
class ServerNames:
    """The host names of this server: those of loopback and the address that was reached, with the port; and the names
    given at its start, with or without the port."""

    port: int
    given: tuple[str, ...] = ()

    @cached_property
    def _hosts(self) -> frozenset[str]:
        given = [name.lower() for name in self.given]
        return frozenset([*given, *(host for name in (*_LOOPBACK, *given) for host in self._with_port(name))])

    def _with_port(self, name: str) -> Iterable[str]:
        yield f"{name}:{self.port}"
        if self.port == 80:
            yield name

    def include(self, host: str, reached: str) -> bool:
        """Whether a Host header names this server. The reached address always does: only names can be rebound."""
        return host.lower() in self._hosts or host in self._with_port(_bracket_ipv6(reached))

    def trust(self, origin: str, reached: str) -> bool:
        """Whether a page of that origin may connect: those of this machine and our own. Even they can't send JSON,
        since no preflight is answered."""
        scheme, _, host = origin.partition("://")
        return _LOOPBACK_ORIGIN.fullmatch(origin) is not None or (
            scheme in ("http", "https") and self.include(host, reached)
        )


def _bracket_ipv6(address: str) -> str:
    try:
        return f"[{address}]" if ip_address(address).version == 6 else address
    except ValueError:
        return address


class HttpGuard:
    """Middleware, first in line: the host is one of ours, the origin is trusted, no header comes twice."""

    def __init__(self, app: ASGIApp, names: ServerNames) -> None:
        self._app = app
        self._names = names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(scope)
        await (self._app if refusal is None else refusal)(scope, receive, send)

    def _refusal(self, scope: Scope) -> Response | None:
        counts = Counter(name for name, _ in scope["headers"])
        repeated = [
            name for name, count in counts.items() if count > 1 and (name in SINGLE_HEADERS or name[:4] == b"mcp-")
        ]
        if repeated:
            return refuse(400, "A header that may come once comes twice.")
        reached = scope["server"][0] if scope.get("server") else ""
        if not self._names.include(header(scope, b"host"), reached):
            return refuse(421, "This server does not answer to that host; --allow-host NAME allows it.")
        origin = header(scope, b"origin")
        if b"origin" in counts and not self._names.trust(origin, reached):
            return refuse(403, "Pages from that origin may not talk to this server.")
        # images, scripts and forms state no origin, but browsers add whose page they belong to
        site = header(scope, _FETCH_SITE)
        if b"origin" not in counts and _FETCH_SITE in counts and site not in ("same-origin", "none"):
            return refuse(403, "Pages of other sites may not talk to this server.")
        return None


class CheckedBody:
    """Middleware: reads a message within its bounds, and checks that it is one, before the transport sees it."""

    def __init__(self, app: ASGIApp, bounds: RequestBounds) -> None:
        self._app = app
        self._bounds = bounds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        if _JSON.fullmatch(header(scope, b"content-type")) is None:
            refusal = refuse(415, "A message is sent as application/json.")
        elif header(scope, b"content-encoding").lower() not in ("", "identity"):
            refusal = refuse(415, "A message is sent uncompressed.")
        else:
            body = await self._read_body(scope, receive)
            if body is None:
                return  # the client has gone
            if isinstance(body, bytes):
                await self._pass_on(body, scope, receive, send)
                return
            refusal = body
        await refusal(scope, receive, send)

    async def _read_body(self, scope: Scope, receive: Receive) -> bytes | Response | None:
        """The body, a refusal, or None if the client has gone."""
        limit = self._bounds.body_bytes
        declared = header(scope, b"content-length")
        if declared.isdecimal() and int(declared[:20]) > limit:
            return self._refuse_large()
        body = bytearray()
        with anyio.move_on_after(self._bounds.body_s):
            while True:
                message = await receive()
                if message["type"] != "http.request":
                    return None
                body += message.get("body", b"")
                if len(body) > limit:
                    return self._refuse_large()
                if not message.get("more_body", False):
                    return bytes(body)
        return refuse(408, "The message took too long to arrive.", headers={"connection": "close"})

    def _refuse_large(self) -> Response:
        return refuse(413, f"A message has at most {self._bounds.body_bytes} bytes.")

    async def _pass_on(self, body: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a message on; refuse anything else, here and not differently by each transport."""
        message = parse_line(FramedLine(body))
        if isinstance(message, UnreadableLine):
            refusal = error_response(400, message.as_error(FramedLine(body).request_id()))
            await refusal(scope, receive, send)
            return
        match message:
            case wire.JSONRPCRequest(id=request_id, method="tools/call" as method, params={"name": str(tool)}):
                scope[REQUEST_ID], scope[METHOD], scope[TOOL] = request_id, method, tool
            case wire.JSONRPCRequest(id=request_id, method=method):
                scope[REQUEST_ID], scope[METHOD] = request_id, method
            case _:
                scope[METHOD] = ""
        unread: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> Message:
            return unread.pop() if unread else await receive()

        await self._app(scope, replay, send)
