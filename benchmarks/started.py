"""CPU from the start of `kairos-mcp serve` to its answer to tools/list, beside a bare server with the same tools."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from statistics import median
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


def figures(times: int = 15) -> dict[str, float]:
    listing = fresh(serving)[1]  # compiles what has to be compiled, too
    fresh(bare, listing)
    pairs = []
    for _ in range(times):
        (ours, _), (theirs, same) = fresh(serving), fresh(bare, listing)
        assert same["tools"] == listing["tools"]
        pairs.append((ours, theirs))
    return {
        "bare_ms": median(theirs for _, theirs in pairs) * 1e3,
        "start": median(ours for ours, _ in pairs) / median(theirs for _, theirs in pairs),
    }
