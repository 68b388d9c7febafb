"""Parse URLs that a model, a caller or a configuration writes, and the hosts that a person lists.

Text only: nothing is resolved here. What two parsers could read differently (user names, backslashes, odd spellings of
addresses, blanks) is refused, so that what is judged and shown is what is requested.
"""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv6Address
from typing import Literal
from urllib.parse import quote

from kairos_mcp.core.errors import ConfigError, EgressDenied
from kairos_mcp.core.quick_dataclass import dataclass

URL_CHARS = 8_000  # many servers refuse longer ones
HOST_CHARS = 253  # RFC 1035
DEFAULT_PORTS = {"http": 80, "https": 443}
HINT = "Write it in full, as https://example.org/path?query."

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(.*)", re.DOTALL)
_PARTS = re.compile(r"//([^/?#]*)([^#]*)")
_AUTHORITY = re.compile(r"(\[[0-9A-Fa-f:.]*\]|[^:\[\]]*)(?::([0-9]{0,5}))?")
_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_SAFE_CHARS = "".join(map(chr, range(0x21, 0x7F))).translate(str.maketrans("", "", '"<>^`{|}'))
_FORBIDDEN = re.compile(r"[\x00-\x20\x7f-\xa0\\\ud800-\udfff\u2028\u2029]")

Scheme = Literal["http", "https"]
Address = IPv4Address | IPv6Address


@dataclass(frozen=True, slots=True)
class Url:
    """The parts of a URL. `host`: in lower case. `address`: if the host is one. `target`: the path with its query."""

    scheme: Scheme
    host: str
    port: int
    target: str
    address: Address | None = None

    @property
    def authority(self) -> str:
        """Host and port as in the Host header: the port only where it is not the scheme's default."""
        host = f"[{self.host}]" if isinstance(self.address, IPv6Address) else self.host
        return host if self.port == DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def origin(self) -> tuple[str, str, int]:
        """Scheme, host and port."""
        return self.scheme, self.host, self.port

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}{self.target}"


@dataclass(frozen=True, slots=True)
class HostRule:
    """A host that a person listed. `below`: `*.example.org`, its subdomains and not itself. No port: 80 and 443."""

    host: str
    below: bool = False
    port: int | None = None

    def includes(self, url: Url) -> bool:
        """Whether the rule allows this URL's host and port."""
        host = url.host.endswith(f".{self.host}") if self.below else url.host == self.host
        return host and url.port == (DEFAULT_PORTS[url.scheme] if self.port is None else self.port)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'*.' * self.below}{host}{'' if self.port is None else f':{self.port}'}"


def parse_url(text: str) -> Url:
    """Parse a URL and drop its fragment. Raises EgressDenied for one that is malformed or ambiguous."""
    if len(text) > URL_CHARS:
        raise EgressDenied(f"The URL has {len(text):,} characters; {URL_CHARS:,} are the most.", "Send less in it.")
    if _FORBIDDEN.search(text):
        raise EgressDenied("The URL holds a blank, a control character or a backslash.", "Percent-encode it.")
    found = _SCHEME.fullmatch(text)
    if found is None:
        raise EgressDenied("This is not a complete URL.", HINT)
    scheme: Scheme
    match found[1].lower():
        case "http":
            scheme = "http"
        case "https":
            scheme = "https"
        case _:
            raise EgressDenied("Only http and https leave this server.", HINT)
    parts = _PARTS.match(found[2])
    if parts is None:
        raise EgressDenied("This is not a complete URL.", HINT)
    host, port, address = _parse_authority(parts[1])
    target = parts[2] if parts[2].startswith("/") else f"/{parts[2]}"
    return Url(scheme, host, DEFAULT_PORTS[scheme] if port is None else port, quote(target, safe=_SAFE_CHARS), address)


def parse_host_rule(text: str, *, wildcard: bool = True) -> HostRule:
    """Parse an entry of a list of hosts: `example.org`, `*.example.org`, `127.0.0.1:8080`. Raises ConfigError."""
    below = text.startswith("*.")
    try:
        host, port, address = _parse_authority(text.removeprefix("*."))
    except EgressDenied as error:
        raise ConfigError(
            f"{text[:80]!r} is not a host: {error.message}", "Write example.org or 127.0.0.1:8080."
        ) from None
    if "*" in text and not (below and wildcard and address is None and "." in host):
        raise ConfigError(f"{text[:80]!r} is too wide.", "Name a host, or the subdomains of one: *.example.org.")
    return HostRule(host, below, port)


def _parse_authority(text: str) -> tuple[str, int | None, Address | None]:
    if "@" in text:
        raise EgressDenied("The URL holds a user name.", "Send credentials in a header of a configured HTTP tool.")
    found = _AUTHORITY.fullmatch(text)
    if found is None or not found[1]:
        raise EgressDenied("The URL's host can't be read.", HINT)
    port = int(found[2]) if found[2] else None
    if port is not None and not 0 < port < 65_536:
        raise EgressDenied("The URL's port is not valid.", "Ports are 1 to 65535.")
    host, address = _parse_host(found[1])
    return host, port, address


def _parse_host(text: str) -> tuple[str, Address | None]:
    if text.startswith("["):
        try:
            ipv6 = IPv6Address(text[1:-1])
        except ValueError:
            raise EgressDenied("The URL's address can't be read.", "Write it as [2001:db8::1].") from None
        return ipv6.compressed, ipv6
    host = text.lower().removesuffix(".")
    if not host.isascii():
        raise EgressDenied("The host's name is not ASCII.", "Write it in its xn-- form.")
    labels = host.split(".")
    if _NUMBER.fullmatch(labels[-1]):  # 127.1, 2130706433 and 0x7f000001 are addresses to some, names to others
        try:
            address = IPv4Address(host)
        except ValueError:
            raise EgressDenied("The URL's address is not written in the usual way.", "Write four numbers.") from None
        return host, address
    if len(host) > HOST_CHARS or not all(_LABEL.fullmatch(label) for label in labels):
        raise EgressDenied("The URL's host is not a valid name.", HINT)
    return host, None
