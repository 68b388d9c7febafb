"""The real server for a foreign client: a note to be read, a command for stdio, a site for HTTP and SSE."""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import apsw

from kairos_mcp.server.tokens import read_owner_token
from tests.foreign.token_proxy import token_proxy

Transport = Literal["stdio", "http", "sse"]
START_S = 20


@dataclass(frozen=True, slots=True)
class Place:
    """A state folder, and a workspace whose note holds a word that nobody can know without reading it."""

    root: Path
    word: str = field(default_factory=lambda: f"word-{secrets.token_hex(6)}")

    @property
    def home(self) -> Path:
        return self.root / "home"

    @property
    def workspace(self) -> Path:
        return self.root / "workspace"

    @property
    def command(self) -> list[str]:
        return self.say("serve")

    def say(self, *words: str) -> list[str]:
        """A command of ours about this place."""
        places = ["--home", str(self.home), "--workspace", str(self.workspace)]
        return [sys.executable, "-m", "kairos_mcp", *words, *places]

    def lay(self) -> Place:
        self.workspace.mkdir(parents=True)
        (self.workspace / "note.txt").write_text(f"Held here: {self.word}.\n")
        return self

    def rows(self, statement: str, *bindings: Any) -> list[tuple[Any, ...]]:
        connection = apsw.Connection(str(self.home / "kairos.db"), flags=apsw.SQLITE_OPEN_READWRITE)
        try:
            connection.set_busy_timeout(5_000)  # the last server to leave clears the log away
            return list(connection.execute(statement, bindings))
        finally:
            connection.close()

    def replays(self, run_id: str) -> bool:
        done = subprocess.run(
            self.say("replay", run_id, "--json"),
            capture_output=True, text=True, check=False, timeout=START_S, env=environ(), cwd=self.root,
        )  # fmt: skip
        return bool(json.loads(done.stdout)["identical"])


@contextmanager
def site(place: Place, transport: Transport, *, no_auth: bool = False, door: Path | None = None) -> Iterator[str]:
    """The server listening on a free port, its address with the path of this transport. Nothing may break inside.

    It is reached through a proxy that adds its token, which may be behind a door; with `no_auth` directly, and decides
    nothing for its client."""
    how = ["--transport", transport, "--port", "0", *(["--no-auth"] if no_auth else [])]
    with subprocess.Popen(
        [*place.command, *how],
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        env=environ(),
        cwd=place.root,
    ) as server:
        assert server.stderr is not None
        try:
            printed = ""
            while (found := re.search(r"listening on (http://[^/\s]+)/", printed)) is None:
                line = server.stderr.readline()
                assert line, f"the server ended: {printed}"
                printed += line
            token = str(read_owner_token(place.home))
            with nullcontext(found[1]) if no_auth else token_proxy(found[1], token, door) as address:
                yield address + ("/mcp" if transport == "http" else "/sse")
        finally:
            server.send_signal(signal.SIGTERM)
            _, printed = server.communicate(timeout=START_S)
            assert "Traceback" not in printed, printed[-3000:]


def environ() -> dict[str, str]:
    """This process's, without what would set up the server otherwise."""
    return {name: value for name, value in os.environ.items() if not name.startswith("KAIROS_")}
