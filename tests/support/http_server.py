"""The HTTP server as a process of its own, and what tests say to it: raw bytes, plain requests, real clients."""

from __future__ import annotations

import io
import json
import os
import re
import resource
import signal
import socket
import subprocess
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from threading import Event, Thread
from typing import Any

import httpx2
from mcp.client.client import Client
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client

from kairos_mcp.server.http_bounds import RequestBounds
from kairos_mcp.server.tokens import Tokens, make_tokens, read_owner_token
from kairos_mcp.settings.load import load_settings
from kairos_mcp.settings.settings import Flags
from support import postgres
from support.environment import plain_environ
from support.forked_program import Forked, start

SECONDS = 20
SERVE = """
import json, os, sys
from kairos_mcp.server.http_bounds import RequestBounds
from kairos_mcp.server.http import ListenOptions, serve
from kairos_mcp.server.log_lines import write_log_lines
from kairos_mcp.settings.load import load_settings
from kairos_mcp.settings.settings import Flags
home, workspace, listening, bounds = map(json.loads, sys.argv[1:])
settings = load_settings(Flags(home=home, workspaces=(workspace,)), os.environ)
write_log_lines(os.environ, settings.log_format)
serve(settings, ListenOptions(**listening), RequestBounds(**bounds))
"""
WAYS = ("modern http", "legacy http", "modern sse", "legacy sse")
MODERN = "2026-07-28"
META = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientInfo": {"name": "t", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}


def tokens_of(place: Path) -> Tokens:
    """The tokens of the servers of this place."""
    return make_tokens(load_settings(Flags(home=str(place / "home")), postgres.environ_of(place)))


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Site:
    """`token` is sent where no other Authorization is given: the local owner's where a test names none."""

    server: subprocess.Popen[bytes] | Forked
    home: Path
    token: str | None = None
    port: int = 0
    said: list[str] = field(default_factory=list)
    hearing: Thread = field(default_factory=Thread)
    _listens: Event = field(default_factory=Event)

    @classmethod
    def start(
        cls, place: Path, bounds: RequestBounds | None = None, token: str | None = None, **listening: Any
    ) -> Site:
        (place / "workspace").mkdir(parents=True, exist_ok=True)
        (place / "workspace" / "a.txt").write_text("alpha\n")
        environ = plain_environ() | postgres.environ_of(place)
        if (place / "script.jsonl").exists():
            environ["KAIROS_SCRIPT"] = str(place / "script.jsonl")
        given = (
            str(place / "home"),
            str(place / "workspace"),
            {"port": 0, **listening},
            asdict(bounds or RequestBounds()),
        )
        words = [json.dumps(each) for each in given]
        server = start(words, code=SERVE, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environ)
        site = cls(server, place / "home", token)
        site.hearing = Thread(target=site._hear, daemon=True)
        site.hearing.start()
        assert site._listens.wait(SECONDS), site.said
        assert site.port, site.said
        if token is None and not listening.get("no_auth"):
            site.token = read_owner_token(site.home)
        return site

    def _hear(self) -> None:
        with io.TextIOWrapper(self.server.stderr) as heard:
            for line in heard:
                self.said.append(line)
                if found := re.search(r"listening on http://.*?:(\d+)/", line):
                    self.port = int(found[1])
                    self._listens.set()
        self._listens.set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def stop(self) -> None:
        self.server.kill()
        self.server.wait(SECONDS)
        self.hearing.join(SECONDS)

    def is_quiet(self) -> bool:
        """Nothing went wrong inside, as far as its stderr tells."""
        return not any("Traceback" in line for line in self.said)

    def descriptors(self) -> int:
        """How many it has open, without Unix sockets: those to a database are opened as they are needed, and kept."""
        links = []
        for each in Path(f"/proc/{self.server.pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # it was closed since they were listed
                links.append(os.readlink(each))
        unix = {f"socket:[{line.split()[6]}]" for line in Path("/proc/net/unix").read_text().splitlines()[1:]}
        return sum(link not in unix for link in links)

    def resident_bytes(self) -> int:
        """Bytes of the server's memory that are there."""
        return int(Path(f"/proc/{self.server.pid}/statm").read_text().split()[1]) * resource.getpagesize()

    # -- raw -----------------------------------------------------------------------------------------------

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), SECONDS)

    def says_to(self, sent: bytes) -> Answer:
        """The answer to these very bytes."""
        with self.connect() as connection:
            connection.sendall(sent)
            return read_answer(connection)

    def head(self, *more: str, method: str = "POST", path: str = "/mcp", without: tuple[str, ...] = ()) -> bytes:
        """A request's header up to its own lines; `more` are appended even where they double one."""
        plain = {
            "Host": f"127.0.0.1:{self.port}",
            "Accept": "application/json, text/event-stream",
            "Content-Type": "application/json",
            "MCP-Protocol-Version": MODERN,
        }
        if self.token:
            plain["Authorization"] = f"Bearer {self.token}"
        lines = [f"{name}: {value}" for name, value in plain.items() if name not in without]
        return "\r\n".join([f"{method} {path} HTTP/1.1", *lines, *more, ""]).encode("latin-1")

    def post(self, body: bytes, *more: str, path: str = "/mcp", without: tuple[str, ...] = ()) -> Answer:
        head = self.head("Connection: close", *more, path=path, without=without)
        return self.says_to(head + f"Content-Length: {len(body)}\r\n\r\n".encode() + body)

    def call(self, name: str, arguments: Mapping[str, Any], *more: str, **ways: Any) -> Answer:
        names = ("MCP-Method: tools/call", f"MCP-Name: {name}")
        return self.post(call_body(name, arguments), *names, *more, **ways)

    def still_answers(self) -> bool:
        answer = self.call("run_status", {})
        return answer.status == 200 and "runs" in answer.json["result"]["structuredContent"]

    # -- clients -------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def client(self, way: str, token: str | None = None, **more: Any) -> AsyncIterator[Client]:
        era, transport = way.split()
        token = token or self.token
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        mode = "auto" if era == "modern" else "legacy"
        if transport == "sse":
            async with Client(sse_client(f"{self.url}/sse", headers=headers), mode=mode, **more) as client:
                yield client
        else:
            async with (
                httpx2.AsyncClient(headers=headers, timeout=SECONDS) as http,
                Client(streamable_http_client(f"{self.url}/mcp", http_client=http), mode=mode, **more) as client,
            ):
                yield client


def call_body(name: str, arguments: Mapping[str, Any]) -> bytes:
    params = {"name": name, "arguments": arguments, "_meta": META}
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()


def read_answer(connection: socket.socket) -> Answer:
    """One response: up to its declared length, or to the end of the connection."""
    got = b""
    while b"\r\n\r\n" not in got:
        chunk = connection.recv(65536)
        assert chunk, got
        got += chunk
    head, _, body = got.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    length = int(headers.get("content-length", -1))
    while len(body) < length or length < 0:
        chunk = connection.recv(65536)
        if not chunk:
            break
        body += chunk
    return Answer(int(first.split()[1]), headers, body)


def read_to_end(connection: socket.socket) -> bytes:
    """What still comes until the server closes the connection."""
    got = b""
    try:
        while chunk := connection.recv(65536):
            got += chunk
    except ConnectionResetError:
        pass
    return got


def terminate(site: Site) -> None:
    site.server.send_signal(signal.SIGTERM)
