"""What no client of ours sends is refused, nothing of it runs, and the server answers the next call."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable
from gzip import compress

import pytest
from support.http_server import Site, call_body, read_answer, read_to_end

from kairos_mcp.server.http_bounds import RequestBounds
from kairos_mcp.server.http_guard import ServerNames
from kairos_mcp.server.tokens import TokenStore

CALL = call_body("planner_run", {"goal": "must not run"})


@pytest.fixture
def site(token_site: Site):
    yield token_site
    assert token_site.still_answers()
    assert token_site.is_quiet()
    assert token_site.call("run_status", {}).json["result"]["structuredContent"]["runs"] == []


TOKENS = {
    "HTTP-002 wrong": "Bearer kairos.alice.AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA",
    "HTTP-002 nobody's": "Bearer kairos.bob.AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA",
    "HTTP-002 alg=none": "Bearer eyJhbGciOiJub25lIn0.eyJzdWIiOiJhbGljZSJ9.",
    "HTTP-002 empty": "Bearer ",
    "HTTP-002 a path": "Bearer kairos.../alice.x",
    "HTTP-002 another scheme": "Basic YWxpY2U6YQ==",
}


@pytest.mark.parametrize("path", ["/mcp", "/messages/?session_id=x", "/sse"])
@pytest.mark.parametrize("given", TOKENS.values(), ids=TOKENS)
def test_a_token_that_was_not_given_out_lets_nobody_in(site: Site, given: str, path: str) -> None:
    answer = site.post(CALL, f"Authorization: {given}", path=path, without=("Authorization",))
    assert (answer.status, "www-authenticate" in answer.headers) == (401, True)
    if given != TOKENS["HTTP-002 empty"]:
        assert any("refused a request of 127.0.0.1: its token is wrong" in line for line in site.said)


def test_HTTP_002_no_token_and_one_of_another_server_let_nobody_in(site: Site, tmp_path) -> None:
    assert site.post(CALL, without=("Authorization",)).status == 401
    foreign = TokenStore(tmp_path).add("alice")
    assert site.post(CALL, f"Authorization: Bearer {foreign}", without=("Authorization",)).status == 401
    assert site.post(CALL, path=f"/mcp?token={site.token}", without=("Authorization",)).status == 401


HOSTS = {
    "HTTP-003": "evil.example",
    "HTTP-003 with our port": "evil.example:{port}",
    "HTTP-005": "localhost:80@evil.example",
    "HTTP-005 with our port": "localhost:{port}@evil.example",
    "HTTP-005 a longer port": "127.0.0.1:{port}0",
    "HTTP-009": "rebind.evil:{port}",
    "no port": "localhost",
    "another port": "localhost:1",
    "an address that is not ours": "10.0.0.1:{port}",
    "empty": "",
}


@pytest.mark.parametrize("host", HOSTS.values(), ids=HOSTS)
def test_a_host_that_we_are_not_is_misdirected(site: Site, host: str) -> None:
    assert site.post(CALL, f"Host: {host.format(port=site.port)}", without=("Host",)).status == 421


@pytest.mark.parametrize("host", ["localhost:{port}", "LOCALHOST:{port}", "127.0.0.1:{port}", "[::1]:{port}"])
def test_the_names_of_this_machine_are_ours(site: Site, host: str) -> None:
    assert site.call("run_status", {}, f"Host: {host.format(port=site.port)}", without=("Host",)).status == 200


ORIGINS = {
    "HTTP-004": "http://evil.example",
    "HTTP-004 null": "null",
    "HTTP-006": "http://localhost:1.evil.example",
    "HTTP-009": "http://rebind.evil:{port}",
    "user part": "http://localhost:{port}@evil.example",
    "longer name": "http://localhost.evil.example",
    "another scheme": "ftp://localhost",
    "empty": "",
}


@pytest.mark.parametrize("origin", ORIGINS.values(), ids=ORIGINS)
def test_a_foreign_page_is_refused(site: Site, origin: str) -> None:
    assert site.post(CALL, f"Origin: {origin.format(port=site.port)}").status == 403


@pytest.mark.parametrize("origin", ["http://localhost:{port}", "http://127.0.0.1:6274", "https://[::1]:1"])
def test_a_page_of_this_machine_is_not(site: Site, origin: str) -> None:
    assert site.call("run_status", {}, f"Origin: {origin.format(port=site.port)}").status == 200


def status_of_browser(site: Site, value: str, *more: str) -> int:
    return site.call("run_status", {}, f"Sec-Fetch-Site: {value}", *more).status


@pytest.mark.parametrize("value", ["cross-site", "same-site", "", "Cross-Site", "none, cross-site", "unheard-of"])
@pytest.mark.parametrize("path", ["/mcp", "/sse"])
def test_a_page_that_states_no_origin_is_known_by_its_browser(site: Site, value: str, path: str) -> None:
    """An image or a form of any page sends no Origin; the browser adds whose page it is, and the page can't say no."""
    head = site.head("Connection: close", f"Sec-Fetch-Site: {value}", method="GET", path=path)
    assert site.says_to(head + b"\r\n").status == 403


