"""The server as a process, spoken to line by line by a client with a model, in either era."""

from __future__ import annotations

import json
import os
import select
import subprocess
from dataclasses import dataclass
from typing import Any

from support.app import Place
from support.environment import plain_environ
from support.forked_program import Forked, start
from support.sampling_clients import LEGACY, MODERN

SECONDS = 20.0
INFO = {"name": "lines", "version": "1"}
SAMPLING = {"sampling": {}}
META = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientInfo": INFO,
    "io.modelcontextprotocol/clientCapabilities": SAMPLING,
}


@dataclass
class Lines:
    """A server process in this place, and the client's side of its pipes."""

    server: subprocess.Popen[bytes] | Forked
    era: str
    unread: bytes = b""
    number: int = 0

    @classmethod
    def start(cls, place: Place, era: str) -> Lines:
        words = ["serve", "--home", str(place.home), "--workspace", str(place.workspace)]
        environ = plain_environ()
        server = start(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environ,
        )
        lines = cls(server, era)
        if era == LEGACY:
            lines.result(
                lines.begin("initialize", {"protocolVersion": LEGACY, "capabilities": SAMPLING, "clientInfo": INFO})
            )
            lines.send({"method": "notifications/initialized"})
        return lines

    def send(self, message: dict[str, Any]) -> None:
        os.write(self.server.stdin.fileno(), json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    def begin(self, method: str, params: dict[str, Any]) -> int:
        self.number += 1
        meta = {"_meta": META} if self.era == MODERN else {}
        self.send({"id": self.number, "method": method, "params": params | meta})
        return self.number

    def call(self, tool: str, arguments: dict[str, Any], **carried: Any) -> int:
        return self.begin("tools/call", {"name": tool, "arguments": arguments, **carried})

    def result(self, number: int) -> dict[str, Any]:
        while (message := self.read()).get("id") != number or "method" in message:
            pass
        assert "result" in message, message
        return dict(message["result"])

    def read_error(self, number: int) -> dict[str, Any]:
        """The JSON-RPC error of a request."""
        while (message := self.read()).get("id") != number:
            pass
        assert "error" in message, message
        return dict(message["error"])

    def came(self, tool: str, arguments: dict[str, Any], **carried: Any) -> dict[str, Any]:
        """The structured result of a call that asks nothing."""
        return dict(self.result(self.call(tool, arguments, **carried))["structuredContent"])

    def read_request(self) -> dict[str, Any]:
        """Return the next request of the server."""
        while (message := self.read()).get("method") != "sampling/createMessage":
            pass
        return message

    def read(self) -> dict[str, Any]:
        stdout = self.server.stdout.fileno()
        while b"\n" not in self.unread:
            ready, _, _ = select.select([stdout], [], [], SECONDS)
            assert ready, "the server says nothing"
            chunk = os.read(stdout, 2**16)
            assert chunk, "the server has closed its stdout"
            self.unread += chunk
        line, _, self.unread = self.unread.partition(b"\n")
        return dict(json.loads(line))

    def stop(self) -> None:
        self.server.kill()
        self.server.wait(SECONDS)
        self.server.stdin.close()
        self.server.stdout.close()


def reply(text: str, **more: Any) -> dict[str, Any]:
    """A model's reply on the wire."""
    content = {"type": "text", "text": text}
    return {"role": "assistant", "model": "m", "content": content, "stopReason": "endTurn", **more}
