"""Servers over HTTP that deviate in what stands around their messages: each is used, or its cause is named."""

from __future__ import annotations

import gzip
import json
import socket
import ssl
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx2
import pytest
import trustme
from odd_server import answer_line
from support.downstream import WITHIN_S, DownstreamServers, call_server, names, open_downstream

from kairos_mcp.tools.mcp_servers import McpServerSource
from kairos_mcp.tools.mcp_servers.bounded_http import BoundedHttp, Rechecks
from kairos_mcp.tools.mcp_servers.message_repair import MessageRepair

JSON, EVENTS = "application/json", "text/event-stream"


@dataclass(frozen=True)
class Sent:
    """What is sent for a request: a status, a body and headers."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


Send = Callable[["Asked"], Sent]
Meets = Callable[..., McpServerSource]


@dataclass(frozen=True)
class Asked:
    """A request, with the messages that a good server would send for it, each as its JSON."""

    path: str
    method: str | None
    headers: dict[str, str]
    answers: tuple[bytes, ...]
    count: int  # of requests before this one


def as_json(asked: Asked, **headers: str) -> Sent:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    if not asked.answers:
        return Sent(202, b"", named)
    return Sent(200, b"".join(asked.answers), {"content-type": JSON, **named})


def framed(before: bytes = b"", lead: bytes = b"data: ", end: bytes = b"\n\n", after: bytes = b"") -> Send:
    def send(asked: Asked) -> Sent:
        if not asked.answers:
            return Sent(202)
        body = before + b"".join(lead + each + end for each in asked.answers) + after
        return Sent(200, body, {"content-type": EVENTS})

    return send


def typed(kind: str | None) -> Send:
    def send(asked: Asked) -> Sent:
        sent = as_json(asked)
        return Sent(sent.status, sent.body, {"content-type": kind} if kind is not None and asked.answers else {})

    return send


def to_notifications(status: int, body: bytes = b"", kind: str | None = None) -> Send:
    def send(asked: Asked) -> Sent:
        return as_json(asked) if asked.answers else Sent(status, body, {} if kind is None else {"content-type": kind})

    return send


def packed(asked: Asked) -> Sent:
    sent = as_json(asked)
    return Sent(sent.status, gzip.compress(sent.body), {**sent.headers, "content-encoding": "gzip"})


def packed_events(asked: Asked) -> Sent:
    sent = framed()(asked)
    return Sent(sent.status, gzip.compress(sent.body), {**sent.headers, "content-encoding": "gzip"})


def leads_to(where: str, status: int = 307) -> Send:
    def send(asked: Asked) -> Sent:
        return Sent(status, b"", {"location": where}) if asked.path == "/mcp" else as_json(asked)

    return send


def answering(status: int = 200, kind: str = JSON, encode: Callable[[bytes], bytes] = bytes, **headers: str) -> Send:
    """The right answer in a response of this status, kind and encoding."""

    def send(asked: Asked) -> Sent:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        sent = as_json(asked)
        return Sent(status, encode(sent.body), {"content-type": kind, **named}) if asked.answers else sent

    return send


def demands_session(status: int) -> Send:
    def send(asked: Asked) -> Sent:
        if asked.method == "initialize":
            return as_json(asked, mcp_session_id="s")
        return as_json(asked) if "mcp-session-id" in asked.headers else Sent(status, b"Missing session ID")

    return send


def always(status: int, body: bytes = b"", kind: str = "text/html") -> Send:
    return lambda asked: Sent(status, body, {"content-type": kind})


def asks_in_between(asked: Asked) -> Sent:
    """Sends a ping, progress of nobody's and a log line before its answer, in the same stream."""
    more: list[Any] = [
        {"jsonrpc": "2.0", "id": "ping-1", "method": "ping"},
        {"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": "x", "progress": 1}},
        {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "hm"}},
        {"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": None, "progress": "half"}},
    ]
    lines = tuple(json.dumps(each).encode() for each in more)
    return framed()(
        Asked(asked.path, asked.method, asked.headers, (*lines, *asked.answers) if asked.answers else (), 0)
    )


