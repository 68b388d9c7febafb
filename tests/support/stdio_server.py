"""The real server as a process, perhaps under strace, and a small client that speaks JSON-RPC lines to it."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apsw

from kairos_mcp.core.outcomes import Outcome
from support import forked_program, postgres
from support.app import Place, place_in
from support.forked_program import Forked

SECONDS = 20.0
HELLO = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "client", "version": "1"}}


class Gone(Exception):
    """The server has ended, or closed its side."""


@dataclass
class StdioClient:
    server: subprocess.Popen[bytes] | Forked
    unread: bytes = b""
    numbers: int = 0

    @classmethod
    def start(
        cls, place: Place, *, script: bool = True, under: Sequence[str] = (), called: str = "client", **more: Any
    ) -> StdioClient:
        words = ["serve", "--home", str(place.home), "--workspace", str(place.workspace)]
        scripted = {"KAIROS_SCRIPT": str(place.script)} if script else {}
        environ = {**os.environ, **postgres.environ_of(place.root), **scripted}
        streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        if under:
            program = [*under, sys.executable, "-m", "kairos_mcp", *words]
            server = subprocess.Popen(program, env=environ, **streams | more)
        else:
            server = forked_program.start(words, env=environ, **streams | more)
        client = cls(server)
        try:
            client.ask("initialize", HELLO | {"clientInfo": {"name": called, "version": "1"}})
            client.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        except BaseException:
            client.close()
            raise
        return client

    @property
    def pid(self) -> int:
        """The server's own process, also where strace stands before it."""
        children = Path(f"/proc/{self.server.pid}/task/{self.server.pid}/children").read_text().split()
        traced = Path(f"/proc/{self.server.pid}/comm").read_text().strip() == "strace"
        return int(children[0]) if traced and children else self.server.pid  # what was traced may have ended

    def send(self, message: dict[str, Any]) -> None:
        try:
            os.write(self.server.stdin.fileno(), json.dumps(message).encode() + b"\n")
        except BrokenPipeError as gone:
            raise Gone from gone

    def begin(self, method: str, params: dict[str, Any]) -> int:
        self.numbers += 1
        self.send({"jsonrpc": "2.0", "id": self.numbers, "method": method, "params": params})
        return self.numbers

    def ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        number = self.begin(method, params)
        try:
            while (message := self.read()).get("id") != number:
                pass
        except AssertionError as silent:
            silent.add_note(f"asked: {method} {params.get('name', '')}")
            raise
        result = message["result"]
        if method == "tools/call":
            from support.next_calls import find_problems  # at first use: the zygote imports no server

            assert find_problems(result.get("structuredContent") or {}) == []
        return result

    def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """The structured result of a tool."""
        return self.ask("tools/call", {"name": tool, "arguments": arguments})["structuredContent"]

    def read(self) -> dict[str, Any]:
        until = time.monotonic() + SECONDS
        while b"\n" not in self.unread:
            ready, _, _ = select.select([self.server.stdout], [], [], max(0.0, until - time.monotonic()))
            assert ready, "the server says nothing"
            chunk = os.read(self.server.stdout.fileno(), 2**16)
            if not chunk:
                raise Gone
            self.unread += chunk
        line, _, self.unread = self.unread.partition(b"\n")
        return json.loads(line)

    def ends(self) -> int:
        return self.server.wait(SECONDS)

    def close(self) -> None:
        if self.server.poll() is None:
            with suppress(ProcessLookupError):  # it has just ended, and strace is about to
                os.kill(self.pid, signal.SIGKILL)  # not strace: what it traces would live on
        self.server.wait(SECONDS)
        for pipe in (self.server.stdin, self.server.stdout):
            pipe.close()

    def __enter__(self) -> StdioClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


READS = [{"name": "read_file", "arguments": {"path": path}} for path in ("a.txt", "b.txt")]
LINES = [
    {"content": "look", "tool_calls": [*READS, {"name": "list_files", "arguments": {}}]},
    {"content": "ask", "tool_calls": [{"name": "ask_person", "arguments": {"question": "why"}}]},
    {"content": "done", "finish": "stop"},
]
PLAN = {
    "analysis": "Two parts that need nothing of each other, and one that needs both.",
    "strategy": "decomposed",
    "tasks": [
        {"id": "left", "agent": "search_specialist", "description": "Read both files."},
        {"id": "right", "agent": "code_analyzer", "description": "Read both files."},
        {"id": "both", "agent": "code_analyzer", "description": "Compare them.", "depends_on": ["left", "right"]},
    ],
}
TEAM_LINES = [
    *({"for": f"task-{n}/try-1/round-1", "content": "look", "tool_calls": READS} for n in (1, 2, 3)),
    *({"for": f"task-{n}/try-1/round-2", "content": "found", "finish": "stop"} for n in (1, 2, 3)),
    {"for": "synthesis", "content": "done", "finish": "stop"},
]
TEAM_START = {"plan": PLAN, "key": "reference", "wait_s": 15}
START = {
    "goal": "look around",
    "key": "reference",
    "wait_s": 15,
    "caller_tools": [{"name": "ask_person", "description": "Asks.", "input_schema": {"type": "object"}}],
}


def reference_place(root: Path) -> Place:
    place = place_in(root)
    place.script.write_text("".join(json.dumps(line) + "\n" for line in (*LINES, *TEAM_LINES)))
    return place


MAX_ANSWERS = 40  # more than either run needs


def go_through(client: StdioClient, *, team: bool = False) -> dict[str, Any]:
    """Start the reference run, or the one of a team, or find it, and bring it to its end."""
    report = client.call("team_run", **TEAM_START) if team else client.call("planner_run", **START)
    for _ in range(MAX_ANSWERS):
        if report["status"] not in ("input_required", "working"):
            return report
        answers = {item["key"]: {"content": "because"} for item in report["waiting"]}
        report = client.call("run_continue", run_id=report["run_id"], answers=answers, wait_s=15)
    raise AssertionError(report)


@dataclass(frozen=True)
class Kept:
    """What a store holds of one run. `answers`: with the moment in which each was recorded."""

    runs: int
    asked: dict[str, bytes]
    answers: dict[str, tuple[Any, ...]]
    outcome: str | None
    attempts: int
    integrity: str


def kept_in(place: Place, aside: Path) -> Kept:
    """Read what the store holds; of a file a copy, so that looking recovers and changes nothing."""
    if postgres.database_of(place.root) is not None:
        return _read_kept(place.rows, "; ".join(place.store().find_damage(Outcome)) or "ok")
    aside.mkdir()
    for file in place.home.glob("kairos.db*") if place.home.exists() else ():
        if not file.name.endswith("-shm"):
            shutil.copy(file, aside)
    connection = apsw.Connection(str(aside / "kairos.db"))

    def rows(statement: str) -> list[tuple[Any, ...]]:
        return list(connection.execute(statement))

    if not rows("select 1 from sqlite_master where name = 'answer'"):
        return Kept(0, {}, {}, None, 0, "ok")
    return _read_kept(rows, rows("pragma integrity_check")[0][0])


def _read_kept(rows: Callable[[str], list[tuple[Any, ...]]], integrity: str) -> Kept:
    ended = rows("select outcome from run")
    return Kept(
        len(ended),
        dict(rows("select path, digest from step")),
        {
            path: (at, body)
            for path, at, body in rows("select path, answer.at, body from answer join step on id = step")
        },
        ended[0][0] if ended else None,
        rows("select count(*) from attempt")[0][0],
        integrity,
    )
