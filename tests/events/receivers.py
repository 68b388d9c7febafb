"""A webhook's endpoint: in this process, which says how it answers, or in one of its own, which can be killed."""

from __future__ import annotations

import json
import os
import socket
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from hmac import new
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

SECRET = f"whsec_{b64encode(bytes(range(32))).decode()}"


@dataclass
class Endpoint:
    """`answer`: the status for an event by its id and how often it came before. `echoes`: whether it wants events."""

    port: int = 0
    sent: list[tuple[dict[str, str], dict[str, Any]]] = field(default_factory=list)
    answer: Callable[[str, int], int] = lambda _id, _before: 204
    echoes: bool = True

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    @property
    def events(self) -> list[dict[str, Any]]:
        return [body for _, body in self.sent if "eventId" in body]

    def accepted(self) -> list[str]:
        """The ids of the events that were taken, each once, in the order in which they came first."""
        return list(dict.fromkeys(body["eventId"] for headers, body in self.sent if headers.get("taken")))

    def take(self, headers: dict[str, str], raw: bytes) -> tuple[int, bytes]:
        assert is_signed(headers, raw)
        body = json.loads(raw)
        if body.get("type") == "verification":
            self.sent.append((headers, body))
            return 200, json.dumps({"challenge": body["challenge"] if self.echoes else "other"}).encode()
        before = sum(known["eventId"] == body["eventId"] for known in self.events)
        status = self.answer(body["eventId"], before)
        self.sent.append(({**headers, **({"taken": "yes"} if status < 300 else {})}, body))
        return status, b""


def is_signed(headers: dict[str, str], raw: bytes) -> bool:
    """Whether one of the signatures is that of Standard Webhooks."""
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + raw
    wanted = b64encode(new(b64decode(SECRET.removeprefix("whsec_")), signed, sha256).digest()).decode()
    return f"v1,{wanted}" in headers["webhook-signature"].split(" ")


@contextmanager
def open_endpoint() -> Iterator[Endpoint]:
    endpoint = Endpoint()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers["content-length"]))
            status, body = endpoint.take({name.lower(): value for name, value in self.headers.items()}, raw)
            self.send_response(status)
            if status in (301, 302):
                self.send_header("Location", "http://169.254.169.254/")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    endpoint.port = server.server_address[1]
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield endpoint
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def receive(port: int, file: Path) -> None:
    """Take what is sent to this port, as a process of its own: it is in the file before that is said."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers["content-length"]))
            assert is_signed({name.lower(): value for name, value in self.headers.items()}, raw)
            body = json.loads(raw)
            if is_event := "eventId" in body:
                os.write(taken, raw + b"\n")
            answer = b"" if is_event else json.dumps({"challenge": body["challenge"]}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    taken = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    server.serve_forever()
