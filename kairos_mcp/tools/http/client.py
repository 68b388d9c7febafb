"""The HTTP client of all tools: it decides which hosts may be reached, at the first request and at every redirect.

A host is resolved once, all its addresses are checked, and the connection goes to one of those. Hosts that are not
public are refused, unless a person listed them. No proxy is taken from the environment, and no cookie is kept.
"""

from __future__ import annotations

import queue
import socket
import ssl
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import cached_property
from ipaddress import ip_address
from urllib.parse import quote, urljoin

from kairos_mcp.core.errors import BadArguments, EgressDenied, KairosError, OutcomeUnknown, Timeout, Unreachable
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.tool import StopSignal
from kairos_mcp.core.urls import DEFAULT_PORTS, Address, HostRule, Url, parse_url
from kairos_mcp.tools.http.addresses import describe_forbidden, describe_non_public
from kairos_mcp.tools.http.body import UnpackedBody, spell_out_line, unpack_body
from kairos_mcp.tools.http.connection import HttpConnection, ReplyHead

MAX_REDIRECTS = 5
BODY_BYTES = 2 * 1024 * 1024  # of a reply, unpacked
MAX_SENT_BYTES = 1024 * 1024  # of a request's body
MAX_HEADERS = 50
HEADER_CHARS = 8_000
QUOTE_CHARS = 500
REDIRECTS = frozenset({301, 302, 303, 307, 308})
LIST_HINT = "A person can list it: private_hosts in the settings."

_ASCII = "".join(map(chr, range(0x21, 0x7F)))
_TOKEN = frozenset("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz")
# Headers that the client sets itself, that lead elsewhere, or that one server may obey and the next overlook.
_RESERVED_HEADERS = frozenset(
    ("host", "content-length", "transfer-encoding", "connection", "keep-alive", "te", "trailer", "upgrade", "expect")
)
_RESERVED_PREFIXES = ("proxy-", "accept-encoding", "forwarded", "x-forwarded-", "x-real-ip", ":")
# Only these are sent on to another origin.
_CROSS_ORIGIN_HEADERS = frozenset(("accept", "accept-language", "user-agent"))

Resolve = Callable[[str], Sequence[str]]
"""Returns the addresses of a host, as texts. Raises OSError if there are none."""


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A request. Header names may be in any case; `repeatable`: sending it twice does no harm."""

    method: str
    url: Url
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    repeatable: bool = True


@dataclass(frozen=True, slots=True)
class HttpReply:
    """The final reply, from `url`, and the number of redirects before it."""

    url: Url
    head: ReplyHead
    body: UnpackedBody
    redirects: int = 0

    @property
    def is_success(self) -> bool:
        return 200 <= self.head.status < 300


class HttpClient:
    """Sends requests to public hosts and to `private_hosts`, and to no others.

    A redirect may lead only to the same host or to `hosts`. `resolve` and `tls` default to the system's. `page_ports`:
    where a person decides about runs; no request goes there, whatever is listed.
    """

    def __init__(
        self,
        hosts: Sequence[HostRule] = (),
        private: Sequence[HostRule] = (),
        *,
        resolve: Resolve | None = None,
        tls: Callable[[], ssl.SSLContext] | None = None,
        body_bytes: int = BODY_BYTES,
        page_ports: Callable[[], Collection[int]] = tuple,
    ) -> None:
        self.hosts = tuple(hosts)
        self.private_hosts = tuple(private)
        self._resolve = resolve or _resolve_host
        self._make_tls = tls or _system_tls
        self._body_bytes = body_bytes
        self._page_ports = page_ports

    def is_listed(self, url: Url) -> bool:
        """Return whether a person listed the host, so that reading from it asks nobody."""
        return any(rule.includes(url) for rule in self.hosts)

    def is_listed_private(self, url: Url) -> bool:
        return any(rule.includes(url) for rule in self.private_hosts)

    def send(
        self, request: HttpRequest, deadline: float, stop: StopSignal, recheck: Callable[[], None] = lambda: None
    ) -> HttpReply:
        """Send a request, follow redirects of GET and HEAD, and read the body.

        `deadline` is on `time.monotonic()`. `recheck` is called right before any part of a request is sent, and raises
        if it may not be sent any more. Raises EgressDenied, TlsError, Unreachable, TooLarge, Timeout; BadArguments for
        invalid headers; OutcomeUnknown in place of these once a request that is not repeatable was sent.
        """
        check_request(request)
        for hop in range(MAX_REDIRECTS + 1):
            head, body = self._exchange(request, deadline, stop, recheck)
            if body is not None:
                return HttpReply(request.url, head, body, hop)
            request = self._redirected_request(request, head.header("location"))
        raise EgressDenied(
            f"More than {MAX_REDIRECTS} redirects; the last one leads to {_short_url(request.url)}.", "Ask for that."
        )

    def addresses(self, url: Url, deadline: float) -> tuple[Address, ...]:
        """Return the host's addresses, if each of them may be reached. Raises EgressDenied, Unreachable, Timeout."""
        found = (url.address,) if url.address is not None else self._look_up(url.host, deadline)
        listed, ports = self.is_listed_private(url), self._page_ports()
        for address in found:
            if (why := describe_forbidden(address)) is not None:
                raise EgressDenied(f"{url.host} is refused: it is {why}.", "No request may go there.")
            if url.port in ports and describe_non_public(address) is not None:
                raise EgressDenied(f"{url.authority} is the page where a person decides.", "No request may go there.")
            if not listed and (why := describe_non_public(address)) is not None:
                raise EgressDenied(f"{url.host} is not public, but {why}.", f"Ask a public host. {LIST_HINT}")
        return found

    def _exchange(
        self, request: HttpRequest, deadline: float, stop: StopSignal, recheck: Callable[[], None]
    ) -> tuple[ReplyHead, UnpackedBody | None]:
        """Send one request; return the head of its reply, and the body unless a redirect is to be followed."""
        url = request.url
        addresses = self.addresses(url, deadline)
        with HttpConnection(url.host, deadline, stop) as connection:
            connection.open(addresses, url.port, (lambda: self._tls) if url.scheme == "https" else None)
            try:
                head = connection.send_request(
                    request.method, url.target, _build_headers(request), request.body, recheck
                )
                # only a reading request is sent again elsewhere
                is_followed = (
                    head.status in REDIRECTS and request.method in ("GET", "HEAD") and bool(head.header("location"))
                )
                return head, None if is_followed else unpack_body(head, connection.read_body(), self._body_bytes)
            except KairosError as error:
                if request.repeatable or not connection.request_sent:
                    raise
                raise OutcomeUnknown(
                    error.message, "It may have been carried out: look before trying again."
                ) from error

    def _redirected_request(self, request: HttpRequest, location: str) -> HttpRequest:
        """Return the next request after a redirect: only to the same host or a listed one, for which nobody is asked.

        Raises EgressDenied for any other.
        """
        url = request.url
        try:  # quoted, since servers send non-ASCII bytes and blanks, and browsers accept them
            target = parse_url(urljoin(str(url), quote(location.encode("latin-1", "replace"), safe=_ASCII)))
        except ValueError:
            raise EgressDenied(f"{url.host} redirects to something that is not a URL.", "Ask elsewhere.") from None
        if url.scheme == "https" and target.scheme == "http":
            raise EgressDenied(f"{url.host} redirects from https to http.", "Ask for an https address.")
        if target.origin != url.origin and not _is_same_site(url, target) and not self.is_listed(target):
            if (
                target.address is not None
                and not self.is_listed_private(target)
                and (why := describe_non_public(target.address))
            ):
                raise EgressDenied(f"{url.host} redirects to {target.host}, which is not public, but {why}.", LIST_HINT)
            message = f"{url.host} redirects elsewhere: {_short_url(target)}"
            raise EgressDenied(f"{message}. That was not followed.", "Ask for that URL itself, if it is wanted.")
        is_cross_origin = target.origin != url.origin
        kept = tuple(
            (name, value)
            for name, value in request.headers
            if not is_cross_origin or name.lower() in _CROSS_ORIGIN_HEADERS
        )
        return replace(request, url=target, headers=kept)

    def _look_up(self, host: str, deadline: float) -> tuple[Address, ...]:
        """Resolve a name, in a thread of its own, since a resolver has its own timeouts. Its answers are validated."""
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
            raise EgressDenied(f"{host} is not public, but link-local.", LIST_HINT) from None

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        context = self._make_tls()
        context.set_alpn_protocols(["http/1.1"])
        return context


