"""Which addresses are public, and how a URL and a list of hosts are read: compared with what Python and IANA say."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.network import rules

from kairos_mcp.core.errors import ConfigError, EgressDenied
from kairos_mcp.core.urls import parse_host_rule, parse_url
from kairos_mcp.tools.http.addresses import describe_forbidden, describe_non_public

PUBLIC = ["1.1.1.1", "8.8.8.8", "93.184.216.34", "2606:4700::1111", "2001:4860:4860::8888", "64:ff9b::808:808"]
NOT_PUBLIC = [
    *("127.0.0.1", "127.255.255.254", "0.0.0.0", "0.1.2.3", "10.0.0.1", "172.16.0.1", "172.31.255.255"),
    *("192.168.1.1", "100.64.0.1", "100.127.255.255", "169.254.1.1", "192.0.0.8", "192.0.2.1", "198.18.0.1"),
    *("198.51.100.1", "203.0.113.1", "224.0.0.1", "239.1.1.1", "240.0.0.1", "255.255.255.255", "192.88.99.1"),
    *("::", "::1", "::ffff:127.0.0.1", "::ffff:8.8.8.8", "::127.0.0.1", "fc00::1", "fd12::1", "fe80::1", "fec0::1"),
    *("ff02::1", "2001:db8::1", "2001::1", "2002:7f00:1::", "2002:808:808::", "64:ff9b::7f00:1", "64:ff9b::a00:1"),
    *("64:ff9b:1::1", "100::1", "5f00::1", "3fff::1"),
]
METADATA = [
    *("169.254.169.254", "169.254.170.2", "100.100.100.200", "168.63.129.16", "192.0.0.192", "fd00:ec2::254"),
    *("::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe"),
]


@pytest.mark.parametrize("text", PUBLIC)
def test_a_public_address_is_public(text: str) -> None:
    assert describe_non_public(ip_address(text)) is None
    assert describe_forbidden(ip_address(text)) is None


@pytest.mark.parametrize("text", [*NOT_PUBLIC, *METADATA])
def test_what_is_not_public_is_named(text: str) -> None:
    assert describe_non_public(ip_address(text))


@pytest.mark.parametrize("text", [*METADATA, "0.0.0.0", "::", "224.0.0.1", "ff02::1", "255.255.255.255"])
def test_where_nobody_may_be_sent_no_list_helps(text: str) -> None:
    assert describe_forbidden(ip_address(text))


@given(st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6)))
def test_what_python_does_not_call_global_is_never_public(address: IPv4Address | IPv6Address) -> None:
    nat64 = address.version == 6 and str(address).startswith("64:ff9b:")
    if not address.is_global and not nat64:
        assert describe_non_public(address)


REFUSED = [
    *("ftp://example.org/", "file:///etc/passwd", "gopher://127.0.0.1:6379/_x", "data:text/html,x", "//example.org/"),
    *("javascript:alert(1)", "example.org", "", "http:/example.org", "http:///x", "http://", "https:example.org"),
    *("http://user@example.org/", "http://user:pw@example.com@127.0.0.1/", "http://example.com\\@127.0.0.1/"),
    *("http://example.org\t/", "http://exa mple.org/", "http://example.org/a b", "http://example.org/\r\nX: y"),
    *("http://127.1/", "http://2130706433/", "http://0x7f000001/", "http://0177.0.0.1/", "http://127.0.0.0x1/"),
    *("http://[::1", "http://[fe80::1%25eth0]/", "http://[fe80::1%eth0]/", "http://[::1]x/", "http://1.2.3.4.5/"),
    *("http://example.org:0/", "http://example.org:65536/", "http://example.org:8a/", "http://ex%61mple.org/"),
    *("http://-a.org/", "http://a..b/", "http://.a/", "http://\u24d4xample.org/", "http://example\u3002org/"),
    *("http://" + "a" * 64 + ".org/", "http://" + "a." * 130 + "org/", "http://a/" + "x" * 8000, "http://a/\ud800"),
]


@pytest.mark.parametrize("text", REFUSED)
def test_a_url_that_could_be_read_in_two_ways_is_refused(text: str) -> None:
    with pytest.raises(EgressDenied) as refused:
        parse_url(text)
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://Example.ORG", "http://example.org/"),
        ("https://example.org.:443/a?b=c#d", "https://example.org/a?b=c"),
        ("http://example.org:8080?x", "http://example.org:8080/?x"),
        ("http://[2606:4700:0::1111]:80/", "http://[2606:4700::1111]/"),
        ("https://example.org/ä\u200b?q=ü", "https://example.org/%C3%A4%E2%80%8B?q=%C3%BC"),
        ("https://example.org/a%2Fb/../c", "https://example.org/a%2Fb/../c"),
    ],
)
def test_a_url_is_told_as_it_is_asked_for(text: str, shown: str) -> None:
    assert str(parse_url(text)) == shown
    assert str(parse_url(shown)) == shown


@pytest.mark.parametrize(
    ("rule", "included", "not_included"),
    [
        (
            "example.org",
            ["http://example.org/", "https://EXAMPLE.org./"],
            ["http://example.org:8080/", "http://a.example.org/"],
        ),
        (
            "*.example.org",
            ["https://a.example.org/", "https://a.b.example.org"],
            ["https://example.org/", "https://xexample.org/", "https://example.org.evil.net/"],
        ),
        ("127.0.0.1:8080", ["http://127.0.0.1:8080/"], ["http://127.0.0.1/", "http://localhost:8080/"]),
        ("[::1]:8080", ["http://[0:0::1]:8080/"], ["http://[::2]:8080/"]),
    ],
)
def test_a_rule_includes_what_it_says(rule: str, included: list[str], not_included: list[str]) -> None:
    (one,) = rules(rule)
    assert str(one) == rule
    assert [one.includes(parse_url(each)) for each in included] == [True] * len(included)
    assert [one.includes(parse_url(each)) for each in not_included] == [False] * len(not_included)


@pytest.mark.parametrize(
    "text", ["*", "*.org", "a.*.org", "http://example.org", "example.org/x", "", "a@b", "*.1.2.3.4"]
)
def test_a_rule_that_lists_too_much_or_nothing_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_host_rule(text)


def test_a_private_host_is_listed_one_by_one() -> None:
    with pytest.raises(ConfigError):
        parse_host_rule("*.example.org", wildcard=False)
