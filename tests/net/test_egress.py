"""The one way out: whom it reaches, how long it waits, how much it takes; judged by what the servers saw."""

from __future__ import annotations

import gzip
import os
import socket
import ssl
import subprocess
import sys
import threading
import time
import tracemalloc
import zlib
from collections.abc import Callable
from ipaddress import IPv4Address

import pytest
from support.network import (
    WITHIN_S,
    Names,
    Peer,
    drips,
    egress_to,
    floods,
    leads_to,
    peer,
    raw,
    reply,
    rules,
    silent,
    text,
)

from kairos_mcp.core.errors import BadArguments, EgressDenied, KairosError, Timeout, TlsError, TooLarge, Unreachable
from kairos_mcp.core.tool import StopSignal
from kairos_mcp.core.urls import parse_url
from kairos_mcp.tools.http.client import HttpClient, HttpRequest
from kairos_mcp.tools.http.client import HttpReply as Replied
from kairos_mcp.tools.http.connection import HttpConnection

SMALL = 64 * 1024


def send(
    egress: HttpClient,
    url: str,
    method: str = "GET",
    seconds: float = WITHIN_S,
    stop: StopSignal | None = None,
    **more: object,
) -> Replied:
    outgoing = HttpRequest(method, parse_url(url), **more)  # type: ignore[arg-type]  # any of its fields
    return egress.send(outgoing, time.monotonic() + seconds, stop or StopSignal())


# -- whom it reaches -------------------------------------------------------------------------------------------------


def test_a_name_is_resolved_once_and_the_connection_goes_where_that_answer_was(web: Peer) -> None:
    """Rebinding: the second answer names another server, which is never looked for."""
    with peer(address="127.0.0.2", port=web.port) as inside:
        names = Names({"api.test": [["127.0.0.1"], ["127.0.0.2"]]})
        assert send(egress_to(web, names=names), web.url("/a", "api.test")).body.content == b"hello"
        assert names.asked == ["api.test"]
        assert [each.header("host") for each in web.heard] == [f"api.test:{web.port}"]
        assert inside.connections == 0


@pytest.mark.parametrize(
    "answers",
    [
        ["127.0.0.1"],
        ["10.0.0.1", "127.0.0.1"],
        ["1.1.1.1", "127.0.0.1"],
        ["::1"],
        ["fe80::1%lo"],
        ["::ffff:127.0.0.1"],
        ["169.254.169.254"],
        ["0.0.0.0"],
    ],
)
def test_a_name_that_leads_inside_is_refused_before_a_connection(web: Peer, answers: list[str]) -> None:
    egress = HttpClient(
        rules(f"evil.test:{web.port}"), rules(f"127.0.0.1:{web.port}"), resolve=Names({"evil.test": [answers]})
    )
    with pytest.raises(EgressDenied):
        send(egress, web.url("/", "evil.test"))
    assert web.connections == 0


def test_a_listed_private_host_is_reached_at_its_port_alone(web: Peer, other: Peer) -> None:
    egress = egress_to(web)
    assert send(egress, web.url()).head.status == 200
    with pytest.raises(EgressDenied):
        send(egress, other.url())
    assert (web.connections, other.connections) == (1, 0)


def test_the_metadata_of_a_cloud_is_refused_even_if_it_is_listed() -> None:
    egress = HttpClient((), rules("169.254.169.254", "meta.test"), resolve=Names({"meta.test": [["169.254.169.254"]]}))
    for url in ("http://169.254.169.254/latest/", "http://meta.test/latest/"):
        with pytest.raises(EgressDenied):
            send(egress, url)


def test_no_request_goes_to_the_page_even_if_it_is_listed(web: Peer, other: Peer) -> None:
    """A person decides there: what an agent may reach on this machine is everything else."""
    names = Names({"page.test": [["127.0.0.1"]] * 2})
    egress = egress_to(web, other, names=names, page_ports=lambda: {web.port})
    for url in (web.url("/api/me"), web.url("/api/me", "page.test")):
        with pytest.raises(EgressDenied, match="is the page"):
            send(egress, url)
    assert web.connections == 0
    assert send(egress, other.url("/")).is_success


