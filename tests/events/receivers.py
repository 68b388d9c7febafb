"""A webhook's endpoint: what it was sent, verified by a library of others, and how it answers."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from hmac import new
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

DROPPED = 0  # it takes an event, and breaks off before it says so
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
            if status == DROPPED:
                self.close_connection = True
                return
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
