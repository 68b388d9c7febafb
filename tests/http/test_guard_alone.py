"""The guard and the reader of bodies each between an application and a server of the test's own: no socket, no MCP."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import anyio
import pytest
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kairos_mcp.server.http_bounds import RequestBounds
from kairos_mcp.server.http_guard import METHOD, TOOL, CheckedBody, HttpGuard, ServerNames, refuse

PORT = 8765
HOST = (b"host", b"localhost:8765")
JSON = (b"content-type", b"application/json")
LOOPBACK = ("127.0.0.1", PORT)
CALL = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x"}}'


@dataclass
class Behind:
    """An application that reads the whole message, as transports do, and says yes."""

    calls: list[tuple[Scope, bytes]] = field(default_factory=list)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            assert message["type"] == "http.request"
            body += message["body"]
            more = message["more_body"]
        self.calls.append((scope, body))
        await Response("yes")(scope, receive, send)


@dataclass
class Peer:
    """A client that sends these messages and, if it has nothing left to send, waits or goes."""

    messages: list[Message]
    goes: bool = False
    asked: int = 0
    sent: list[Message] = field(default_factory=list)

    async def receive(self) -> Message:
        self.asked += 1
        if self.messages:
            return self.messages.pop(0)
        if not self.goes:
            await anyio.sleep_forever()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        self.sent.append(message)

    @property
    def status(self) -> int | None:
        return self.sent[0]["status"] if self.sent else None

    @property
    def headers(self) -> dict[bytes, bytes]:
        return dict(self.sent[0]["headers"])

    @property
    def error(self) -> dict[str, Any]:
        answer = json.loads(b"".join(message.get("body", b"") for message in self.sent))
        assert (answer["jsonrpc"], set(answer)) == ("2.0", {"jsonrpc", "id", "error"})
        return answer["error"]


def pieces(*parts: bytes) -> list[Message]:
    """A body that arrives in these parts."""
    last = len(parts) - 1
    return [{"type": "http.request", "body": part, "more_body": nth < last} for nth, part in enumerate(parts)]


def request(*headers: tuple[bytes, bytes], method: str = "POST", server: Any = LOOPBACK) -> Scope:
    return {"type": "http", "method": method, "headers": list(headers), "server": server}


def spoken(app: ASGIApp, scope: Scope, peer: Peer) -> Peer:
    async def speak() -> None:
        with anyio.fail_after(10):
            await app(scope, peer.receive, peer.send)

    anyio.run(speak)
    return peer


# -- who asks, and in which name -------------------------------------------------------------------------------


def status_behind_guard(
    *headers: tuple[bytes, bytes], server: Any = LOOPBACK, given: tuple[str, ...] = ()
) -> int | None:
    behind = Behind()
    peer = Peer(pieces(CALL))
    spoken(HttpGuard(behind, ServerNames(PORT, given)), request(*headers, server=server), peer)
    assert bool(behind.calls) == (peer.status == 200)
    return peer.status


def test_a_refusal_is_an_error_of_the_protocol_that_says_why() -> None:
    peer = spoken(HttpGuard(Behind(), ServerNames(PORT)), request((b"host", b"evil.example")), Peer(pieces(CALL)))
    assert (peer.status, peer.error["code"]) == (421, -32600)
    assert "--allow-host" in peer.error["message"]
    assert peer.headers[b"content-type"] == b"application/json"
    other = spoken(refuse(429, "later", -32000, {"retry-after": "3"}), request(), Peer([]))
    assert (other.status, other.error, other.headers[b"retry-after"]) == (
        429,
        {"code": -32000, "message": "later"},
        b"3",
    )


ONCE = ("host", "origin", "authorization", "content-type", "content-length", "content-encoding", "sec-fetch-site")


@pytest.mark.parametrize("name", [*ONCE, "mcp-session-id", "mcp-", "mcp-protocol-version"])
def test_a_header_on_which_something_hangs_stands_once(name: str) -> None:
    value = {"host": b"localhost:8765", "origin": b"http://localhost", "sec-fetch-site": b"none"}.get(name, b"x")
    others = [HOST] if name != "host" else []
    assert status_behind_guard(*others, (name.encode(), value)) == 200
    assert status_behind_guard(*others, (name.encode(), value), (name.encode(), value)) == 400


@pytest.mark.parametrize("name", [b"accept", b"cookie", b"x-forwarded-for", b"mcpx", b"x-mcp-a", b"mcp"])
def test_any_other_header_may_stand_twice(name: bytes) -> None:
    assert status_behind_guard(HOST, (name, b"a"), (name, b"b")) == 200


def test_a_request_without_a_host_is_refused() -> None:
    assert status_behind_guard() == 421


@pytest.mark.parametrize(
    ("host", "reached", "ours"),
    [
        ("10.0.0.7:8765", "10.0.0.7", True),
        ("10.0.0.8:8765", "10.0.0.7", False),
        ("10.0.0.7", "10.0.0.7", False),
        ("[fe80::7]:8765", "fe80::7", True),
        ("fe80::7:8765", "fe80::7", False),
        ("[10.0.0.7]:8765", "10.0.0.7", False),
        (":8765", "", True),
        ("sock:8765", "sock", True),
        ("127.0.0.1:8765", "10.0.0.7", True),
    ],
)
def test_the_address_that_was_reached_is_one_of_our_names(host: str, reached: str, ours: bool) -> None:
    assert ServerNames(PORT).include(host, reached) == ours
    if reached:
        assert status_behind_guard((b"host", host.encode()), server=(reached, PORT)) == (200 if ours else 421)


@pytest.mark.parametrize("server", [None, ("/run/kairos.sock", None)])
def test_where_no_address_was_reached_our_names_are_ours_all_the_same(server: Any) -> None:
    assert status_behind_guard(HOST, server=server) == 200
    assert status_behind_guard((b"host", b"10.0.0.7:8765"), server=server) == 421


@pytest.mark.parametrize(("port", "ours"), [(80, True), (79, False), (81, False), (443, False)])
def test_port_80_alone_may_be_left_out(port: int, ours: bool) -> None:
    names = ServerNames(port, ("kairos.example",))
    for host in ("localhost", "127.0.0.1", "[::1]", "10.0.0.7"):
        assert names.include(host, "10.0.0.7") == ours
        assert names.include(f"{host}:{port}", "10.0.0.7")
    assert names.include("kairos.example", "10.0.0.7")  # as it was given


@pytest.mark.parametrize(
    ("origin", "trusted"),
    [
        ("http://localhost", True),
        ("https://127.0.0.1:1", True),
        ("http://[::1]:65535", True),
        ("http://localhost:123456", False),
        ("http://localhost:", False),
        ("http://LOCALHOST", False),
        ("http://10.0.0.7:8765", True),
        ("https://10.0.0.7:8765", True),
        ("ftp://10.0.0.7:8765", False),
        ("//10.0.0.7:8765", False),
        ("10.0.0.7:8765", False),
        ("http://evil.example", False),
        ("null", False),
        ("", False),
    ],
)
def test_an_origin_is_trusted_if_it_is_of_this_machine_or_one_of_our_names(origin: str, trusted: bool) -> None:
    assert status_behind_guard(HOST, (b"origin", origin.encode()), server=("10.0.0.7", PORT)) == (
        200 if trusted else 403
    )


@pytest.mark.parametrize(
    ("site", "status"),
    [(b"same-origin", 200), (b"none", 200), (b"cross-site", 403), (b"same-site", 403), (b"", 403), (b"None", 403)],
)
def test_a_browser_that_states_no_origin_has_to_say_that_the_page_is_ours(site: bytes, status: int) -> None:
    assert status_behind_guard(HOST, (b"sec-fetch-site", site)) == status
    assert status_behind_guard(HOST, (b"sec-fetch-site", site), (b"origin", b"http://localhost")) == 200
    assert status_behind_guard(HOST, (b"sec-fetch-site", site), (b"origin", b"http://evil.example")) == 403


# -- the body --------------------------------------------------------------------------------------------------


def read(
    peer: Peer, *headers: tuple[bytes, bytes], bounds: RequestBounds | None = None, method: str = "POST"
) -> tuple[Behind, Peer]:
    behind = Behind()
    spoken(CheckedBody(behind, bounds or RequestBounds()), request(*headers, method=method), peer)
    return behind, peer


def test_a_message_is_passed_on_whole_with_what_it_asks_for() -> None:
    for parts in ((CALL,), (CALL[:9], CALL[9:]), (b"", CALL[:1], b"", CALL[1:], b"")):
        behind, peer = read(Peer(pieces(*parts)), JSON)
        ((scope, body),) = behind.calls
        assert (peer.status, scope[METHOD], scope[TOOL], body) == (200, "tools/call", "x", CALL)


@pytest.mark.parametrize(
    ("method", "params"),
    [("tools/call", b"{}"), ("tools/call", b'{"name":1}'), ("tools/list", b'{"name":"x"}'), ("prompts/get", b"{}")],
)
def test_a_message_that_names_no_tool_to_call_is_passed_on_without_one(method: str, params: bytes) -> None:
    message = b'{"jsonrpc":"2.0","id":1,"method":"%b","params":%b}' % (method.encode(), params)
    ((scope, body),) = read(Peer(pieces(message)), JSON)[0].calls
    assert (scope[METHOD], TOOL in scope, body) == (method, False, message)


@pytest.mark.parametrize(
    "message", [b'{"jsonrpc":"2.0","method":"notifications/initialized"}', b'{"jsonrpc":"2.0","id":1,"result":{}}']
)
def test_what_is_no_request_asks_for_nothing(message: bytes) -> None:
    behind, _ = read(Peer(pieces(message)), JSON)
    assert [(scope[METHOD], body) for scope, body in behind.calls] == [("", message)]


def test_after_its_message_an_application_learns_from_the_client_itself_what_comes() -> None:
    """A transport that streams its answer waits for the client to go."""
    heard: list[str] = []

    async def waits(scope: Scope, receive: Receive, send: Send) -> None:
        heard.extend([(await receive())["type"], (await receive())["type"]])

    spoken(CheckedBody(waits, RequestBounds()), request(JSON), Peer(pieces(CALL), goes=True))
    assert heard == ["http.request", "http.disconnect"]


@pytest.mark.parametrize("method", ["GET", "DELETE", "OPTIONS"])
def test_only_what_is_posted_has_a_message(method: str) -> None:
    behind, peer = read(Peer(pieces(b"{")), method=method)
    assert (peer.status, [body for _, body in behind.calls]) == (200, [b"{"])


@pytest.mark.parametrize(
    ("given", "status"),
    [
        (b"application/json", 200),
        (b"APPLICATION/json ; charset=UTF-8 ", 200),
        (b'application/json;charset="utf-8"', 200),
        (b"application/json;", 415),
        (b"application/json; charset=utf-16", 415),
        (b"application/jsonp", 415),
        (b"text/json", 415),
        (b"", 415),
    ],
)
def test_a_message_is_json_and_says_so(given: bytes, status: int) -> None:
    assert read(Peer(pieces(CALL)), (b"content-type", given))[1].status == status


def test_a_message_that_says_nothing_of_its_type_is_refused() -> None:
    behind, peer = read(Peer(pieces(CALL)))
    assert (peer.status, peer.error["code"], behind.calls, peer.asked) == (415, -32600, [], 0)


@pytest.mark.parametrize(
    ("given", "status"), [(b"identity", 200), (b"Identity", 200), (b"", 200), (b"gzip", 415), (b"identity, gzip", 415)]
)
def test_a_message_is_not_compressed(given: bytes, status: int) -> None:
    behind, peer = read(Peer(pieces(CALL)), JSON, (b"content-encoding", given))
    assert (peer.status, peer.asked) == (status, 1 if status == 200 else 0)
    assert len(behind.calls) == peer.asked


SMALL = RequestBounds(body_bytes=len(CALL))


@pytest.mark.parametrize("more", [0, 1, 10**30])
def test_what_is_declared_too_large_is_refused_before_it_is_read(more: int) -> None:
    length = (b"content-length", str(len(CALL) + more).encode())
    behind, peer = read(Peer(pieces(CALL)), JSON, length, bounds=SMALL)
    assert (peer.status, peer.asked, len(behind.calls)) == ((413, 0, 0) if more else (200, 1, 1))
    assert not more or str(len(CALL)) in peer.error["message"]


@pytest.mark.parametrize("declared", [b"", b"+70", b"-1", b"x", b"0x10"])
def test_a_length_that_is_no_number_bounds_nothing_and_breaks_nothing(declared: bytes) -> None:
    behind, peer = read(Peer(pieces(CALL)), JSON, (b"content-length", declared), bounds=SMALL)
    assert (peer.status, len(behind.calls)) == (200, 1)


def test_what_turns_out_too_large_is_refused_as_soon_as_it_is_whatever_was_declared() -> None:
    for parts in ((CALL, b" ", CALL), (CALL + b" ",)):
        behind, peer = read(Peer(pieces(*parts)), JSON, (b"content-length", b"1"), bounds=SMALL)
        assert (peer.status, behind.calls, peer.asked) == (413, [], min(len(parts), 2))


def test_a_client_that_goes_in_the_middle_is_answered_nothing_and_nothing_of_it_is_passed_on() -> None:
    for messages in ([], pieces(CALL, b"")[:1]):
        behind, peer = read(Peer(messages, goes=True), JSON)
        assert (peer.sent, behind.calls) == ([], [])


def test_a_message_that_does_not_arrive_in_time_is_refused_and_ends_its_connection() -> None:
    behind, peer = read(Peer(pieces(CALL, b"")[:1]), JSON, bounds=RequestBounds(body_s=0.01))
    assert (peer.status, peer.headers[b"connection"], behind.calls) == (408, b"close", [])


@pytest.mark.parametrize(
    ("body", "code", "number"),
    [
        (b"{", -32700, None),
        (b"", -32700, None),
        (b"[]", -32600, None),
        (b'{"jsonrpc":"2.0","id":7,"method":1}', -32600, 7),
        (b'{"jsonrpc":"2.0","id":"a","method":"x","params":[', -32700, "a"),
    ],
)
def test_what_is_no_message_is_refused_under_its_number_where_it_has_one(body: bytes, code: int, number: Any) -> None:
    behind, peer = read(Peer(pieces(body)), JSON)
    answer = json.loads(b"".join(message.get("body", b"") for message in peer.sent))
    assert (peer.status, answer["error"]["code"], answer["id"], behind.calls) == (400, code, number, [])