@pytest.mark.parametrize("value", ["same-origin", "none"])
def test_our_own_pages_and_what_the_user_typed_are_no_strangers(site: Site, value: str) -> None:
    assert status_of_browser(site, value) == 200


@pytest.mark.parametrize("value", ["cross-site", "same-site"])
def test_a_page_of_this_machine_is_trusted_by_its_origin_whatever_site_it_is(site: Site, value: str) -> None:
    assert status_of_browser(site, value, f"Origin: http://localhost:{site.port}") == 200
    assert status_of_browser(site, value, "Origin: http://evil.example") == 403


def test_a_stranger_s_page_spends_nothing_of_the_owner_s_rate_and_holds_no_stream(
    sites: Callable[..., Site],
) -> None:
    site = sites(RequestBounds(calls_per_s=0.001, burst=2, sessions=1))
    for path in ("/mcp", "/sse") * 4:
        head = site.head("Connection: close", "Sec-Fetch-Site: cross-site", method="GET", path=path)
        assert site.says_to(head + b"\r\n").status == 403
    assert site.still_answers()
    stream = site.head(method="GET", path="/sse", without=("MCP-Protocol-Version",))
    with site.connect() as connection:
        connection.sendall(stream + b"\r\n")
        assert b" 200 " in connection.recv(65536)


def test_a_host_that_was_allowed_is_one_of_ours() -> None:
    names = ServerNames(8765, ("Kairos.example",))
    for host in ("kairos.example", "KAIROS.example:8765", "10.0.0.7:8765"):
        assert names.include(host, "10.0.0.7")
    for host in ("kairos.example:1", "x.kairos.example", "10.0.0.8:8765", "10.0.0.7"):
        assert not names.include(host, "10.0.0.7")
    for origin in ("https://kairos.example", "http://kairos.example", "http://Kairos.example:8765"):
        assert names.trust(origin, "10.0.0.7")
    for origin in ("ftp://kairos.example", "://kairos.example", "kairos.example", "http:kairos.example"):
        assert not names.trust(origin, "10.0.0.7")
    assert not names.trust("https://kairos.example.evil", "10.0.0.7")


@pytest.mark.parametrize("size", [5, 13])
def test_HTTP_013_a_body_too_large_is_refused(site: Site, size: int) -> None:
    megabytes = size * 2**20
    head = site.head(f"Content-Length: {megabytes}")
    assert site.says_to(head + b"\r\n" + b" " * megabytes).status == 413


def test_HTTP_013_so_is_one_that_comes_in_chunks(site: Site) -> None:
    chunk = b"10000\r\n" + b" " * 65536 + b"\r\n"
    head = site.head("Transfer-Encoding: chunked")
    assert site.says_to(head + b"\r\n" + chunk * (13 * 16) + b"0\r\n\r\n").status == 413


def test_HTTP_014_a_compressed_body_is_never_inflated(site: Site) -> None:
    assert site.post(compress(b" " * 10_000_000), "Content-Encoding: gzip").status == 415


TYPES = ("application/jsonp", "application/json-patch+json", "text/plain", "application/json; charset=latin-1", "")


@pytest.mark.parametrize("given", TYPES)
@pytest.mark.parametrize("path", ["/mcp", "/messages/?session_id=x"])
def test_only_json_is_a_message(site: Site, given: str, path: str) -> None:
    answer = site.post(CALL, f"Content-Type: {given}", path=path, without=("Content-Type",))
    assert answer.status == 415


def test_json_may_name_its_charset(site: Site) -> None:
    given = "Content-Type: Application/JSON; charset=UTF-8"
    assert site.call("run_status", {}, given, without=("Content-Type",)).status == 200


TWICE = {
    "HTTP-021 Mcp-Name": ("MCP-Name: planner_run",),
    "HTTP-021 Authorization": ("Authorization: Bearer x",),
    "HTTP-021 Host": ("Host: evil.example",),
    "HTTP-021 Content-Length": ("Content-Length: 1",),
    "HTTP-021 Content-Type": ("Content-Type: text/plain",),
    "HTTP-021 Origin": ("Origin: http://localhost", "Origin: http://evil.example"),
    "Sec-Fetch-Site": ("Sec-Fetch-Site: none", "Sec-Fetch-Site: none"),
    "HTTP-021 Mcp-Session-Id": ("Mcp-Session-Id: a", "Mcp-Session-Id: b"),
}