WORKS: list[tuple[str, Send]] = [
    ("JSON", as_json),
    ("events", framed()),
    ("events with CRLF", framed(end=b"\r\n\r\n")),
    ("events with CR alone", framed(end=b"\r\r")),
    ("events without a blank", framed(lead=b"data:")),
    ("events with names and ids", framed(lead=b"event: message\nid: 7\nretry: 100\ndata: ")),
    ("comments", framed(before=b": hello\n\n", after=b": bye\n\n")),
    ("a comment in an event", framed(lead=b"event: message\n: ping\ndata: ")),
    ("a mark at the start", framed(before=b"\xef\xbb\xbf")),
    ("empty data before", framed(before=b"data:\n\ndata: \n\n")),
    ("no blank line at the end", framed(end=b"\n")),
    ("no line end at the end", framed(end=b"")),
    ("an event over two lines", lambda asked: framed()(asked) if not asked.answers else Sent(
        200, b"data: " + asked.answers[0].replace(b", ", b",\ndata: ", 1) + b"\n\n", {"content-type": EVENTS})),
    ("an event that goes on within its result", lambda asked: framed()(asked) if not asked.answers else Sent(
        200, b"data: " + asked.answers[0].replace(b'"result": {', b'"result": {\ndata: ', 1) + b"\n\n",
        {"content-type": EVENTS})),
    ("charset", typed("application/json; charset=utf-8")),
    ("capitals", typed("Application/JSON")),
    ("plain text", typed("text/plain")),
    ("no content type", typed(None)),
    ("events with a charset", lambda asked: Sent(framed()(asked).status, framed()(asked).body,
                                                 {"content-type": "text/event-stream;charset=UTF-8"})),
    ("200 without a body to notifications", to_notifications(200)),
    ("200 with JSON to notifications", to_notifications(200, b"{}", JSON)),
    ("200 with null to notifications", to_notifications(200, b"null", JSON)),
    ("202 with a body", to_notifications(202, b'{"ok": true}', JSON)),
    ("202 with words", to_notifications(202, b"Accepted", "text/plain")),
    ("204", to_notifications(204)),
    ("packed unasked", packed),
    ("events packed unasked", packed_events),
    ("a slash is missing", leads_to("/mcp/")),
    ("a slash is missing, 308", leads_to("/mcp/", 308)),
    ("asks in between", asks_in_between),
    *((f"a session given {name}", send) for name, send in (
        ("anew each time", lambda asked: as_json(asked, mcp_session_id=f"s{asked.count}")),
        ("as nothing", lambda asked: as_json(asked, mcp_session_id="")),
        ("in letters that no header holds", lambda asked: as_json(asked, mcp_session_id="s\xe9")),
    )),
    *((f"a session demanded with {status}", demands_session(status)) for status in (400, 401, 404, 500)),
    ("deflated unasked", answering(encode=zlib.compress, content_encoding="deflate")),
    *((f"encoding {name!r}", answering(content_encoding=name)) for name in ("utf-8", "none", "")),
    *((f"status {status}", answering(status)) for status in (201, 202, 203, 206)),
    *((f"as {kind}", answering(kind=kind)) for kind in (
        "application/json-rpc", "text/json", "application/octet-stream", "application/vnd.mcp+json", "text/html",
        "application/json, text/event-stream", EVENTS)),
    ("events as JSON", lambda asked: Sent(framed()(asked).status, framed()(asked).body, {"content-type": JSON})),
    ("lines of JSON as events", lambda asked: Sent(framed()(asked).status, b"\n".join(asked.answers) + b"\n",
                                                   {"content-type": EVENTS})),
    ("a mark before JSON", answering(encode=lambda body: b"\xef\xbb\xbf" + body)),
    ("a NUL behind JSON", answering(encode=lambda body: body + b"\0")),
    ("blank lines around JSON", answering(encode=lambda body: b"\n\n" + body + b"\n")),
    ("JSON over several lines", answering(encode=lambda body: json.dumps(json.loads(body), indent=2).encode())),
    *((f"events named {name!r}", framed(lead=f"event: {name}\ndata: ".encode()))
      for name in ("response", "result", "data", "completion", "")),
    *((f"beside events that say {word!r}", framed(before=f"{word}\n\n".encode())) for word in (
        "event: ping\ndata: ping", "data: keep-alive", "event: endpoint\ndata: /messages?x=1", "data", "hello",
        "retry: soon\nid: \0", "event: ping\ndata: {}", "event: time\ndata: {\"at\": 1}", "\n\n")),
    ("a last event [DONE]", framed(after=b"data: [DONE]\n\n")),
    ("two blanks before the data", framed(lead=b"data:  ")),
    ("line ends of both kinds", framed(lead=b"event: message\r\ndata: ", end=b"\n\r\n")),
    ("its tools change 300 times", framed(
        before=b'data: {"jsonrpc":"2.0","method":"notifications/tools/list_changed"}\n\n' * 300)),
    *((f"{status} to notifications", to_notifications(status, b"x", "text/plain")) for status in (302, 400, 404, 500)),
    ("a page to notifications", to_notifications(200, b"<html>ok", "text/html")),
    ("events to notifications", to_notifications(200, b"", EVENTS)),
    ("an answer to notifications", to_notifications(200, b'{"jsonrpc":"2.0","id":null,"result":{}}', JSON)),
    ("an error to notifications", to_notifications(
        200, b'{"jsonrpc":"2.0","id":null,"error":{"code":-32601,"message":"Method not found"}}', JSON)),
]  # fmt: skip
REAL = {"JSON", "events with CRLF", "packed unasked", "a slash is missing", "asks in between", "status 202"}


