"""The one way out for tools: whom they may reach is decided here, for the first address and for every hop.

A host is resolved once, all its addresses are looked at, and the connection goes to one of those. What is not public
is refused, but for what a person listed. No proxy is taken from the environment, no cookie is kept.
"""

from __future__ import annotations

import queue
import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from ipaddress import ip_address
from urllib.parse import quote, urljoin

from kairos_mcp.core.errors import BadArguments, EgressDenied, KairosError, OutcomeUnknown, Timeout, Unreachable
from kairos_mcp.core.urls import DEFAULT_PORTS, Address, HostRule, Url, parse_url
from kairos_mcp.tools.http.addresses import never_allowed, why_not_public
from kairos_mcp.tools.http.body import UnpackedBody, spell_out_line, unpack_body
from kairos_mcp.tools.http.connection import HttpConnection, ReplyHead
from kairos_mcp.tools.tool import StopSignal

HOPS = 5
BODY_BYTES = 2 * 1024 * 1024  # of a reply, unpacked
SENT_BYTES = 1024 * 1024  # of a request's body
HEADERS = 50
HEADER_CHARS = 8_000
SAID_CHARS = 500
REDIRECTS = frozenset({301, 302, 303, 307, 308})
LISTED = "A person can list it: private_hosts in the settings."

_ASCII = "".join(map(chr, range(0x21, 0x7F)))
_TOKEN = frozenset("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz")
# What the exchange itself says, what leads elsewhere, and what one server may read and the next overlook.
_RESERVED_HEADERS = frozenset(
    ("host", "content-length", "transfer-encoding", "connection", "keep-alive", "te", "trailer", "upgrade", "expect")
)
_RESERVED_PREFIXES = ("proxy-", "accept-encoding", "forwarded", "x-forwarded-", "x-real-ip", ":")
_CROSS_ORIGIN_HEADERS = frozenset(("accept", "accept-language", "user-agent"))  # all that goes along to another origin

