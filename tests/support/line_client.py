"""The server as a process of its own, and a client that speaks lines to it."""

from __future__ import annotations

import json
import os
import select
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support import postgres
from support.forked_program import NAMES, Forked, start

SERVE = """
import os, sys
from kairos_mcp.server.stdio import serve
from kairos_mcp.settings.load import load_settings
from kairos_mcp.settings.settings import Flags
serve(load_settings(Flags(home=sys.argv[1]), os.environ))
"""
SECONDS = 15


@dataclass
class Peer:
    server: subprocess.Popen[bytes] | Forked
    unread: bytes = b""
    numbers: int = 0
    lines: list[bytes] = field(default_factory=list)

    @classmethod
    def start(cls, home: Path, program: str = SERVE, **environ: str) -> Peer:
        streams = dict.fromkeys(NAMES, subprocess.PIPE)
        environ = {**os.environ, **postgres.environ_of(home.parent), **environ}
        return cls(start([str(home)], code=program, env=environ, **streams))

    def greet(self) -> None:
        hello = {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "p", "version": "1"},
        }
        assert self.result("initialize", hello)["serverInfo"]["name"] == "kairos-mcp"
        self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def send(self, message: dict[str, Any]) -> None:
        self.write(json.dumps(message).encode() + b"\n")

    def write(self, line: bytes) -> None:
        view = memoryview(line)
        while view:
            view = view[os.write(self.server.stdin.fileno(), view) :]

    def ask(self, method: str, params: dict[str, Any] | None = None) -> int:
        self.numbers += 1
        self.send({"jsonrpc": "2.0", "id": self.numbers, "method": method, "params": params or {}})
        return self.numbers

    def result(self, method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
        answer = self.answer(self.ask(method, params))
        assert "result" in answer, answer
        return answer["result"]

    def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        return self.result("tools/call", {"name": tool, "arguments": arguments})

    def answer(self, number: int | str | None) -> dict[str, Any]:
        while True:
            message = self.read()
            if message.get("id", "none") == number:
                return message

    def read(self) -> dict[str, Any]:
        """The next message; every line of stdout has to be one."""
        stdout = self.server.stdout.fileno()
        while b"\n" not in self.unread:
            ready, _, _ = select.select([stdout], [], [], SECONDS)
            assert ready, "the server says nothing"
            chunk = os.read(stdout, 2**16)
            assert chunk, "the server has closed its stdout"
            self.unread += chunk
        line, _, self.unread = self.unread.partition(b"\n")
        self.lines.append(line)
        message = json.loads(line)
        assert message["jsonrpc"] == "2.0"
        return message

    def still_answers(self) -> None:
        assert "tools" in self.result("tools/list")

    def ends(self, within: float) -> int:
        return self.server.wait(within)

    def peak_bytes(self) -> int:
        status = Path(f"/proc/{self.server.pid}/status").read_text()
        (line,) = [line for line in status.splitlines() if line.startswith("VmHWM")]
        return int(line.split()[1]) * 1024

    def stop(self) -> None:
        self.server.kill()
        for pipe in (self.server.stdin, self.server.stdout, self.server.stderr):
            pipe.close()
        self.server.wait(SECONDS)
