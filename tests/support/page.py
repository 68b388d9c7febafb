"""The page as a process of its own, and a browser's side of it without a browser: requests with its headers."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2

from kairos_mcp.store.page_files import make_code
from support.environment import plain_environ
from support.forked_program import Forked, start

SECONDS = 30


@dataclass
class Visitor:
    """A browser that has entered the page at `url`, and what it sends with acts."""

    url: str
    home: Path
    secret: str = ""
    http: httpx2.Client = field(default_factory=lambda: httpx2.Client(timeout=SECONDS, headers={"Connection": "close"}))

    @property
    def origin(self) -> str:
        return self.url.removesuffix("/").removesuffix("/ui")

    def enter(self) -> Visitor:
        answer = self.post("api/enter", {"code": make_code(self.home)})
        assert answer.status_code == 200, answer.text
        self.secret = answer.json()["secret"]
        return self

    def get(self, path: str, **headers: str | None) -> httpx2.Response:
        """Get as the page does; a header that is None is left out."""
        return self.http.get(self.url + path, headers=self._with_secret(headers))

    def read(self, path: str) -> Any:
        answer = self.get(f"api/{path}")
        assert answer.status_code == 200, answer.text
        return answer.json()

    def post(self, path: str, body: Any, **headers: str | None) -> httpx2.Response:
        """Post as the page does; a header that is None is left out."""
        sent = {"Origin": self.origin, "Content-Type": "application/json"} | headers
        return self.http.post(self.url + path, content=json.dumps(body).encode(), headers=self._with_secret(sent))

    def _with_secret(self, headers: Mapping[str, str | None]) -> dict[str, str]:
        sent = {"X-Kairos-Secret": self.secret or None, **headers}
        return {name: value for name, value in sent.items() if value is not None}

    def acts(self, act: str, **fields: Any) -> httpx2.Response:
        return self.post("api/act", {"act": act, **fields})

    def does(self, act: str, **fields: Any) -> dict[str, Any]:
        """Do what is to succeed, and return its answer."""
        answer = self.acts(act, **fields)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def waiting(self, run_id: str) -> dict[str, Any]:
        """The first item that the run waits for, as the page shows it."""
        found: dict[str, Any] = self.read(f"run?run={run_id}")["run"]["waiting"][0]
        return found

    @contextmanager
    def line(self, run_id: str | None = None, **headers: str) -> Iterator[Iterator[tuple[str, Any, str | None]]]:
        """The line of changes: (event, data, id) one after another."""
        path = "api/events" if run_id is None else f"api/events?run={run_id}"
        with self.http.stream("GET", self.url + path, headers=self._with_secret(headers)) as answer:
            assert answer.status_code == 200
            yield read_events(answer.iter_lines())


def read_events(lines: Iterator[str]) -> Iterator[tuple[str, Any, str | None]]:
    event = number = None
    for line in lines:
        name, _, value = line.partition(": ")
        match name:
            case "event":
                event = value
            case "id":
                number = value
            case "data":
                assert event is not None
                yield event, json.loads(value), number
                event = number = None


@contextmanager
def served_page(home: Path, *words: str, environ: Mapping[str, str] | None = None) -> Iterator[Visitor]:
    """`kairos-mcp ui` on this state folder, and a browser that has entered."""
    plain = plain_environ()
    given = ("ui", "--no-open", "--port", "0", "--home", str(home), *words)
    program = start(
        given, env=plain | dict(environ or {}), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        yield Visitor(read_url(program), home).enter()
    finally:
        program.kill()
        program.wait(SECONDS)
        program.stdout.close()
        program.stderr.close()


def read_url(program: subprocess.Popen[bytes] | Forked) -> str:
    """The address that the page prints once it can be reached; no code, since nobody sits at a pipe."""
    line = program.stdout.readline().decode()
    found = re.fullmatch(r"(http://127\.0\.0\.1:\d+/(?:ui/)?)\n", line)
    assert found is not None, line + program.stderr.read().decode()
    return found[1]
