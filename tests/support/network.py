"""Servers on loopback that keep what they were sent, byte for byte, and reply as told; and a resolver for tests."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from kairos_mcp.core.messages import JsonObject, ToolResult
from kairos_mcp.core.tool import StopSignal, Tool, ToolContext
from kairos_mcp.core.urls import HostRule, parse_host_rule
from kairos_mcp.tools.http.client import HttpClient
from kairos_mcp.tools.tool import call_tool

WITHIN_S = 10.0


@dataclass(frozen=True)
class Heard:
    """A request as it came."""

    method: str
    target: str
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def header(self, name: str) -> str | None:
        found = [value for key, value in self.headers if key.lower() == name]
        assert len(found) < 2
        return found[0] if found else None


Reply = Callable[["Peer", socket.socket], None]


@dataclass
class Peer:
    """A server. Each request takes the next of `replies`, the last again and again."""

    port: int
    replies: list[Reply] = field(default_factory=list)
    heard: list[Heard] = field(default_factory=list)
    connections: int = 0
    sent: int = 0
    names: list[str | None] = field(default_factory=list)  # what TLS clients named
    came: threading.Event = field(default_factory=threading.Event)
    left: threading.Event = field(default_factory=threading.Event)  # a client hung up during a reply
    over: threading.Event = field(default_factory=threading.Event)
    scheme: str = "http"

    def url(self, path: str = "/", host: str = "127.0.0.1") -> str:
        return f"{self.scheme}://{host}:{self.port}{path}"

    def will(self, *replies: Reply) -> None:
        self.replies = list(replies)

    def send(self, line: socket.socket, content: bytes) -> None:
        line.sendall(content)
        self.sent += len(content)

    def ignore(self, line: socket.socket) -> None:
        """Take the connection, and nothing of what comes over it."""
        with line:
            self.over.wait(WITHIN_S)

    def serve(self, line: socket.socket) -> None:
        with line:
            heard = _request(line)
            if heard is None:
                return
            self.heard.append(heard)
            self.came.set()
            reply = self.replies[0] if self.replies else text("hello")
            if len(self.replies) > 1:
                self.replies.pop(0)
            try:
                reply(self, line)
            except OSError:
                self.left.set()


@contextlib.contextmanager
def peer(tls: ssl.SSLContext | None = None, address: str = "127.0.0.1", port: int = 0) -> Iterator[Peer]:
    listening = socket.create_server((address, port), family=socket.AF_INET6 if ":" in address else socket.AF_INET)
    serving = Peer(listening.getsockname()[1], scheme="http" if tls is None else "https")
    if tls is not None:
        tls.sni_callback = lambda _, name, __: serving.names.append(name)

    def one(line: socket.socket) -> None:
        line.settimeout(WITHIN_S)
        with contextlib.suppress(OSError):
            serving.serve(line if tls is None else tls.wrap_socket(line, server_side=True))

    def accept() -> None:
        while not serving.over.is_set():
            try:
                line, _ = listening.accept()
            except OSError:
                return
            serving.connections += 1
            threading.Thread(target=one, args=(line,), daemon=True).start()

    accepting = threading.Thread(target=accept, daemon=True)
    accepting.start()
    try:
        yield serving
    finally:
        serving.over.set()
        with contextlib.suppress(OSError):
            listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        accepting.join(WITHIN_S)


def _request(line: socket.socket) -> Heard | None:
    came = b""
    while b"\r\n\r\n" not in came:
        chunk = line.recv(65536)
        if not chunk:
            return None
        came += chunk
    head, _, body = came.partition(b"\r\n\r\n")
    first, *rest = head.decode("latin-1").split("\r\n")
    headers = tuple((name, value.strip()) for name, _, value in (each.partition(":") for each in rest))
    length = int(next((value for name, value in headers if name.lower() == "content-length"), "0"))
    while len(body) < length:
        body += line.recv(65536)
    method, target, _ = first.split(" ")
    return Heard(method, target, headers, body)


# -- what may be replied ---------------------------------------------------------------------------------------------


def raw(content: bytes) -> Reply:
    return lambda peer, line: peer.send(line, content)


def reply(content: bytes, kind: str = "text/plain; charset=utf-8", status: str = "200 OK", **headers: str) -> Reply:
    more = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    typed = f"content-type: {kind}\r\n" if kind else ""
    head = f"HTTP/1.1 {status}\r\n{typed}content-length: {len(content)}\r\n{more}\r\n"
    return raw(head.encode("latin-1") + content)


def text(content: str, **more: str) -> Reply:
    return reply(content.encode(), **more)


def json_text(content: str, status: str = "200 OK", **more: str) -> Reply:
    return reply(content.encode(), "application/json", status, **more)


def leads_to(where: str, status: int = 302) -> Reply:
    return reply(b"elsewhere", status=f"{status} Found", location=where)


def drips(before: bytes, drop: bytes = b"x") -> Reply:
    """The beginning at once, then a drop every 50 ms for ever: each wait is short, the whole never ends."""

    def dripping(peer: Peer, line: socket.socket) -> None:
        peer.send(line, before)
        while not peer.over.wait(0.05):
            peer.send(line, drop)

    return dripping


def floods(before: bytes, wave: bytes = b"x" * 65536) -> Reply:
    """A body without end, as fast as it is taken."""

    def flooding(peer: Peer, line: socket.socket) -> None:
        peer.send(line, before)
        while not peer.over.is_set():
            peer.send(line, wave)

    return flooding


def silent(peer: Peer, line: socket.socket) -> None:
    """No reply; it notices when the client hangs up."""
    if line.recv(1) == b"":
        peer.left.set()


# -- the side that asks ----------------------------------------------------------------------------------------------


@dataclass
class Names:
    """A resolver: each name has answers, of which each look takes the next, the last again and again."""

    answers: dict[str, list[Sequence[str]]]
    asked: list[str] = field(default_factory=list)

    def __call__(self, host: str) -> Sequence[str]:
        self.asked.append(host)
        known = self.answers.get(host)
        if known is None:
            raise OSError("no such name")
        return known.pop(0) if len(known) > 1 else known[0]


def rules(*texts: str) -> list[HostRule]:
    return [parse_host_rule(each) for each in texts]


def egress_to(*peers: Peer, hosts: Sequence[str] = (), names: Names | None = None, **more: object) -> HttpClient:
    """A way out that may reach these peers by their address, and by each name of `names`."""
    spoken = ["127.0.0.1", *(names.answers if names else ())]
    private = [f"{name}:{each.port}" for each in peers for name in spoken]
    return HttpClient(rules(*hosts), rules(*private), resolve=names or Names({}), **more)  # type: ignore[arg-type]  # any


def make_ctx(seconds: float = WITHIN_S, stop: StopSignal | None = None) -> ToolContext:
    return ToolContext("run-1", time.monotonic() + seconds, lambda _: None, "round-1/call-1", stop=stop or StopSignal())


def call_net_tool(
    tool: Tool, seconds: float = WITHIN_S, stop: StopSignal | None = None, /, **arguments: object
) -> ToolResult:
    given: JsonObject = dict(arguments)
    return call_tool(tool, given, make_ctx(seconds, stop))