def check_request(request: HttpRequest) -> None:
    """Check the size of a request and its headers. Raises BadArguments, also for headers that a tool must not set."""
    if len(request.headers) > MAX_HEADERS:
        raise BadArguments(f"{len(request.headers)} headers; at most {MAX_HEADERS} are allowed.", "Send fewer.")
    if len(request.body) > MAX_SENT_BYTES:
        raise BadArguments(
            f"The body has {len(request.body):,} bytes; at most {MAX_SENT_BYTES:,} are allowed.", "Send less."
        )
    seen: set[str] = set()
    for name, value in request.headers:
        lower = name.lower()
        if not lower or len(lower) > 100 or not set(lower) <= _TOKEN:
            raise BadArguments("A header's name holds an invalid character.", "Names are letters, digits and -.")
        if lower in _RESERVED_HEADERS or lower.startswith(_RESERVED_PREFIXES):
            raise BadArguments(f"A tool must not set the header {lower}.", "Leave it out.")
        if lower in seen:
            raise BadArguments(f"The header {lower} is given twice.", "Send it once.")
        if len(value) > HEADER_CHARS or not value.isascii() or not (value.isprintable() or not value):
            raise BadArguments(
                f"The header {lower} is too long, or holds a line end or characters that are not ASCII.",
                f"Values are at most {HEADER_CHARS:,} printable ASCII characters.",
            )
        seen.add(lower)


def _build_headers(request: HttpRequest) -> list[tuple[str, str]]:
    headers = [(name.lower(), value.strip()) for name, value in request.headers]
    names = {name for name, _ in headers}
    own_headers = [("host", request.url.authority), ("accept-encoding", "gzip, deflate"), ("connection", "close")]
    own_headers += [
        (name, value) for name, value in (("user-agent", "kairos-mcp"), ("accept", "*/*")) if name not in names
    ]
    if request.body or request.method in ("POST", "PUT", "PATCH"):
        own_headers.append(("content-length", str(len(request.body))))
    return [*own_headers, *headers]


def _is_same_site(url: Url, target: Url) -> bool:
    """Return whether both are the same host at their scheme's default port. It allows http to https; the reverse is
    refused before."""
    return url.host == target.host and all(url.port == DEFAULT_PORTS[url.scheme] for url in (url, target))


def _resolve_host(host: str) -> Sequence[str]:
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return [str(where[0]) for *_, where in found]


def _system_tls() -> ssl.SSLContext:
    from httpx2 import create_ssl_context  # trusts what the requests to model providers trust, SSL_CERT_FILE included

    return create_ssl_context()


def _short_url(url: Url) -> str:
    return spell_out_line(str(url))[:QUOTE_CHARS]
