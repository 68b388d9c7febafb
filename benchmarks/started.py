"""CPU of starts: of `kairos-mcp serve` to its answer to tools/list, beside a bare server with the same tools, and of
commands from their start to their end, beside Python that does nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import median
from threading import Thread
from typing import Any

from benchmarks.fresh import ROOT, fresh

HELLO = {
    "protocolVersion": "2025-06-18",
    "capabilities": {},
    "clientInfo": {"name": "bench", "version": "1"},
}


def _line(method: str, number: int | None, params: dict[str, Any] | None = None) -> bytes:
    message: dict[str, Any] = {"jsonrpc": "2.0", "method": method}
    if number is not None:
        message["id"] = number
    if params is not None:
        message["params"] = params
    return json.dumps(message).encode() + b"\n"


def _cpu(process: int) -> float:
    """CPU seconds of all threads that live."""
    threads = Path(f"/proc/{process}/task").iterdir()
    return sum(int((thread / "schedstat").read_text(encoding="ascii").split()[0]) for thread in threads) / 1e9


def talk(words: list[str]) -> tuple[float, dict[str, Any]]:
    """CPU seconds of the server until it has answered tools/list, and that answer."""
    with subprocess.Popen(words, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(_line("initialize", 1, HELLO))
        server.stdin.flush()
        server.stdout.readline()
        server.stdin.write(_line("notifications/initialized", None) + _line("tools/list", 2, {}))
        server.stdin.flush()
        answer: dict[str, Any] = json.loads(server.stdout.readline())["result"]
        used = _cpu(server.pid)
        server.stdin.close()
    return used, answer


def serving(folder: Path) -> tuple[float, dict[str, Any]]:
    command = Path(sys.executable).with_name("kairos-mcp")
    return talk([str(command), "serve", "--home", str(folder / "home"), "--workspace", str(folder)])


def bare(folder: Path, listing: dict[str, Any]) -> tuple[float, dict[str, Any]]:
    (folder / "tools.json").write_text(json.dumps(listing), encoding="utf-8")
    return talk([sys.executable, "-m", "benchmarks.bare", str(folder / "tools.json")])


class _Model(BaseHTTPRequestHandler):
    """Answers every request of an OpenAI-compatible client with one word."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        message = {"role": "assistant", "content": "Done."}
        used = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        reply = {"id": "1", "object": "chat.completion", "created": 1, "model": "m", "usage": used}
        reply["choices"] = [{"index": 0, "message": message, "finish_reason": "stop"}]
        body = json.dumps(reply).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Write no line for a request."""


def commands(folder: Path) -> dict[str, float]:
    """CPU seconds of each command from its start to its end, all that it imports included."""
    script = folder / "script.jsonl"
    script.write_text(json.dumps({"content": "Done."}) + "\n", encoding="utf-8")
    model = ThreadingHTTPServer(("127.0.0.1", 0), _Model)
    Thread(target=model.serve_forever, daemon=True).start()
    port = model.server_address[1]
    plain = {name: value for name, value in os.environ.items() if not name.startswith("KAIROS_")}
    environ = {**plain, "KAIROS_HOME": str(folder / "home")}
    by_script = {**environ, "KAIROS_SCRIPT": str(script)}
    by_openai = {**environ, "KAIROS_MODEL": "openai:m", "KAIROS_BASE_URL": f"http://127.0.0.1:{port}/v1"}
    program = str(Path(sys.executable).with_name("kairos-mcp"))
    used = {
        "run": _whole_cpu([program, "run", "Say it."], folder, by_script),
        "run_openai": _whole_cpu([program, "run", "Say it again."], folder, by_openai),
        "runs": _whole_cpu([program, "runs"], folder, environ),
        "version": _whole_cpu([program, "--version"], folder, environ),
        "python": _whole_cpu([sys.executable, "-c", "pass"], folder, environ),
    }
    model.shutdown()
    return used


def _whole_cpu(words: list[str], folder: Path, environ: dict[str, str]) -> float:
    process = subprocess.Popen(words, cwd=folder, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, words
    return used.ru_utime + used.ru_stime


def figures(times: int = 15) -> dict[str, float]:
    listing = fresh(serving)[1]  # compiles what has to be compiled, too
    fresh(bare, listing)
    fresh(commands)
    pairs, starts = [], []
    for _ in range(times):
        (ours, _), (theirs, same) = fresh(serving), fresh(bare, listing)
        assert same["tools"] == listing["tools"]
        pairs.append((ours, theirs))
        starts.append(fresh(commands))
    of_python = median(start["python"] for start in starts)
    return {
        "bare_ms": median(theirs for _, theirs in pairs) * 1e3,
        "start": median(ours for ours, _ in pairs) / median(theirs for _, theirs in pairs),
        "python_ms": of_python * 1e3,
        **{
            name: median(start[name] for start in starts) / of_python
            for name in ("version", "runs", "run", "run_openai")
        },
    }