@pytest.mark.parametrize("lines", TWICE.values(), ids=TWICE)
def test_a_header_that_stands_twice_is_refused(site: Site, lines: tuple[str, ...]) -> None:
    """Each of these calls would be answered, but for the header that was added."""
    assert site.call("run_status", {}, *lines).status == 400


LENGTH = f"Content-Length: {len(CALL)}"
CHUNK = f"{len(CALL):x}".encode()
CHUNKED = "Transfer-Encoding: chunked"
CHUNKS = CHUNK + b"\r\n" + CALL + b"\r\n0\r\n\r\n"
AMBIGUOUS = {
    "a length and chunks": ((LENGTH, CHUNKED), CHUNKS),
    "chunks and a length": ((CHUNKED, LENGTH), CHUNKS),
    "chunks and no length": ((CHUNKED, "Content-Length: 0"), CHUNKS),
    "two lengths in one": ((f"Content-Length: {len(CALL)}, {len(CALL)}",), CALL),
    "a signed length": ((f"Content-Length: +{len(CALL)}",), CALL),
    "two encodings": (("Transfer-Encoding: chunked, identity",), CHUNKS),
    "an encoding twice": ((CHUNKED, CHUNKED), CHUNKS),
    "an encoding nobody knows": (("Transfer-Encoding: xchunked",), CHUNKS),
    "a folded header": ((LENGTH, "X: a\r\n b"), CALL),
    "a folded length": ((LENGTH, "X: a\r\n\tContent-Length: 0"), CALL),
    "a bare LF between headers": ((LENGTH + "\nX: a",), CALL),
    "a bare LF at the end": ((LENGTH + "\n",), CALL),
    "a bare CR in a header": ((LENGTH, "X: a\rContent-Length: 0"), CALL),
    "a space before the colon": ((f"Content-Length : {len(CALL)}",), CALL),
    "a line without a colon": ((LENGTH, "X"), CALL),
    "a NUL": ((LENGTH, "X: a\0b"), CALL),
    "a bare LF after a chunk's size": ((CHUNKED,), CHUNK + b"\n" + CALL + b"\r\n0\r\n\r\n"),
    "a bare LF in an extension": ((CHUNKED,), CHUNK + b";a\nb\r\n" + CALL + b"\r\n0\r\n\r\n"),
    "a bare CR in an extension": ((CHUNKED,), CHUNK + b";a\rb\r\n" + CALL + b"\r\n0\r\n\r\n"),
    "white space after a chunk's size": ((CHUNKED,), CHUNK + b" \r\n" + CALL + b"\r\n0\r\n\r\n"),
    "a bare LF after a chunk": ((CHUNKED,), CHUNK + b"\r\n" + CALL + b"\n0\r\n\r\n"),
    "a bare LF after the last chunk": ((CHUNKED,), CHUNKS[:-2] + b"\n"),
    "a bare LF in a trailer": ((CHUNKED,), CHUNKS[:-2] + b"X: a\n\r\n"),
    "a folded trailer": ((CHUNKED,), CHUNKS[:-2] + b"X: a\r\n b\r\n\r\n"),
    "a hexadecimal size of another kind": ((CHUNKED,), b"0x" + CHUNKS),
}
NAMES = ("MCP-Method: tools/call", "MCP-Name: planner_run")


@pytest.mark.parametrize(("lines", "body"), AMBIGUOUS.values(), ids=AMBIGUOUS)
def test_where_a_message_ends_is_never_guessed(site: Site, lines: tuple[str, ...], body: bytes) -> None:
    """What two readers could cut in two ways is answered by 400, and nothing is read of that connection any more."""
    with site.connect() as connection:
        connection.sendall(site.head(*NAMES, *lines) + b"\r\n" + body + b"GET /mcp HTTP/1.1\r\n\r\n")
        answer = read_answer(connection)
        assert (answer.status, answer.headers["connection"]) == (400, "close")
        assert read_to_end(connection) == b""


@pytest.mark.parametrize("version", ["1.0", "0.9", "1.2", "2.0"])
def test_chunks_are_of_http_1_1_and_other_versions_are_not_spoken(site: Site, version: str) -> None:
    head = site.head(*NAMES, CHUNKED).replace(b"HTTP/1.1", f"HTTP/{version}".encode())
    assert site.says_to(head + b"\r\n" + CHUNKS).status == 400


def test_a_line_that_begins_the_header_with_a_bare_LF_or_white_space_is_refused(site: Site) -> None:
    head = site.head(*NAMES, LENGTH) + b"\r\n" + CALL
    for begun in (b"\n", b"\r\n", b" "):
        assert site.says_to(begun + head).status == 400
    first, rest = head.split(b"\r\n", 1)
    assert site.says_to(first + b"\n" + rest).status == 400
    assert site.says_to(first + b"\r\n " + rest).status == 400