@pytest.mark.parametrize("send", [row[1] for row in WORKS], ids=[row[0] for row in WORKS])
def test_a_server_over_http_is_used_however_it_sends(many: Meets, send: Send) -> None:
    server = many(send)
    assert names(server) == [f"{server.name}__echo"], server.notes()
    result = call_server(server, "echo", text="x")
    assert (result.content, result.is_error) == ("fine", False)


@pytest.mark.parametrize(
    "send", [row[1] for row in WORKS if row[0] in REAL], ids=[row[0] for row in WORKS if row[0] in REAL]
)
def test_over_a_real_connection_too(downstream: DownstreamServers, send: Send) -> None:
    with served(send) as url:
        server = downstream.server("x", url=url, sandbox=True)
        server.wait_ready(time.monotonic() + WITHIN_S)
        assert names(server) == ["x__echo"], server.notes()
        result = call_server(server, "echo", text="x")
    assert (result.content, result.is_error) == ("fine", False)


STREAMS: list[tuple[str, Sent]] = [
    ("JSON", Sent(200, b"{}", {"content-type": JSON})),
    ("a page", Sent(200, b"<html>hi</html>", {"content-type": "text/html"})),
    ("events that end at once", Sent(200, b"", {"content-type": EVENTS})),
    ("the older transport's events", Sent(200, b"event: endpoint\ndata: /messages\n\n", {"content-type": EVENTS})),
    ("events of its own", Sent(200, b"event: ping\ndata: now\n\n", {"content-type": EVENTS})),
    *((f"status {status}", Sent(status)) for status in (204, 302, 400, 401, 404, 500)),
]


@pytest.mark.parametrize("stream", [row[1] for row in STREAMS], ids=[row[0] for row in STREAMS])
def test_what_a_server_answers_to_the_stream_that_it_need_not_have_costs_nothing(many: Meets, stream: Sent) -> None:
    server = many(lambda asked: as_json(asked, mcp_session_id="s"), stream)
    assert names(server) == [f"{server.name}__echo"], server.notes()
    assert call_server(server, "echo", text="x").content == "fine"


LOST: list[tuple[str, Sent]] = [
    ("404", Sent(404)),
    ("404 with a page", Sent(404, b"<html><title>404</title></html>", {"content-type": "text/html"})),
    ("404 with an error", Sent(404, b'{"jsonrpc": "2.0", "id": null, "error": {"code": -32001, "message": "gone"}}',
                               {"content-type": JSON})),
    ("410", Sent(410, b"gone")),
    ("400 with an error", Sent(400, b'{"jsonrpc": "2.0", "id": null, "error":'
                               b' {"code": -32000, "message": "Bad Request: No valid session ID provided"}}',
                               {"content-type": JSON})),
    ("400 with words", Sent(400, b"Invalid or missing session ID", {"content-type": "text/plain"})),
    ("401 with words", Sent(401, b'{"error": "session expired"}', {"content-type": JSON})),
    ("an error in a 200", Sent(200, b'{"jsonrpc": "2.0", "id": null, "error":'
                               b' {"code": -32001, "message": "Session not found"}}', {"content-type": JSON})),
]  # fmt: skip