def test_a_proxy_in_the_environment_is_not_used(web: Peer, other: Peer) -> None:
    code = f"""
import time
from kairos_mcp.core.tool import StopSignal
from kairos_mcp.tools.http.client import HttpClient, HttpRequest
from kairos_mcp.core.urls import parse_host_rule, parse_url
reply = HttpClient((), [parse_host_rule("127.0.0.1:{web.port}")]).send(
    HttpRequest("GET", parse_url("{web.url("/straight")}")), time.monotonic() + 10, StopSignal())
print(reply.head.status)
"""
    proxied = dict.fromkeys(("HTTP_PROXY", "http_proxy", "ALL_PROXY", "HTTPS_PROXY"), other.url())
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | proxied, capture_output=True, timeout=60, check=False
    )
    assert done.stdout.strip() == b"200", done.stderr
    assert [each.target for each in web.heard] == ["/straight"]
    assert other.connections == 0


def test_another_address_of_a_host_is_tried_when_the_first_does_not_answer(web: Peer) -> None:
    names = Names({"api.test": [["127.0.0.3", "127.0.0.1"]]})  # nobody listens at the first
    assert send(egress_to(web, names=names), web.url("/", "api.test")).body.content == b"hello"
    assert web.connections == 1


def test_a_host_that_is_not_there_and_a_name_that_is_not_known_are_unreachable(web: Peer) -> None:
    gone = web.url()
    egress = egress_to(web, names=Names({}))
    web.over.set()
    with pytest.raises(Unreachable):
        send(HttpClient((), rules("127.0.0.1:1")), "http://127.0.0.1:1/")
    with pytest.raises(Unreachable) as unknown:
        send(egress, gone.replace("127.0.0.1", "nobody.test"))
    assert unknown.value.retryable


# -- redirects -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "where",
    [
        "http://169.254.169.254/latest/meta-data/",
        "http://127.0.0.1:{other}/",
        "http://localhost:{other}/",
        "http://inside.test:{other}/",
        "//127.0.0.1:{other}/",
        "http://127.1:{other}/",
        "http://api.test@127.0.0.1:{other}/",
        "file:///etc/passwd",
        "http://[::ffff:127.0.0.1]:{other}/",
        "http://127.0.0.1:{other}\\@api.test/",
    ],
)
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_to_where_nobody_may_go_is_not_followed(web: Peer, other: Peer, where: str, status: int) -> None:
    web.will(leads_to(where.format(other=other.port), status))
    names = Names({"api.test": [["127.0.0.1"]], "inside.test": [["127.0.0.1"]], "localhost": [["127.0.0.1"]]})
    listed = [f"{host}:{other.port}" for host in ("127.0.0.1", "localhost", "inside.test", "[::ffff:7f00:1]")]
    egress = HttpClient(rules("169.254.169.254", *listed), rules(f"api.test:{web.port}"), resolve=names)
    with pytest.raises(EgressDenied):
        send(egress, web.url("/", "api.test"))
    assert (web.connections, other.connections) == (1, 0)


def test_a_redirect_on_the_same_host_is_followed_and_one_elsewhere_only_where_listed(web: Peer, other: Peer) -> None:
    names = Names({"api.test": [["127.0.0.1"]], "other.test": [["127.0.0.1"]]})
    for hosts, reached in (((), 0), ([f"other.test:{other.port}"], 1)):
        web.will(leads_to("/b?c"), leads_to(other.url("/d", "other.test")))
        egress = egress_to(web, other, hosts=hosts, names=names)
        if hosts:
            replied = send(egress, web.url("/a", "api.test"))
            assert (replied.redirects, str(replied.url)) == (2, other.url("/d", "other.test"))
        else:
            with pytest.raises(EgressDenied) as refused:
                send(egress, web.url("/a", "api.test"))
            assert other.url("/d", "other.test") in refused.value.message
        assert len(other.heard) == reached
    assert [each.target for each in web.heard] == ["/a", "/b?c"] * 2


def test_headers_stay_behind_when_a_redirect_leaves_the_origin(web: Peer, other: Peer) -> None:
    web.will(leads_to("/again"), leads_to(other.url("/", "other.test")))
    names = Names({"api.test": [["127.0.0.1"]], "other.test": [["127.0.0.1"]]})
    egress = egress_to(web, other, hosts=[f"other.test:{other.port}"], names=names)
    headers = (("Authorization", "Bearer s3cret"), ("Cookie", "a=b"), ("X-Key", "k"), ("Accept", "text/plain"))
    send(egress, web.url("/", "api.test"), headers=headers)
    assert [each.header("authorization") for each in web.heard] == ["Bearer s3cret"] * 2
    (there,) = other.heard
    assert [there.header(name) for name in ("authorization", "cookie", "x-key")] == [None] * 3
    assert (there.header("accept"), there.header("host")) == ("text/plain", f"other.test:{other.port}")


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
def test_what_does_more_than_read_is_not_repeated_elsewhere(web: Peer, method: str) -> None:
    web.will(leads_to("/b", 307))
    replied = send(egress_to(web), web.url("/a"), method, body=b"once")
    assert (replied.head.status, len(web.heard)) == (307, 1)


