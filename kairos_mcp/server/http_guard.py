"""What no client of ours sends is refused before anybody else reads it: wrong names, odd headers and bodies.

The SDK's own checks let too much pass: its patterns of hosts match prefixes, `application/jsonp` counts as
JSON. Here everything is compared whole.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from ipaddress import ip_address

import anyio
import mcp_types as wire
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kairos_mcp.server.bounds import RequestBounds
from kairos_mcp.server.framing import FramedLine
from kairos_mcp.server.wire import UnreadableLine, parse_line

_BROWSER = b"sec-fetch-site"
ONCE = {b"host", b"origin", b"authorization", b"content-type", b"content-length", b"content-encoding", _BROWSER}
"""Headers of which a second one could be read by one and overlooked by another; those of MCP as well."""

METHOD = "kairos.method"
"""Where in a scope stands what the message asks for, so that nobody has to read it again."""

_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
_LOOPBACK_ORIGIN = re.compile(r"https?://(localhost|127\.0\.0\.1|\[::1\])(:[0-9]{1,5})?")
_JSON = re.compile(r'application/json\s*(;\s*charset\s*=\s*"?utf-8"?\s*)?', re.IGNORECASE)


def refuse(
    status: int, text: str, code: int = wire.INVALID_REQUEST, headers: Mapping[str, str] | None = None
) -> Response:
    """A refusal in the shape of the protocol, so that a client can show why."""
    return error_response(status, UnreadableLine(code, text).answer(None), headers)


def error_response(status: int, error: wire.JSONRPCError, headers: Mapping[str, str] | None = None) -> Response:
    body = error.model_dump_json(by_alias=True, exclude_unset=True)
    return Response(body, status, dict(headers or {}), "application/json")


def header(scope: Scope | Message, name: bytes) -> str:
    """The header's text, empty where there is none. Guard has seen to it that there is no second one."""
    return next((value.decode("latin-1") for key, value in scope["headers"] if key == name), "")


@dataclass(frozen=True)
class ServerNames:
    """Whom this server answers as: loopback's names and the address that was reached, with the port; and the
    names that the person who starts it gives, as they stand or with the port."""

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
        """Whether `host`, as a client wrote it, is one of us. A name can be rebound, an address can't."""
        return host.lower() in self._hosts or host in self._with_port(_bracket_ipv6(reached))

    def trust(self, origin: str, reached: str) -> bool:
        """Pages of this machine and our own. Even those can't send JSON: no preflight is answered."""
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
    """The first to see a request: asked in a right name, by no foreign page, with no header doubled."""

    def __init__(self, app: ASGIApp, names: ServerNames) -> None:
        self._app = app
        self._names = names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(scope)
        await (self._app if refusal is None else refusal)(scope, receive, send)

    def _refusal(self, scope: Scope) -> Response | None:
        counts = Counter(name for name, _ in scope["headers"])
        twice = [name for name, count in counts.items() if count > 1 and (name in ONCE or name[:4] == b"mcp-")]
        if twice:
            return refuse(400, "A header stands there twice; which one counts is not for us to guess.")
        reached = scope["server"][0] if scope.get("server") else ""
        if not self._names.include(header(scope, b"host"), reached):
            return refuse(421, "This server does not answer to that host; --allow-host NAME lets it.")
        origin = header(scope, b"origin")
        if b"origin" in counts and not self._names.trust(origin, reached):
            return refuse(403, "Pages from that origin may not talk to this server.")
        # images, scripts and forms state no origin, but browsers add whose page they belong to
        if b"origin" not in counts and _BROWSER in counts and header(scope, _BROWSER) not in ("same-origin", "none"):
            return refuse(403, "Pages of other sites may not talk to this server.")
        return None


class CheckedBody:
    """A message read whole within its bounds, and known to be one, before the transport sees it."""

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
            whole = await self._read_whole(scope, receive)
            if whole is None:
                return  # the client has gone
            if isinstance(whole, bytes):
                await self._pass_on(whole, scope, receive, send)
                return
            refusal = whole
        await refusal(scope, receive, send)

    async def _read_whole(self, scope: Scope, receive: Receive) -> bytes | Response | None:
        limit = self._bounds.body_bytes
        too_large = refuse(413, f"A message has at most {limit} bytes.")
        declared = header(scope, b"content-length")
        if declared.isdecimal() and int(declared[:20]) > limit:
            return too_large
        body = bytearray()
        with anyio.move_on_after(self._bounds.body_s):
            while True:
                message = await receive()
                if message["type"] != "http.request":
                    return None
                body += message.get("body", b"")
                if len(body) > limit:
                    return too_large
                if not message.get("more_body", False):
                    return bytes(body)
        return refuse(408, "The message took too long to arrive.", headers={"connection": "close"})

    async def _pass_on(self, body: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        """Every transport refuses what is no message in its own way; here it is done once, as on stdio."""
        message = parse_line(FramedLine(body))
        if isinstance(message, UnreadableLine):
            refusal = error_response(400, message.answer(FramedLine(body).request_id()))
            await refusal(scope, receive, send)
            return
        scope[METHOD] = message.method if isinstance(message, wire.JSONRPCRequest) else ""
        unread: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def again() -> Message:
            return unread.pop() if unread else await receive()

        await self._app(scope, again, send)
