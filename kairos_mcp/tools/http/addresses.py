"""Tells public addresses from all others, by IANA's registries of special-purpose addresses.

The lists are written out, since what `ipaddress` calls global differs between versions of Python.
"""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import TYPE_CHECKING

from kairos_mcp.core.urls import Address, Url

if TYPE_CHECKING:
    from kairos_mcp.settings.settings import Settings

# https://www.iana.org/assignments/iana-ipv4-special-registry and the multicast and reserved blocks
_NOT_PUBLIC_4 = [
    (IPv4Network(block), what)
    for block, what in (
        ("0.0.0.0/8", "this machine"),
        ("10.0.0.0/8", "private"),
        ("100.64.0.0/10", "a provider's own"),
        ("127.0.0.0/8", "loopback"),
        ("169.254.0.0/16", "link-local"),
        ("172.16.0.0/12", "private"),
        ("192.0.0.0/24", "reserved"),
        ("192.0.2.0/24", "for documentation"),
        ("192.88.99.0/24", "a relay"),
        ("192.168.0.0/16", "private"),
        ("198.18.0.0/15", "for benchmarks"),
        ("198.51.100.0/24", "for documentation"),
        ("203.0.113.0/24", "for documentation"),
        ("224.0.0.0/4", "multicast"),
        ("240.0.0.0/4", "reserved"),
    )
]
# https://www.iana.org/assignments/iana-ipv6-special-registry; public ones are in 2000::/3 alone
_GLOBAL_6 = IPv6Network("2000::/3")
_NOT_PUBLIC_6 = [
    (IPv6Network(block), what)
    for block, what in (
        ("::/128", "this machine"),
        ("::1/128", "loopback"),
        ("::ffff:0:0/96", "an IPv4 address in disguise"),
        ("fc00::/7", "private"),
        ("fe80::/10", "link-local"),
        ("ff00::/8", "multicast"),
        ("2001::/23", "reserved"),
        ("2001:db8::/32", "for documentation"),
        ("2002::/16", "an IPv4 address in disguise"),
        ("3fff::/20", "for documentation"),
    )
]
_NAT64 = IPv6Network("64:ff9b::/96")  # how a network without IPv4 reaches public IPv4 hosts

# Where clouds keep the credentials of a machine; two of them look public.
_METADATA = frozenset(
    [
        IPv4Address("169.254.169.254"),
        IPv4Address("169.254.170.2"),
        IPv4Address("169.254.170.23"),
        IPv4Address("100.100.100.200"),
        IPv4Address("168.63.129.16"),
        IPv4Address("192.0.0.192"),
        IPv6Address("fd00:ec2::254"),
        IPv6Address("fd00:ec2::23"),
        IPv6Address("fd20:ce::254"),
    ]
)
_LOCAL_NAMES = ("localhost", "local", "internal", "home.arpa", "localdomain", "lan")


def describe_non_public(address: Address) -> str | None:
    """Say what an address is instead of public; None for a public one."""
    if address in _METADATA:
        return "where a cloud keeps credentials"
    if isinstance(address, IPv4Address):
        return next((what for block, what in _NOT_PUBLIC_4 if address in block), None)
    if address in _NAT64:
        return describe_non_public(IPv4Address(int(address) & 0xFFFF_FFFF))
    what = next((what for block, what in _NOT_PUBLIC_6 if address in block), None)
    return what or (None if address in _GLOBAL_6 else "reserved")


def describe_forbidden(address: Address) -> str | None:
    """Say what an address is that is refused even if a person listed the host; None for one that can be listed."""
    if isinstance(address, IPv6Address) and address in _NAT64:
        return describe_forbidden(IPv4Address(int(address) & 0xFFFF_FFFF))
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    if address in _METADATA or mapped in _METADATA:
        return "where a cloud keeps credentials"
    if address.is_multicast or address.is_unspecified or address == IPv4Address("255.255.255.255"):
        return "no address of one host"
    return None


def describe_local(url: Url) -> str | None:
    """Return why the URL's host is not public, judged without DNS; None if unknown."""
    if url.address is not None:
        return describe_non_public(url.address)
    local = any(url.host == name or url.host.endswith(f".{name}") for name in _LOCAL_NAMES)
    return "a name of this machine or its network" if local else None


def find_refused_tools(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield for each tool of `[[http_tools]]` whose calls would be refused for its host, as far as that shows without
    resolving it: what is wrong, and the line of the settings file that allows it."""
    for tool in settings.http_tools:
        url = tool.sample_url()
        if (kind := describe_local(url)) is not None and not any(rule.includes(url) for rule in settings.private_hosts):
            cure = f'Add it to the settings: private_hosts = ["{url.host}:{url.port}"].'
            yield f"{tool.name} can't be called: {url.host} is {kind}", cure