def test_redirects_end_after_five(web: Peer) -> None:
    web.will(leads_to("/round"))
    with pytest.raises(EgressDenied):
        send(egress_to(web), web.url("/"))
    assert len(web.heard) == 6


def test_cookies_are_not_kept(web: Peer) -> None:
    web.will(reply(b"", status="302 Found", location="/b", set_cookie="a=b"), text("done"))
    egress = egress_to(web)
    send(egress, web.url())
    send(egress, web.url())
    assert [each.header("cookie") for each in web.heard] == [None] * 3


# -- TLS -------------------------------------------------------------------------------------------------------------


def test_a_certificate_is_checked_for_the_name_that_was_asked_for(
    serving_as: Callable[[str], ssl.SSLContext], trusting: Callable[[], ssl.SSLContext]
) -> None:
    names = Names({"api.test": [["127.0.0.1"]], "else.test": [["127.0.0.1"]]})
    with peer(serving_as("api.test")) as secure:
        egress = egress_to(secure, names=names, tls=trusting)
        assert send(egress, secure.url("/", "api.test")).body.content == b"hello"
        assert secure.names == ["api.test"]
        with pytest.raises(TlsError):
            send(egress, secure.url("/", "else.test"))
        assert len(secure.heard) == 1


def test_a_certificate_of_nobody_is_refused_and_nothing_was_sent(serving_as: Callable[[str], ssl.SSLContext]) -> None:
    with peer(serving_as("api.test")) as secure:
        egress = egress_to(secure, names=Names({"api.test": [["127.0.0.1"]]}))  # the system's authorities
        with pytest.raises(TlsError):
            send(egress, secure.url("/?secret", "api.test"), headers=(("X-Key", "s3cret"),))
        assert (secure.connections, secure.heard) == (1, [])


def test_a_server_without_tls_is_no_https(web: Peer, trusting: Callable[[], ssl.SSLContext]) -> None:
    def refuse(line: socket.socket) -> None:
        with line:
            line.recv(9)
            line.sendall(b"HTTP/1.1 400 Bad\r\n\r\n")

    web.serve = refuse  # type: ignore[method-assign]  # a peer is what a test makes of it
    with pytest.raises(TlsError):
        send(egress_to(web, tls=trusting), web.url().replace("http:", "https:"))


def test_a_redirect_from_https_to_http_is_refused(
    web: Peer, serving_as: Callable[[str], ssl.SSLContext], trusting: Callable[[], ssl.SSLContext]
) -> None:
    names = Names({"api.test": [["127.0.0.1"]]})
    with peer(serving_as("api.test")) as secure:
        secure.will(leads_to(web.url("/", "api.test")))
        egress = egress_to(secure, web, hosts=[f"api.test:{web.port}"], names=names, tls=trusting)
        with pytest.raises(EgressDenied):
            send(egress, secure.url("/", "api.test"))
    assert web.connections == 0