Resolve = Callable[[str], Sequence[str]]
"""Addresses of a host, as texts. Raises OSError where there are none."""


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A request. Header names in any case; `body` empty where there is none; `repeatable`: twice is as good as once."""

    method: str
    url: Url
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    repeatable: bool = True


@dataclass(frozen=True, slots=True)
class HttpReply:
    """What came back in the end, from `url`, after `hops` redirects."""

    url: Url
    head: ReplyHead
    body: UnpackedBody
    hops: int = 0

    @property
    def ok(self) -> bool:
        return 200 <= self.head.status < 300


class HttpClient:
    """Sends requests to public hosts, and to those of `private` alone beyond them.

    `hosts` are the only other hosts that a redirect may lead to. `resolve` and `tls` are those of the system.
    """

    def __init__(
        self,
        hosts: Sequence[HostRule] = (),
        private: Sequence[HostRule] = (),
        *,
        resolve: Resolve | None = None,
        tls: Callable[[], ssl.SSLContext] | None = None,
        body_bytes: int = BODY_BYTES,
    ) -> None:
        self.hosts = tuple(hosts)
        self.private = tuple(private)
        self._resolve = resolve or _resolve_host
        self._make_tls = tls or _system_tls
        self._body_bytes = body_bytes

    def lists(self, url: Url) -> bool:
        """Whether a person listed the host to be read without a question."""
        return any(rule.includes(url) for rule in self.hosts)

    def lists_private(self, url: Url) -> bool:
        return any(rule.includes(url) for rule in self.private)

    def send(
        self, outgoing: HttpRequest, deadline: float, stop: StopSignal, recheck: Callable[[], None] = lambda: None
    ) -> HttpReply:
        """Send it, follow redirects of GET and HEAD, and read the body; `until` is on `time.monotonic()`. `still` is
        called right before anything of a request leaves: it raises where that may not happen any more.

        Raises EgressDenied, TlsError, Unreachable, TooLarge, Timeout; BadArguments for headers that are none;
        OutcomeUnknown in place of these once a request that is not repeatable was sent.
        """
        check_request(outgoing)
        for hop in range(HOPS + 1):
            head, body = self._exchange(outgoing, deadline, stop, recheck)
            if body is not None:
                return HttpReply(outgoing.url, head, body, hop)
            outgoing = self._redirected_request(outgoing, head.header("location"))
        raise EgressDenied(
            f"More than {HOPS} redirects; the last one leads to {_short_url(outgoing.url)}.", "Ask for that."
        )

    def addresses(self, url: Url, deadline: float) -> tuple[Address, ...]:
        """Where the host is, if all of it may be reached. Raises EgressDenied, Unreachable, Timeout."""
        found = (url.address,) if url.address is not None else self._look_up(url.host, deadline)
        listed = self.lists_private(url)
        for address in found:
            if (why := never_allowed(address)) is not None:
                raise EgressDenied(f"{url.host} is refused: it is {why}.", "Nobody may be sent there.")
            if not listed and (why := why_not_public(address)) is not None:
                raise EgressDenied(f"{url.host} is not public, but {why}.", f"Ask a public host. {LISTED}")
        return found

    def _exchange(
        self, outgoing: HttpRequest, deadline: float, stop: StopSignal, recheck: Callable[[], None]
    ) -> tuple[ReplyHead, UnpackedBody | None]:
        """The reply, and its body unless it leads on."""
        url = outgoing.url
        addresses = self.addresses(url, deadline)
        with HttpConnection(url.host, deadline, stop) as connection:
            connection.open(addresses, url.port, (lambda: self._tls) if url.scheme == "https" else None)
            try:
                head = connection.ask(outgoing.method, url.target, _headers(outgoing), outgoing.body, recheck)
                return head, None if _is_followed_redirect(outgoing, head) else unpack_body(
                    head, connection.body(), self._body_bytes
                )
            except KairosError as error:
                if outgoing.repeatable or not connection.request_sent:
                    raise
                raise OutcomeUnknown(
                    error.message, "It may have been carried out: look before trying again."
                ) from error

    def _redirected_request(self, outgoing: HttpRequest, where: str) -> HttpRequest:
        """The next request of a redirect: only to where a call would be let go unasked, the same host or a listed one.

        Raises EgressDenied for the rest.
        """
        here = outgoing.url
        try:  # bytes that are no ASCII, and blanks, as browsers take them
            there = parse_url(urljoin(str(here), quote(where.encode("latin-1", "replace"), safe=_ASCII)))
        except ValueError:
            raise EgressDenied(f"{here.host} redirects to what is no URL.", "Ask elsewhere.") from None
        if here.scheme == "https" and there.scheme == "http":
            raise EgressDenied(f"{here.host} redirects from https to http.", "Ask for an https address.")
        if there.origin != here.origin and not _is_same_site(here, there) and not self.lists(there):
            if there.address is not None and not self.lists_private(there) and (why := why_not_public(there.address)):
                raise EgressDenied(f"{here.host} redirects to {there.host}, which is not public, but {why}.", LISTED)
            message = f"{here.host} redirects elsewhere: {_short_url(there)}"
            raise EgressDenied(f"{message}. That was not followed.", "Ask for that URL itself, if it is wanted.")
        across = there.origin != here.origin
        kept = tuple(
            (name, value) for name, value in outgoing.headers if not across or name.lower() in _CROSS_ORIGIN_HEADERS
        )
        return replace(outgoing, url=there, headers=kept)

    def _look_up(self, host: str, deadline: float) -> tuple[Address, ...]:
        """In a thread of its own, since a resolver keeps its own time. What it says is not trusted to be an address."""
        answers: queue.SimpleQueue[Sequence[str] | Exception] = queue.SimpleQueue()

        def look() -> None:
            try:
                answers.put(self._resolve(host))
            except Exception as error:
                answers.put(error)

        threading.Thread(target=look, name="kairos-resolve", daemon=True).start()
        try:
            answer = answers.get(timeout=max(deadline - time.monotonic(), 0))
        except queue.Empty:
            raise Timeout(f"The name {host} was not resolved in time.", "Nothing was sent. Try again later.") from None
        if isinstance(answer, Exception) or not answer:
            raise Unreachable(f"The name {host} is not known.", "Check it.")
        try:
            return tuple(dict.fromkeys(ip_address(text) for text in answer))
        except ValueError:  # an address with a zone, as fe80::1%eth0
            raise EgressDenied(f"{host} is not public, but link-local.", LISTED) from None

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        context = self._make_tls()
        context.set_alpn_protocols(["http/1.1"])
        return context


def check_request(outgoing: HttpRequest) -> None:
    """Raises BadArguments for headers that could be read as more than headers, or are not a tool's to set."""
    if len(outgoing.headers) > HEADERS:
        raise BadArguments(f"{len(outgoing.headers)} headers; {HEADERS} are the most.", "Send fewer.")
    if len(outgoing.body) > SENT_BYTES:
        raise BadArguments(f"The body has {len(outgoing.body):,} bytes; {SENT_BYTES:,} are the most.", "Send less.")
    seen: set[str] = set()
    for name, value in outgoing.headers:
        lower = name.lower()
        if not lower or len(lower) > 100 or not set(lower) <= _TOKEN:
            raise BadArguments("A header's name holds what no name may.", "Names are letters, digits and -.")
        if lower in _RESERVED_HEADERS or lower.startswith(_RESERVED_PREFIXES):
            raise BadArguments(f"The header {lower} is not for a tool to set.", "Leave it out.")
        if lower in seen:
            raise BadArguments(f"The header {lower} stands there twice.", "Send it once.")
        if len(value) > HEADER_CHARS or not value.isascii() or not (value.isprintable() or not value):
            raise BadArguments(
                f"The header {lower} is too long, or holds a line end or what is no ASCII.",
                f"Values are at most {HEADER_CHARS:,} printable ASCII characters.",
            )
        seen.add(lower)


def _headers(outgoing: HttpRequest) -> list[tuple[str, str]]:
    given = [(name.lower(), value.strip()) for name, value in outgoing.headers]
    names = {name for name, _ in given}
    ours = [("host", outgoing.url.authority), ("accept-encoding", "gzip, deflate"), ("connection", "close")]
    ours += [(name, value) for name, value in (("user-agent", "kairos-mcp"), ("accept", "*/*")) if name not in names]
    if outgoing.body or outgoing.method in ("POST", "PUT", "PATCH"):
        ours.append(("content-length", str(len(outgoing.body))))
    return [*ours, *given]


def _is_followed_redirect(outgoing: HttpRequest, head: ReplyHead) -> bool:
    """Whether this is a redirect to follow: only reading is repeated elsewhere."""
    return head.status in REDIRECTS and outgoing.method in ("GET", "HEAD") and bool(head.header("location"))


def _is_same_site(here: Url, there: Url) -> bool:
    """The same host, both at the port of their scheme: from http to https, since the way back is refused."""
    return here.host == there.host and all(url.port == DEFAULT_PORTS[url.scheme] for url in (here, there))


def _resolve_host(host: str) -> Sequence[str]:
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return [str(where[0]) for *_, where in found]


def _system_tls() -> ssl.SSLContext:
    from httpx2 import create_ssl_context  # what the providers' requests trust, SSL_CERT_FILE included

    return create_ssl_context()


def _short_url(url: Url) -> str:
    return spell_out_line(str(url))[:SAID_CHARS]
