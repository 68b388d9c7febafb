"""`kairos-mcp ui` in a process of its own, and runs that others move beside it."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import apsw
from support.app import Place
from support.forked_program import Forked, start
from support.terminal import Terminal

LINK = re.compile(r"http://127\.0\.0\.1:\d+/\S*#enter=[\w-]+")
WITHIN_S = 60.0
EDITED = "docs/guide.md"


def environ_of(place: Place, **more: str) -> dict[str, str]:
    """The variables of a process that works on this place."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("KAIROS_")}
    return kept | {"KAIROS_HOME": str(place.home), "KAIROS_DURABILITY": "process"} | more


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


class ServedPage:
    """A server of the page. `link` is the one that it printed, which opens it once."""

    def __init__(self, place: Place, port: int, terminal: Terminal) -> None:
        self.place, self.port, self._terminal = place, port, terminal
        self.address = f"http://127.0.0.1:{port}/"
        self.link = _read_link(terminal)

    def make_link(self) -> str:
        """Return another link, as a second `kairos-mcp ui` prints it."""
        words = ("ui", "--no-open", "--workspace", str(self.place.workspace))
        with Terminal(*words, folder=self.place.workspace, environ=environ_of(self.place), columns=400) as terminal:
            return _read_link(terminal)

    @property
    def pid(self) -> int:
        return self._terminal.pid

    def kill(self) -> None:
        self._terminal.kills()


def _read_link(terminal: Terminal) -> str:
    terminal.shows("#enter=")
    terminal.shows("\n")
    return LINK.findall(terminal.text)[-1]


@contextmanager
def serve_page(
    place: Place, port: int | None = None, others: Sequence[Path] = (), **variables: str
) -> Iterator[ServedPage]:
    """The page of this place, and of other workspaces, until the block ends."""
    listens_at = port or free_port()
    named = [word for folder in (place.workspace, *others) for word in ("--workspace", str(folder))]
    words = ("ui", "--no-open", "--port", str(listens_at), *named)
    with Terminal(*words, folder=place.workspace, environ=environ_of(place, **variables), columns=400) as terminal:
        yield ServedPage(place, listens_at, terminal)


def start_run(
    place: Place, goal: str, lines: Sequence[Mapping[str, Any]], *tools: str, route: str = "scripted", **variables: str
) -> Forked:
    """Start a run by a command of its own, which drives it until it rests."""
    script = place.root / f"{abs(hash(goal))}.jsonl"
    script.write_text("".join(json.dumps(line) + "\n" for line in lines))
    wanted = [word for tool in tools for word in ("--tools", tool)]
    rounds = len(lines) + 5
    own = {"KAIROS_SCRIPT": str(script), "KAIROS_ROUTE": route, "KAIROS_LIMITS_ROUNDS": str(rounds)}
    environ = environ_of(place, **own, **variables)
    words = ("run", goal, "--json", "--limit", f"rounds={rounds}", "--workspace", str(place.workspace), *wanted)
    return start(words, cwd=place.workspace, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def run_until_rest(place: Place, goal: str, lines: Sequence[Mapping[str, Any]], *tools: str, **variables: str) -> str:
    """Start a run and return its id once it rests: it has ended, or waits."""
    start_run(place, goal, lines, *tools, **variables).wait(WITHIN_S)
    ((run_id,),) = place.rows("select id from run order by n desc limit 1")
    return str(run_id)


def wait_for_rows(place: Place, statement: str, *bindings: Any) -> list[tuple[Any, ...]]:
    """Return the rows of a statement once there are any."""
    until = time.monotonic() + WITHIN_S
    while True:
        with suppress(apsw.CantOpenError, apsw.SQLError):  # whoever makes the file has not come so far
            if found := place.rows(statement, *bindings):
                return found
        assert time.monotonic() < until, statement
        time.sleep(0.02)


def guide_in(place: Place) -> Path:
    """Write a guide with a link that leads nowhere, and a long page, of which each look finds another line."""
    guide = place.workspace / EDITED
    guide.parent.mkdir(exist_ok=True)
    (guide.parent / "words.md").write_text("".join(f"word{n}.\n" for n in range(1, 4_000)))
    guide.write_text("# Guide\n\nStart with [the installation](instal.md).\n\nThen read on.\n")
    return guide


def asks_to_edit(**more: Any) -> dict[str, Any]:
    """A line of a script: a turn that mends the guide."""
    arguments = {"path": EDITED, "old_string": "(instal.md)", "new_string": "(install.md)"}
    return {
        "content": "The link has a typing error; I correct it.",
        "tool_calls": [{"name": "edit_file", "arguments": arguments}],
        **more,
    }


def looks(number: int = 1, **more: Any) -> dict[str, Any]:
    """A line of a script: a turn that reads and searches."""
    calls = [
        {
            "id": "1",
            "name": "read_file",
            "arguments": {"path": "docs/words.md", "start_line": number, "end_line": number + 1},
        },
        {"id": "2", "name": "search_files", "arguments": {"pattern": f"word{number}\\."}},
    ]
    words = ("I look where this is used.", "The next file names it too; I read it.", "This one is clean. On.")
    return {"content": words[number % 3], "finish": "tool_calls", "tool_calls": calls, **more}


def says(text: str, **more: Any) -> dict[str, Any]:
    return {"content": text, "finish": "stop", **more}