# -- how long it waits -----------------------------------------------------------------------------------------------

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n"
SLOW = {
    "silence": silent,
    "the head in drops": drips(b"HTTP/1.1 200 OK\r\nx: "),
    "the body in drops": drips(HEAD + b"content-length: 1000000\r\n\r\n"),
    "chunks in drops": drips(HEAD + b"transfer-encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
    "interim replies for ever": floods(b"", b"HTTP/1.1 103 Early Hints\r\n\r\n" * 100),
    "a packed body that unpacks to nothing": drips(
        HEAD + b"content-encoding: gzip\r\n\r\n\x1f\x8b\x08\0\0\0\0\0\0\x03", b"\0\0\0\xff\xff"
    ),
}


@pytest.mark.parametrize("slow", SLOW)
def test_the_whole_has_one_deadline(web: Peer, slow: str) -> None:
    web.will(SLOW[slow])
    began = time.monotonic()
    with pytest.raises(Timeout):
        send(egress_to(web), web.url(), seconds=0.4)
    assert time.monotonic() - began < 2


def test_a_server_that_takes_nothing_is_given_up() -> None:
    with peer() as deaf:
        deaf.serve = deaf.ignore  # type: ignore[method-assign]  # as above
        began = time.monotonic()
        with HttpConnection("deaf", began + 0.4, StopSignal()) as line:
            line.open([IPv4Address("127.0.0.1")], deaf.port, None)
            content = b"x" * 64 * 1024 * 1024  # more than both ends have room for
            with pytest.raises(Timeout):
                line.send_request("POST", "/", [("host", "deaf"), ("content-length", str(len(content)))], content)
        assert time.monotonic() - began < 3


def test_a_handshake_that_never_ends_is_given_up(web: Peer, trusting: Callable[[], ssl.SSLContext]) -> None:
    with peer() as mute:
        mute.serve = mute.ignore  # type: ignore[method-assign]  # as above
        began = time.monotonic()
        with pytest.raises(Timeout):
            send(egress_to(mute, tls=trusting), mute.url().replace("http:", "https:"), seconds=0.4)
        assert time.monotonic() - began < 3


def test_a_resolver_that_never_answers_is_given_up(web: Peer) -> None:
    over = threading.Event()

    def stuck(_: str) -> list[str]:
        over.wait(WITHIN_S)
        return ["127.0.0.1"]

    egress = HttpClient((), rules(f"api.test:{web.port}"), resolve=stuck)
    began = time.monotonic()
    with pytest.raises(Timeout):
        send(egress, web.url("/", "api.test"), seconds=0.3)
    over.set()
    assert time.monotonic() - began < 2
    assert web.connections == 0


@pytest.mark.parametrize("slow", ["silence", "tls"])
def test_a_call_that_is_stopped_ends_at_once_and_hangs_up(
    web: Peer, slow: str, serving_as: Callable[[str], ssl.SSLContext], trusting: Callable[[], ssl.SSLContext]
) -> None:
    stop, ended = StopSignal(), []
    with peer(serving_as("api.test") if slow == "tls" else None) as waiting:
        waiting.will(silent)
        egress = egress_to(waiting, names=Names({"api.test": [["127.0.0.1"]]}), tls=trusting)

        def ask() -> None:
            with pytest.raises(Timeout):
                send(egress, waiting.url("/", "api.test"), seconds=60, stop=stop)
            ended.append(time.monotonic())

        asking = threading.Thread(target=ask)
        asking.start()
        assert waiting.came.wait(WITHIN_S)
        closed_at = time.monotonic()
        stop.set()
        asking.join(WITHIN_S)
        assert ended
        assert ended[0] - closed_at < 2
        assert waiting.left.wait(WITHIN_S)


def test_a_call_that_was_stopped_before_it_began_sends_nothing(web: Peer) -> None:
    stop = StopSignal()
    stop.set()
    with pytest.raises(Timeout):
        send(egress_to(web), web.url(), stop=stop)
    assert web.heard == []


# -- how much it takes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("framed", [b"", b"content-length: 99999999999\r\n"])
def test_a_body_without_end_is_read_to_its_bound(web: Peer, framed: bytes) -> None:
    web.will(floods(HEAD + framed + b"\r\n"))
    body = send(egress_to(web, body_bytes=SMALL), web.url()).body
    assert (len(body.content), body.cut) == (SMALL, True)
    assert web.left.wait(WITHIN_S)
    assert web.sent < 64 * 1024 * 1024  # what fits into the buffers of both ends, and no more


@pytest.mark.parametrize("layers", [1, 2])
def test_a_small_body_that_unpacks_to_a_large_one_is_unpacked_to_its_bound(web: Peer, layers: int) -> None:
    packed = zlib.compress(b"\0" * 200_000_000, wbits=31)
    for _ in range(layers - 1):
        packed = gzip.compress(packed)
    web.will(reply(packed, content_encoding=", ".join(["gzip"] * layers)))
    egress = egress_to(web, body_bytes=SMALL)
    tracemalloc.start()
    try:
        if layers == 1:
            body = send(egress, web.url()).body
            assert (len(body.content), body.cut) == (SMALL, True)
        else:
            with pytest.raises(Unreachable):
                send(egress, web.url())
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8_000_000


@pytest.mark.parametrize(
    ("coding", "packed"),
    [
        ("gzip", gzip.compress(b"whole", mtime=0)),
        ("x-gzip", gzip.compress(b"wh", mtime=0) + gzip.compress(b"ole", mtime=0)),
        ("deflate", zlib.compress(b"whole")),
        ("deflate", zlib.compress(b"whole", wbits=-15)),
        ("identity", b"whole"),
        ("gzip", gzip.compress(b"whole", mtime=0) + b"\0\0\0"),
    ],
)
def test_a_packed_body_is_unpacked(web: Peer, coding: str, packed: bytes) -> None:
    web.will(reply(packed, content_encoding=coding))
    assert send(egress_to(web), web.url()).body.content == b"whole"
    assert web.heard[0].header("accept-encoding") == "gzip, deflate"


@pytest.mark.parametrize(
    ("coding", "packed"),
    [
        ("gzip", b"not packed"),
        ("gzip", gzip.compress(b"whole" * 100, mtime=0)[:-12]),
        ("br", b"x"),
        ("gzip, gzip", b"x"),
    ],
)
def test_a_body_that_can_not_be_unpacked_is_a_failure(web: Peer, coding: str, packed: bytes) -> None:
    web.will(reply(packed, content_encoding=coding))
    with pytest.raises(Unreachable):
        send(egress_to(web), web.url())


def test_headers_without_end_are_too_large(web: Peer) -> None:
    web.will(floods(b"HTTP/1.1 200 OK\r\n", b"x: " + b"y" * 1000 + b"\r\n"))
    with pytest.raises(TooLarge):
        send(egress_to(web), web.url())


@pytest.mark.parametrize(
    "broken",
    [
        b"",
        b"hello\r\n\r\n",
        HEAD + b"content-length: 100\r\n\r\nshort",
        HEAD + b"content-length: 5\r\ncontent-length: 6\r\n\r\nhello",
        HEAD + b"transfer-encoding: chunked\r\n\r\nzz\r\n",
    ],
)
def test_a_reply_that_is_none_or_breaks_off_is_a_failure(web: Peer, broken: bytes) -> None:
    web.will(raw(broken))
    with pytest.raises(Unreachable):
        send(egress_to(web), web.url())


def test_a_reply_to_head_has_no_body(web: Peer) -> None:
    web.will(raw(HEAD + b"content-length: 100\r\n\r\n"))
    replied = send(egress_to(web), web.url(), "HEAD")
    assert (replied.head.status, replied.body.content) == (200, b"")


# -- what it sends ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("X-A", "b\r\nX-Evil: 1"),
        ("X-A", "b\nX-Evil: 1"),
        ("X-A", "b\rX-Evil: 1"),
        ("X-A\r\nX-Evil: 1\r\nX-B", "b"),
        ("X-A: b\r\nX-Evil", "1"),
        ("X A", "b"),
        ("", "b"),
        ("X-A", "b\0c"),
        ("X-A", "ü"),
        ("X-A", "\u010a"),  # a line feed to whoever keeps the low byte
        ("X-A", "y" * 9000),
        ("Host", "evil.test"),
        ("Content-Length", "0"),
        ("Transfer-Encoding", "chunked"),
        ("Connection", "upgrade"),
        ("Proxy-Authorization", "x"),
        ("Accept-Encoding", "br"),
        ("Expect", "100-continue"),
        ("Upgrade", "h2c"),
        ("X-Forwarded-For", "127.0.0.1"),
    ],
)
def test_a_header_that_could_be_more_than_one_is_refused_before_a_connection(web: Peer, name: str, value: str) -> None:
    with pytest.raises(BadArguments):
        send(egress_to(web), web.url(), headers=((name, value),))
    assert web.connections == 0