@pytest.mark.parametrize("answer", [row[1] for row in LOST], ids=[row[0] for row in LOST])
def test_a_session_that_is_lost_is_told_and_the_next_call_has_another(many: Meets, answer: Sent) -> None:
    sessions: list[str] = []

    def send(asked: Asked) -> Sent:
        if asked.method == "initialize":
            sessions.append(f"s{asked.count}")
            return as_json(asked, mcp_session_id=sessions[-1])
        is_forgotten = asked.method == "tools/call" and asked.headers.get("mcp-session-id") == sessions[0]
        return answer if is_forgotten else as_json(asked)

    server = many(send)
    lost, result = call_server(server, "echo", text="x"), call_server(server, "echo", text="x")
    assert (lost.code, lost.data["retryable"]) == ("unreachable", True)
    assert "carried out nothing" in lost.content
    assert (result.content, result.is_error, len(sessions)) == ("fine", False, 2)


CALLS: list[tuple[str, Sent, str | None, str]] = [  # what a call gets, the code of its result, and words of that
    ("202", Sent(202), "timeout", "not known"),
    ("204", Sent(204), "timeout", "not known"),
    ("an empty 200", Sent(200, b"", {"content-type": JSON}), "timeout", "not known"),
    ("502", Sent(502), "timeout", "HTTP 502 Bad Gateway"),
    ("504 with a page", Sent(504, b"<html><title>Late</title></html>", {"content-type": "text/html"}), "timeout",
     "HTTP 504 Gateway Timeout: Late"),
    ("429", Sent(429, b"slow down", {"retry-after": "3"}), None, "HTTP 429 Too Many Requests: slow down"),
    ("503", Sent(503), None, "HTTP 503 Service Unavailable"),
    ("413", Sent(413), None, "HTTP 413"),
    ("401 with a challenge", Sent(401, b"", {"www-authenticate": 'Bearer error="invalid_token"'}), None,
     "HTTP 401 Unauthorized: invalid_token"),
    ("401 with a challenge in words", Sent(401, b"", {"www-authenticate":
     'Bearer error="invalid_token", error_description="The token expired"'}), None, "Unauthorized: The token expired"),
    ("403", Sent(403, b'{"error": "insufficient_scope"}', {"content-type": JSON}), None,
     "HTTP 403 Forbidden: insufficient_scope"),
    ("422", Sent(422, b'{"detail": [{"loc": ["body", "text"], "msg": "field required"}]}', {"content-type": JSON}),
     None, "body.text: field required"),
    ("a problem", Sent(400, b'{"title": "Bad", "detail": "no text"}', {"content-type": "application/problem+json"}),
     None, "HTTP 400 Bad Request: Bad; no text"),
    ("null", Sent(200, b"null", {"content-type": JSON}), None, "not a message"),
    ("an error without an envelope", Sent(200, b'{"error": "quota"}', {"content-type": JSON}), None, "quota"),
    ("a page", Sent(200, b"<html><title>Log in</title></html>", {"content-type": "text/html"}), None, "Log in"),
    ("303", Sent(303, b"", {"location": "/other"}), None, "/other"),
    ("an event of an error", Sent(200, b'event: error\ndata: {"error": "boom"}\n\n', {"content-type": EVENTS}), None,
     "boom"),
    ("no event", Sent(200, b": nothing\n\n", {"content-type": EVENTS}), "timeout", "not known"),
]  # fmt: skip


@pytest.mark.parametrize(("answer", "code", "words"), [row[1:] for row in CALLS], ids=[row[0] for row in CALLS])
def test_a_call_that_gets_no_answer_is_told_with_its_cause(
    many: Meets, answer: Sent, code: str | None, words: str
) -> None:
    server = many(lambda asked: answer if asked.method == "tools/call" else as_json(asked))
    result = call_server(server, "echo", text="x")
    assert (result.is_error, result.code, words in result.content) == (True, code, True), result


