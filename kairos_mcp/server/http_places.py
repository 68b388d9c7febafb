"""Who holds the places of one HTTP server: no principal more than a quarter, and no peer, while nobody is admitted.

A request holds a place from its admission to the end of its answer, so unfinished bodies, calls that wait and open
streams of one principal leave room for those of the others. Until then it holds one of its peer. A peer is the address
that a connection comes from; of a proxy that the settings trust it is the one that the proxy names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ipaddress import ip_address, ip_network

from starlette.types import Receive, Scope, Send

from kairos_mcp.server.http_bounds import RequestBounds
from kairos_mcp.server.http_guard import header, refuse

SHARES = 4  # one holder has at most one of these parts
AGAIN_S = 1


class Places:
    """The places of one server, by who holds them."""

    def __init__(self, bounds: RequestBounds) -> None:
        self._each = max(1, bounds.connections // SHARES)
        self._held: Counter[str] = Counter()

    @contextmanager
    def hold(self, holder: str) -> Iterator[bool]:
        """Hold a place while the block lasts. Yields False, and holds none, where the holder has all that one may."""
        if self._held[holder] >= self._each:
            yield False
            return
        self._held[holder] += 1
        try:
            yield True
        finally:
            self._held[holder] -= 1
            if not self._held[holder]:
                del self._held[holder]


async def refuse_place(scope: Scope, receive: Receive, send: Send) -> None:
    """Refuse a request for which its holder has no place left, and end its connection, which would hold one."""
    text = "Too many open requests: answers that nobody reads, unfinished bodies and open streams count too."
    headers = {"retry-after": str(AGAIN_S), "connection": "close"}
    await refuse(429, text, headers=headers)(scope, receive, send)


class Peers:
    """Whose a connection or a request is, before anybody is admitted. `proxies`: addresses and networks of proxies."""

    def __init__(self, proxies: Sequence[str]) -> None:
        self._proxies = [ip_network(each, strict=False) for each in proxies]

    def include(self, address: str) -> bool:
        """Whether this is the address of a trusted proxy."""
        try:
            found = ip_address(address)
        except ValueError:
            return False
        # a socket for both versions of IP names an IPv4 address as one of IPv6
        found = getattr(found, "ipv4_mapped", None) or found
        return any(found in network for network in self._proxies)

    def find_peer(self, scope: Scope) -> str:
        """Return the address that a request comes from: of several the last that is no trusted proxy."""
        address: str = scope["client"][0] if scope.get("client") else ""
        named = header(scope, b"x-forwarded-for").split(",")
        while named and self.include(address) and (before := named.pop().strip()):
            address = before
        return address