def test_a_header_given_twice_is_refused(web: Peer) -> None:
    with pytest.raises(BadArguments):
        send(egress_to(web), web.url(), headers=(("X-A", "1"), ("x-a", "2")))
    assert web.connections == 0


def test_the_server_sees_the_request_as_it_was_meant(web: Peer) -> None:
    send(egress_to(web), web.url("/a%2Fb?c=d&e"), "PUT", headers=(("X-A", "1"),), body=b"\0\xff\r\n")
    (heard,) = web.heard
    assert (heard.method, heard.target, heard.body) == ("PUT", "/a%2Fb?c=d&e", b"\0\xff\r\n")
    assert dict(heard.headers) == {
        "host": f"127.0.0.1:{web.port}",
        "accept-encoding": "gzip, deflate",
        "connection": "close",
        "user-agent": "kairos-mcp",
        "accept": "*/*",
        "content-length": "4",
        "x-a": "1",
    }


def test_a_body_that_is_too_long_is_not_sent(web: Peer) -> None:
    with pytest.raises(BadArguments):
        send(egress_to(web), web.url(), "POST", body=b"x" * (1024 * 1024 + 1))
    assert web.connections == 0


def test_an_error_names_no_address_that_a_name_led_to() -> None:
    egress = HttpClient(resolve=Names({"evil.test": [["10.11.12.13"]]}))
    with pytest.raises(KairosError) as refused:
        send(egress, "http://evil.test/")
    assert "10.11.12.13" not in str(refused.value)
