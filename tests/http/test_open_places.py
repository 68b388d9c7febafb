"""One principal leaves room for the others, whatever it holds open; so does one peer, before anybody is admitted."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.authorization_server import AuthorizationServer, KeyPair
from support.http_server import SECONDS, Site, read_answer, read_to_end, tokens_of
from support.page import Visitor
from support.waiting import wait_until

from kairos_mcp.page.app import MAX_ENTERING
from kairos_mcp.server.http_bounds import RequestBounds
from kairos_mcp.server.http_places import Peers, Places

UNLIMITED = {"calls_per_s": 1e6, "burst": 10**6}
HERE, THERE = "127.0.0.1", "127.0.0.2"  # two peers
FREE = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.fixture
def open_sockets() -> Iterator[Callable[..., socket.socket]]:
    """Connects to a site, from an address of this machine; sends what is given."""
    with contextlib.ExitStack() as opened:

        def connect(site: Site, sent: bytes = b"", peer: str = HERE) -> socket.socket:
            connection = socket.create_connection((HERE, site.port), SECONDS, source_address=(peer, 0))
            opened.enter_context(connection)
            connection.sendall(sent)
            return connection

        yield connect


def half_body(site: Site, token: str, path: str = "/mcp") -> bytes:
    """A request whose body is not finished."""
    head = site.head("Content-Length: 1000", f"Authorization: Bearer {token}", path=path, without=("Authorization",))
    return head + b"\r\n{"


def is_answered(connection: socket.socket) -> bool:
    """Whether an idle connection still is one: it answers a whole request."""
    try:
        connection.sendall(FREE)
        return read_answer(connection).status == 200
    except (OSError, AssertionError):
        return False


def test_600_unfinished_bodies_of_one_principal_shut_nobody_out(
    tmp_path: Path, sites: Callable[..., Site], open_sockets: Callable[..., socket.socket]
) -> None:
    tokens = tokens_of(tmp_path / "place")
    alice, bob = tokens.add("alice"), tokens.add("bob")
    site = sites(RequestBounds(**UNLIMITED), token=bob)
    assert site.still_answers()
    held = [open_sockets(site, half_body(site, alice)) for _ in range(600)]
    assert site.still_answers()
    assert read_answer(held[-1]).status == 429
    site.token = alice
    assert site.call("run_status", {}).status == 429
    for connection in held:
        connection.close()
    wait_until(site.still_answers, SECONDS)


def test_open_streams_of_one_principal_hold_a_quarter_at_most(
    tmp_path: Path, sites: Callable[..., Site], open_sockets: Callable[..., socket.socket]
) -> None:
    tokens = tokens_of(tmp_path / "place")
    alice, bob = tokens.add("alice"), tokens.add("bob")
    site = sites(RequestBounds(connections=12, **UNLIMITED))

    def stream(token: str) -> bytes:
        head = site.head(f"Authorization: Bearer {token}", method="GET", path="/sse", without=("Authorization",))
        connection = open_sockets(site, head + b"\r\n")
        return connection.recv(64).split(b"\r\n")[0].split()[1]

    assert [stream(alice) for _ in range(5)] == [b"200"] * 3 + [b"429"] * 2
    assert [stream(bob) for _ in range(4)] == [b"200"] * 3 + [b"429"]


def test_a_peer_that_opens_many_connections_loses_its_own(
    sites: Callable[..., Site], open_sockets: Callable[..., socket.socket]
) -> None:
    site = sites(RequestBounds(connections=8, header_s=SECONDS))
    hers = open_sockets(site, b"GET /healthz HTTP/1.1\r\n", peer=THERE)  # the oldest of all, its header half there
    his = [open_sockets(site, b"GET /") for _ in range(20)]
    assert read_to_end(his[0]) == b""
    hers.sendall(b"Host: x\r\n\r\n")
    assert read_answer(hers).status == 200


@pytest.mark.parametrize("proxies", [(), (HERE,), ("127.0.0.1/32", "10.0.0.0/8")])
def test_the_connections_of_a_trusted_proxy_are_those_of_many(
    sites: Callable[..., Site], open_sockets: Callable[..., socket.socket], proxies: tuple[str, ...]
) -> None:
    site = sites(RequestBounds(connections=8, header_s=SECONDS, trusted_proxies=proxies))
    kept = [open_sockets(site, peer=HERE) for _ in range(6)]
    assert all(is_answered(connection) for connection in kept)
    for _ in range(5):
        assert is_answered(open_sockets(site, peer=THERE))
    assert all(is_answered(connection) for connection in kept) == bool(proxies)


def test_browsers_that_never_finish_to_enter_shut_nobody_out(
    sites: Callable[..., Site], open_sockets: Callable[..., socket.socket]
) -> None:
    site = sites(RequestBounds(**UNLIMITED))
    assert site.still_answers()
    page = Visitor(f"{site.url}/ui/", site.home).enter()
    own = (f"Origin: {site.url}", "Content-Length: 100")
    held = [
        open_sockets(site, site.head(*own, path="/ui/api/enter", without=("Authorization",)) + b"\r\n{")
        for _ in range(MAX_ENTERING + 1)
    ]
    assert read_answer(held[-1]).status == 503
    assert (site.still_answers(), page.get("api/me").status_code) == (True, 200)


def test_a_peer_that_waits_to_be_admitted_has_its_share(
    tmp_path: Path, sites: Callable[..., Site], open_sockets: Callable[..., socket.socket]
) -> None:
    """Anybody can send a token for which an authorization server that hangs is asked."""
    issuer = AuthorizationServer([KeyPair.ec("first")]).start()
    token = issuer.token()
    issuer.stop()
    (tmp_path / "place" / "home").mkdir(parents=True, mode=0o700)
    with socket.create_server((HERE, 0)) as hanging:
        address = f"http://{HERE}:{hanging.getsockname()[1]}/jwks.json"
        (tmp_path / "place" / "home" / "kairos.toml").write_text(issuer.settings(jwks_uri=address))
        site = sites(RequestBounds(connections=8, **UNLIMITED), token=tokens_of(tmp_path / "place").add("bob"))
        held = [open_sockets(site, half_body(site, token), peer=THERE) for _ in range(8)]
        assert {read_answer(connection).status for connection in held[2:]} == {429}
        assert site.still_answers()


# -- alone ----------------------------------------------------------------------------------------------------------


def test_a_place_is_given_back() -> None:
    places = Places(RequestBounds(connections=8))
    with places.hold("a") as first, places.hold("a") as second, places.hold("a") as third, places.hold("b") as other:
        assert (first, second, third, other) == (True, True, False, True)
    with places.hold("a") as again:
        assert again
    assert not places._held


@pytest.mark.parametrize(
    ("client", "forwarded", "peer"),
    [
        ("10.0.0.1", "", "10.0.0.1"),
        ("10.0.0.1", "1.2.3.4", "1.2.3.4"),
        ("10.0.0.1", "6.6.6.6, 1.2.3.4", "1.2.3.4"),  # what a client claims itself counts for nothing
        ("10.0.0.1", "6.6.6.6, 1.2.3.4, 10.0.0.2", "1.2.3.4"),
        ("1.2.3.4", "6.6.6.6", "1.2.3.4"),
        ("::1", "6.6.6.6", "::1"),
        ("::ffff:10.0.0.1", "1.2.3.4", "1.2.3.4"),  # of a socket for both versions of IP
    ],
)
def test_the_peer_is_the_last_address_that_is_no_trusted_proxy(client: str, forwarded: str, peer: str) -> None:
    headers = [(b"x-forwarded-for", forwarded.encode())] if forwarded else []
    assert Peers(("10.0.0.0/8",)).find_peer({"client": (client, 1), "headers": headers}) == peer
