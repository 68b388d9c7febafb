"""A server that is stopped in the middle of a request, after it has connected and before anything of it has left."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trustme
from support.app import Place
from support.forked_program import run_program
from support.stdio_server import StdioClient
from support.waiting import wait_until

WITHIN_S = 20.0
CONFIG = """
approvals = "host"
private_hosts = ["127.0.0.1:{port}"]

[[http_tools]]
name = "order"
description = "Orders one."
method = "POST"
url = "https://127.0.0.1:{port}/orders"
effect = "irreversible"

[[gate]]
tools = "order"
verdict = "allow"
"""


@dataclass
class Shop:
    """A server over TLS. The first connection gets no handshake before `go`; every request that came is kept."""

    port: int
    requests: list[bytes] = field(default_factory=list)
    connections: int = 0
    first_left: threading.Event = field(default_factory=threading.Event)
    go: threading.Event = field(default_factory=threading.Event)

    def serve(self, line: socket.socket, context: ssl.SSLContext, *, first: bool) -> None:
        with contextlib.suppress(OSError), line:
            if first:
                self.go.wait(WITHIN_S)
            line.settimeout(WITHIN_S)
            with context.wrap_socket(line, server_side=True) as secure:
                if request := secure.recv(65_536):
                    self.requests.append(request)
                    secure.sendall(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 2\r\n\r\nok")
        if first:
            self.first_left.set()


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    authority, context = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.cert_pem.write_to_path(str(tmp_path / "authority.pem"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authority.pem"))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        open_shop = Shop(listening.getsockname()[1])

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    line, _ = listening.accept()
                    open_shop.connections += 1
                    serving = {"first": open_shop.connections == 1}
                    threading.Thread(target=open_shop.serve, args=(line, context), kwargs=serving, daemon=True).start()

        accepting = threading.Thread(target=accept, daemon=True)
        accepting.start()
        yield open_shop
        open_shop.go.set()
        listening.shutdown(socket.SHUT_RDWR)
    accepting.join(WITHIN_S)


def orders(place: Place, shop: Shop) -> None:
    lines = [{"tool_calls": [{"name": "order", "arguments": {}}]}, {"content": "done", "finish": "stop"}]
    place.script.write_text("".join(json.dumps(line) + "\n" for line in lines))
    place.home.mkdir(parents=True)
    (place.home / "kairos.toml").write_text(CONFIG.format(port=shop.port))


def release(place: Place, owner: int) -> None:
    words = ["status", "--release", str(owner), "--json", "--home", str(place.home)]
    done = run_program(words, timeout=WITHIN_S)
    assert json.loads(done.stdout) == {"owner": owner, "released": 1}, done.stderr


def test_an_order_that_another_server_made_is_not_sent_by_the_one_that_wakes(place: Place, shop: Shop) -> None:
    orders(place, shop)
    with StdioClient.start(place) as first, StdioClient.start(place) as second:
        run_id = first.call("planner_run", goal="order one", tools=["order"], wait_s=0)["run_id"]
        wait_until(lambda: shop.connections, WITHIN_S, lambda: place.rows("select body from answer"))
        os.kill(first.pid, signal.SIGSTOP)
        try:
            ((owner,),) = place.rows("select owner from run")
            release(place, owner)
            report = second.call("run_status", run_ids=[run_id], until="done", wait_s=15)["runs"][0]
            assert (report["status"], report["summary"], len(shop.requests)) == ("completed", "done", 1), report
            before = place.rows("select * from answer order by step")
            shop.go.set()
        finally:
            os.kill(first.pid, signal.SIGCONT)
        assert shop.first_left.wait(WITHIN_S)  # its handshake is over and its line closed
        assert first.call("run_status", run_ids=[run_id], until="done", wait_s=5)["runs"][0]["status"] == "completed"
        assert place.rows("select * from answer order by step") == before
    assert [request.partition(b" HTTP")[0] for request in shop.requests] == [b"POST /orders"]
