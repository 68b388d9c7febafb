"""Servers over HTTP that deviate in what stands around their messages: each is used, or its cause is named."""

from __future__ import annotations

import gzip
import json
import socket
import ssl
import threading
import time
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
from support.downstream import WITHIN_S, DownstreamServers, call_server, names

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


def forgets_its_session(kind: str | None) -> Send:
    """Gives a session, and does not know it any more at the first call."""

    def send(asked: Asked) -> Sent:
        if asked.method == "initialize":
            return as_json(asked, mcp_session_id=f"s{asked.count}")
        if asked.method == "tools/call" and asked.headers.get("mcp-session-id") == FIRST_SESSION:
            error = b'{"jsonrpc": "2.0", "id": null, "error": {"code": -32001, "message": "Session not found"}}'
            return Sent(404, error, {} if kind is None else {"content-type": kind})
        return as_json(asked)

    return send


FIRST_SESSION = "s1"


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
]  # fmt: skip


@pytest.mark.parametrize("send", [row[1] for row in WORKS], ids=[row[0] for row in WORKS])
def test_a_server_over_http_is_used_however_it_sends(downstream: DownstreamServers, send: Send) -> None:
    with served(send) as url:
        server = downstream.server("x", url=url, sandbox=True)
        server.wait_ready(time.monotonic() + WITHIN_S)
        assert names(server) == ["x__echo"], server.notes()
        result = call_server(server, "echo", text="x")
    assert (result.content, result.is_error) == ("fine", False)


@pytest.mark.parametrize("kind", [JSON, None])
def test_a_session_that_is_lost_is_told_and_the_next_call_has_another(
    downstream: DownstreamServers, kind: str | None
) -> None:
    with served(forgets_its_session(kind)) as url:
        server = downstream.server("x", url=url, sandbox=True)
        server.wait_ready(time.monotonic() + WITHIN_S)
        lost, result = call_server(server, "echo", text="x"), call_server(server, "echo", text="x")
    assert (lost.is_error, "Session not found" in lost.content) == (True, True)
    assert (result.content, result.is_error) == ("fine", False)


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
    ("an empty body", always(200, b"", JSON), "no message"),
    ("no JSON", always(200, b"{", JSON), "no message"),
    ("an event stream that ends at once", always(200, b"", EVENTS), "without a response"),
]  # fmt: skip


@pytest.mark.parametrize(("send", "cause"), [row[1:] for row in FAILS], ids=[row[0] for row in FAILS])
def test_a_server_over_http_that_can_not_be_used_is_named_with_its_cause(
    downstream: DownstreamServers, send: Send, cause: str
) -> None:
    with served(send) as url:
        server = downstream.server("x", url=url, sandbox=True)
        server.wait_ready(time.monotonic() + WITHIN_S)
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