FAILS: list[tuple[str, Send, str]] = [
    ("a page", always(200, b"<html><title>Log in</title></html>"), "text/html"),
    ("words", always(200, b"Welcome!", "text/plain"), "text/plain: Welcome!"),
    ("no content type", lambda _: Sent(200, b"Welcome!"), "no content type"),
    ("401", always(401), "HTTP 401 Unauthorized"),
    ("403 with a page", always(403, b"<html><title>Forbidden</title></html>"), "HTTP 403 Forbidden: Forbidden"),
    ("404", always(404, b"not found"), "HTTP 404 Not Found: not found"),
    ("405", always(405), "HTTP 405"),
    ("405 of the older transport", always(405), "older HTTP+SSE"),
    ("404 of the older transport", always(404), "older HTTP+SSE"),
    ("500", always(500, b"oh"), "HTTP 500 Internal Server Error: oh"),
    ("502 with a page", always(502, b"<html>Bad gateway</html>"), "HTTP 502 Bad Gateway"),
    ("400 with an error", always(400, b'{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"no key"}}', JSON),
     "no key"),
    ("400 with words", always(400, b'{"error": "no key"}', JSON), "no key"),
    ("leads to another host", leads_to("https://elsewhere.example/mcp"), "elsewhere.example"),
    ("leads in a circle", lambda _: Sent(307, b"", {"location": "/mcp"}), "Redirect"),
    ("leads nowhere", lambda _: Sent(307), "HTTP 307"),
    ("an empty body", always(200, b"", JSON), "not a message"),
    ("no JSON", always(200, b"{", JSON), "not a message"),
    ("an event stream that ends at once", always(200, b"", EVENTS), "without a response"),
    ("a redirect that would lose the body", leads_to("/mcp/", 302), "/mcp/"),
    ("a redirect to TLS", leads_to("https://127.0.0.1/mcp", 308), "https://127.0.0.1/mcp"),
    ("300", leads_to("/x", 300), "HTTP 300 Multiple Choices"),
    ("304", always(304), "HTTP 304 Not Modified"),
    ("the answer in a 400", answering(400), "HTTP 400 Bad Request"),
    ("the answer in a 500", answering(500), "HTTP 500 Internal Server Error"),
    ("UTF-16", answering(encode=lambda body: body.decode().encode("utf-16")), "UTF-16"),
    ("a mark of another kind before", answering(encode=lambda body: b")]}'" + body), "not a message"),
    ("202 to all", always(202), "empty"),
    ("forgets its session at once", lambda asked: as_json(asked, mcp_session_id="s") if asked.method == "initialize"
     or not asked.answers else Sent(404), "HTTP 404"),
]  # fmt: skip


@pytest.mark.parametrize(("send", "cause"), [row[1:] for row in FAILS], ids=[row[0] for row in FAILS])
def test_a_server_over_http_that_can_not_be_used_is_named_with_its_cause(many: Meets, send: Send, cause: str) -> None:
    server = many(send)
    assert names(server) == []
    assert cause in " ".join(server.notes())


def test_a_server_is_reached_through_the_proxy_of_this_machine(downstream: DownstreamServers) -> None:
    paths: list[str] = []

    def passes_on(asked: Asked) -> Sent:
        paths.append(asked.path)
        return as_json(asked)

    with served(passes_on) as url:
        downstream.environ["HTTP_PROXY"] = url.removesuffix("/mcp")
        server = downstream.server("x", url="http://mcp.example/mcp", sandbox=True)
        server.wait_ready(time.monotonic() + WITHIN_S)
        assert call_server(server, "echo", text="x").content == "fine"
        own = downstream.server("y", url=url, sandbox=True)
        own.wait_ready(time.monotonic() + WITHIN_S)
        assert names(own) == ["y__echo"]
    assert set(paths) == {"http://mcp.example/mcp", "/mcp"}  # this machine itself is asked directly


async def test_a_call_is_checked_right_before_its_own_head_not_before_a_proxy_s() -> None:
    checks: list[str] = []
    rechecks: ContextVar[Rechecks] = ContextVar("rechecks")
    rechecks.set(iter((lambda: checks.append("checked"),)))
    with served(as_json) as url:
        inner = httpx2.AsyncHTTPTransport(proxy=url.removesuffix("/mcp"))
        transport = BoundedHttp(inner, rechecks, MessageRepair(), checks.append)
        async with httpx2.AsyncClient(transport=transport) as http:
            with pytest.raises(httpx2.ProxyError):
                await http.post("https://mcp.example/mcp", content=b"{}")
            assert checks == []
            await http.post("http://mcp.example/mcp", content=b'{"jsonrpc": "2.0", "id": 1, "method": "ping"}')
    assert checks == ["checked"]


