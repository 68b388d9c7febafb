"""Servers of the newer protocol and servers over HTTP: the same tools, the same bounds, nothing of ours sent along."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
from support.downstream import WITHIN_S, DownstreamServers, call_server, names
from support.waiting import wait_until

from kairos_mcp.core.errors import FenceLost
from kairos_mcp.core.tool import ToolMemory
from kairos_mcp.tools.mcp_servers import McpServerSource
from kairos_mcp.tools.mcp_servers.flood_guard import MAX_MESSAGE_BYTES, MESSAGE_VALUES

MODERN = Path(__file__).parent / "modern.py"


def soon() -> float:
    return time.monotonic() + WITHIN_S


class Served:
    """The server of the newer protocol on a port, which it keeps when it is started again."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "port"
        self.port = 0
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        self._file.unlink(missing_ok=True)
        self.process = subprocess.Popen([sys.executable, str(MODERN), str(self._file), str(self.port)])
        wait_until(self._file.exists, WITHIN_S)
        self.port = int(self._file.read_text())

    def kill(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(WITHIN_S)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"


@pytest.fixture(scope="module")
def http_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    made = Served(tmp_path_factory.mktemp("served"))
    yield made
    with suppress(ProcessLookupError):
        made.kill()


def ready(server: McpServerSource) -> McpServerSource:
    server.wait_ready(soon())
    assert server.tools(), server.notes()
    return server


@pytest.fixture(params=["stdio", "http"])
def modern(request: pytest.FixtureRequest, downstream: DownstreamServers) -> Callable[[], McpServerSource]:
    def start_server() -> McpServerSource:
        if request.param == "stdio":
            return ready(downstream.server("m", (sys.executable, str(MODERN), "stdio")))
        return ready(downstream.server("m", url=request.getfixturevalue("http_server").url))

    return start_server


def test_over_http_a_call_is_not_sent_where_its_run_is_anothers_once_the_connection_stands(
    downstream: DownstreamServers, http_server: Served
) -> None:
    server = ready(downstream.server("m", url=http_server.url))
    looks = count(1)

    def raise_fence_lost() -> None:
        if next(looks) == 2:  # the first is before a connection is made
            raise FenceLost("run-1")

    began = time.monotonic()
    memory = replace(ToolMemory.in_process(), check_owner=raise_fence_lost)
    assert call_server(server, "quit", memory=memory, seconds=10).is_error
    assert time.monotonic() - began < 5  # nobody waits for an answer
    assert call_server(server, "echo", text="still there").content == "still there"
    assert http_server.process is not None
    assert http_server.process.poll() is None  # it had ended, had it heard of the call


def test_a_server_of_the_newer_protocol_is_listed_called_and_heard(modern: Callable[[], McpServerSource]) -> None:
    server = modern()
    assert call_server(server, "echo", text="hello").content == "hello"
    assert not call_server(server, "grow").is_error
    wait_until(lambda: server._get_client().is_stale, WITHIN_S)
    assert call_server(server, "echo", text="again").content == "again"
    assert "grown" in " ".join(server.notes())
    assert "m__grown" not in names(server)
    # In this protocol a server that wants something says so in its answer, which ends the call.
    wanted = call_server(server, "want")
    assert wanted.is_error
    assert "the user" in wanted.content
    # What is no text is said, not dumped; what is structured is text for a model and data for a program.
    structured = call_server(server, "structured")
    assert (json.loads(structured.content), structured.data) == ({"n": 3, "of": [1, 2]},) * 2
    shown = call_server(server, "picture").content
    assert "read me" in shown
    assert "iVBOR" not in shown
    assert shown.count("not shown") == 2
    assert "not fetched" in shown


def test_a_reply_that_is_too_large_is_told_as_that_and_at_once(modern: Callable[[], McpServerSource]) -> None:
    server = modern()
    began = time.monotonic()
    assert "a message of over 8 MiB" in call_server(server, "huge", seconds=25).content
    assert time.monotonic() - began < 20
    assert wait_until(lambda: call_server(server, "echo", text="after").content == "after", WITHIN_S)


def test_a_reply_of_too_many_values_is_told_as_that_and_never_built(modern: Callable[[], McpServerSource]) -> None:
    server = modern()
    assert f"{MESSAGE_VALUES:,} values" in call_server(server, "values", seconds=25).content
    assert wait_until(lambda: call_server(server, "echo", text="after").content == "after", WITHIN_S)


def test_an_http_server_gets_the_headers_that_it_was_given_and_no_more(
    downstream: DownstreamServers, http_server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DOWNSTREAM-022."""
    downstream.environ["TOKEN"] = "t0ken"
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")  # what this process is told of proxies is its own matter
    server = ready(downstream.server("m", url=http_server.url, headers=(("Authorization", "Bearer ${env:TOKEN}"),)))
    seen = json.loads(call_server(server, "headers").content)
    assert seen["authorization"] == "Bearer t0ken"
    ordinary = {"host", "accept", "accept-encoding", "connection", "user-agent", "content-type", "content-length"}
    assert {name for name in seen if not name.startswith("mcp-")} <= ordinary | {"authorization"}


def test_an_http_server_that_dies_in_a_call_and_comes_back(downstream: DownstreamServers, http_server: Served) -> None:
    server = ready(downstream.server("m", url=http_server.url))
    died = call_server(server, "quit")
    assert (died.code, died.data["retryable"]) == ("timeout", False)
    gone = call_server(server, "echo", text="x")
    assert gone.code == "unreachable"
    assert http_server.process is not None
    http_server.process.wait(WITHIN_S)
    http_server.start()
    assert wait_until(lambda: call_server(server, "echo", text="back").content == "back", WITHIN_S)


def answering(reply: bytes, asked: list[bytes]) -> int:
    """A server that gives this to whoever connects; gives its port."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            with suppress(OSError):
                connection, _ = listening.accept()
                asked.append(connection.recv(65_536))
                connection.sendall(reply)
                connection.close()

    threading.Thread(target=serve, daemon=True).start()
    return int(listening.getsockname()[1])


def test_a_server_that_wants_to_be_logged_in_elsewhere_is_not_followed(downstream: DownstreamServers) -> None:
    """DOWNSTREAM-020: no metadata is fetched, no redirect leaves the origin."""
    elsewhere: list[bytes] = []
    other = answering(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", elsewhere)
    for head in (
        f'401 Unauthorized\r\nWWW-Authenticate: Bearer resource_metadata="http://127.0.0.1:{other}/m"',
        f"307 Temporary Redirect\r\nLocation: http://127.0.0.1:{other}/mcp",
    ):
        asked: list[bytes] = []
        port = answering(f"HTTP/1.1 {head}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode(), asked)
        server = downstream.server("m", url=f"http://127.0.0.1:{port}/mcp")
        server.wait_ready(time.monotonic() + 10)
        assert (server.tools(), elsewhere) == ((), [])
        assert asked
        assert "could not be started" in server.notes()[0]


def test_a_body_without_end_is_not_read(downstream: DownstreamServers) -> None:
    listening, sent = socket.create_server(("127.0.0.1", 0)), [0]

    def serve() -> None:
        connection, _ = listening.accept()
        connection.recv(65_536)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n")
        with suppress(OSError):
            while sent[0] < 64 * MAX_MESSAGE_BYTES:
                sent[0] += connection.send(b" " * 1_048_576)
        connection.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    server = downstream.server("m", url=f"http://127.0.0.1:{listening.getsockname()[1]}/mcp")
    server.wait_ready(soon())
    thread.join(WITHIN_S)
    listening.close()
    assert server.tools() == ()
    assert "could not be started" in server.notes()[0]
    assert sent[0] < 4 * MAX_MESSAGE_BYTES  # what is under way in buffers beside it


def test_a_header_that_would_become_two_is_refused(downstream: DownstreamServers) -> None:
    downstream.environ["TOKEN"] = "t0ken\r\nX-Other: 1"
    server = downstream.server("m", url="http://127.0.0.1:9/mcp", headers=(("Authorization", "Bearer ${env:TOKEN}"),))
    server.wait_ready(soon())
    assert "control character" in server.notes()[0]