def test_what_is_plainly_in_chunks_is_read(site: Site) -> None:
    call = call_body("run_status", {})
    names = ("MCP-Method: tools/call", "MCP-Name: run_status")
    chunks = [b"%x;a=b\r\n%s\r\n" % (len(part), part) for part in (call[:10], call[10:])]
    body = b"".join(chunks) + b"0\r\nX: a\r\n\r\n"
    with site.connect() as connection:
        for _ in range(2):  # and what follows on the same connection
            connection.sendall(site.head(*names, CHUNKED) + b"\r\n" + body)
            assert read_answer(connection).status == 200


def test_a_header_may_arrive_cut_anywhere(site: Site) -> None:
    call = call_body("run_status", {})
    names = ("MCP-Method: tools/call", "MCP-Name: run_status", f"Content-Length: {len(call)}")
    with site.connect() as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for piece in re.findall(rb"[^\r\n]+|\r|\n", site.head(*names) + b"\r\n"):
            connection.sendall(piece)
        connection.sendall(call)
        assert read_answer(connection).status == 200


def test_a_refused_body_that_turns_out_ambiguous_only_ends_the_connection(site: Site) -> None:
    with site.connect() as connection:
        head = site.head(CHUNKED, "Content-Type: text/plain", without=("Content-Type",))
        connection.sendall(head + b"\r\n")
        assert read_answer(connection).status == 415
        connection.sendall(CHUNK + b"\n")
        assert read_to_end(connection) == b""


ODD = {
    "HTTP-023": (b"[" + CALL + b"]", -32600),
    "HTTP-024 no UTF-8": (b'{"jsonrpc":"2.0","id":1,"method":"\xff"}', -32700),
    "HTTP-024 deep": (b'{"jsonrpc":"2.0","id":1,"method":"x","params":' + b"[" * 10_000, -32700),
    "HTTP-024 a long number": (
        b'{"jsonrpc":"2.0","id":1,"method":"x","params":{"a":' + b"9" * 5000 + b"}}",
        -32700,
    ),
    "no JSON": (b"{", -32700),
    "no message": (b'{"a": 1}', -32600),
    "nothing": (b"", -32700),
}
OPENINGS = {
    "modern": ("/mcp", ()),
    "legacy": ("/mcp", ("MCP-Protocol-Version",)),
    "sse": ("/messages/?session_id=x", ()),
}


@pytest.mark.parametrize(("path", "without"), OPENINGS.values(), ids=OPENINGS)
@pytest.mark.parametrize(("body", "code"), ODD.values(), ids=ODD)
def test_what_is_no_message_is_refused_alike(site: Site, body: bytes, code: int, path: str, without) -> None:
    answer = site.post(body, path=path, without=without)
    assert (answer.status, answer.json["error"]["code"]) == (400, code)
    assert len(answer.body) < 300


def test_HTTP_024_no_number_is_refused_by_name(site: Site) -> None:
    body = CALL.replace(b'"must not run"', b'"x", "wait_s": NaN')
    answer = site.post(body, "MCP-Method: tools/call", "MCP-Name: planner_run").json["result"]
    assert (answer["isError"], answer["structuredContent"]["code"]) == (True, "bad_arguments")


METHODS = [
    *[("/mcp", method) for method in ("GET", "DELETE", "PUT", "TRACE", "HEAD", "OPTIONS", "PATCH")],
    *[("/sse", method) for method in ("POST", "DELETE", "TRACE")],
    *[("/messages/", method) for method in ("GET", "PUT")],
]


@pytest.mark.parametrize(("path", "method"), METHODS)
@pytest.mark.parametrize("version", ["2025-11-25", "2026-07-28"])
def test_HTTP_025_a_method_without_a_meaning_is_refused(site: Site, path, method, version) -> None:
    head = site.head(f"MCP-Protocol-Version: {version}", method=method, path=path, without=("MCP-Protocol-Version",))
    body = b"Content-Length: 2\r\n\r\n{}" if method == "POST" else b"\r\n"
    answer = site.says_to(head + b"Connection: close\r\n" + body)
    assert answer.status == (400 if method == "POST" else 405)


def test_there_is_nothing_beside_the_transports(site: Site) -> None:
    for path in ("/", "/mcp/", "/docs", "/.well-known/oauth-protected-resource", "/messages", "//mcp"):
        assert site.post(CALL, path=path).status == 404


def test_sse_alone_has_no_streamable_http(sites) -> None:
    site = sites(transport="sse")
    assert site.post(CALL).status == 404
    head = site.head("Connection: close", method="POST", path="/messages/?session_id=" + "0" * 32)
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "ping"}).encode()
    assert site.says_to(head + f"Content-Length: {len(body)}\r\n\r\n".encode() + body).status == 404