@pytest.mark.parametrize(
    ("environ", "cause"),
    [
        ({}, "certificate is not trusted"),
        ({"SSL_CERT_FILE": "/nowhere/ca.pem"}, "SSL_CERT_FILE names /nowhere/ca.pem, which is not there"),
        ({"HTTPS_PROXY": "nonsense://p:1"}, "HTTPS_PROXY names no proxy"),
        ({"HTTPS_PROXY": "http://127.0.0.1:9"}, "Connection refused"),
    ],
)
def test_why_a_server_can_not_be_connected_to_is_said(
    downstream: DownstreamServers, environ: dict[str, str], cause: str
) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
    with socket.create_server(("127.0.0.1", 0)) as plain, context.wrap_socket(plain, server_side=True) as listener:
        threading.Thread(target=_accept_one, args=(listener,), daemon=True).start()
        host = "mcp.example" if "HTTPS_PROXY" in environ else f"127.0.0.1:{listener.getsockname()[1]}"
        downstream.environ.update(environ)
        server = downstream.server("x", url=f"https://{host}/mcp", sandbox=True)
        server.wait_ready(time.monotonic() + WITHIN_S)
        assert names(server) == []
        assert cause in " ".join(server.notes())


def _accept_one(listener: socket.socket) -> None:
    with suppress(OSError):
        listener.accept()[0].close()


class InMemory(httpx2.AsyncBaseTransport):
    """HTTP without a network: what `send` says, and `stream` to a GET."""

    def __init__(self, send: Send, stream: Sent) -> None:
        self._send, self._stream = send, stream
        self._counted = iter(range(10**6))

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        sent = self._stream if request.method == "GET" else Sent(405)
        if request.method == "POST":
            line = (await request.aread()).decode()
            method, headers = json.loads(line).get("method"), dict(request.headers.items())
            asked = Asked(request.url.path, method, headers, tuple(answer_line({}, line)), next(self._counted))
            sent = self._send(asked)
        headers = [(name.encode(), value.encode("latin-1")) for name, value in sent.headers.items()]
        return httpx2.Response(
            sent.status,
            headers=[*headers, (b"content-length", b"%d" % len(sent.body))],
            stream=httpx2.ByteStream(sent.body),
        )


@pytest.fixture(scope="module")
def shared_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DownstreamServers]:
    with open_downstream(tmp_path_factory.mktemp("many") / "servers") as made:
        yield made


@pytest.fixture
def many(shared_servers: DownstreamServers, monkeypatch: pytest.MonkeyPatch) -> Meets:
    """Meet a server over HTTP without a network."""

    def meet(send: Send, stream: Sent = Sent(405)) -> McpServerSource:
        made = InMemory(send, stream)
        monkeypatch.setattr(httpx2, "AsyncHTTPTransport", lambda **_: made)
        name = f"x{len(shared_servers.servers)}"
        server = shared_servers.server(name, url="http://127.0.0.1:9/mcp", sandbox=True)
        server.wait_ready(time.monotonic() + WITHIN_S)
        return server

    return meet


@contextmanager
def served(send: Send) -> Iterator[str]:
    counted = iter(range(10**6))

    class Answers(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            line = self.rfile.read(int(self.headers["content-length"]))
            answers = tuple(answer_line({}, line.decode()))
            headers = {name.lower(): value for name, value in self.headers.items()}
            sent = send(Asked(self.path, json.loads(line).get("method"), headers, answers, next(counted)))
            self.send_response(sent.status)
            for name, value in sent.headers.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(sent.body)))
            self.end_headers()
            self.wfile.write(sent.body)

        def do_GET(self) -> None:
            self.send_response(405)
            self.send_header("content-length", "0")
            self.end_headers()

        do_DELETE = do_GET  # noqa: N815 - http.server calls it by this name

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as http:
        threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{http.server_port}/mcp"
        http.shutdown()
