"""A downstream server whose listing a test writes, and the real command over it, each with a home of its own."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kairos_mcp.settings.table_values import ServerSetting
from support.app import Place
from support.commands import Said, command
from support.environment import plain_environ
from support.terminal import Terminal

PEER = Path(__file__).parent.parent / "downstream" / "peer.py"
SAY = {"type": "object", "properties": {"text": {"type": "string"}}}


def tool_listing(name: str, description: str = "Says it.", **more: Any) -> dict[str, Any]:
    return {"name": name, "description": description, "inputSchema": SAY, **more}


@dataclass(frozen=True)
class Installation:
    """A state folder and a workspace with one configured server, `x`, which lists what `lists` wrote last."""

    place: Place

    @property
    def log(self) -> Path:
        return self.place.root / "log"

    @property
    def listing(self) -> Path:
        return self.place.root / "listing.json"

    @property
    def config(self) -> Path:
        return self.place.home / "kairos.toml"

    def lists(self, *tools: dict[str, Any]) -> None:
        self.listing.write_text(json.dumps(tools))

    @property
    def argv(self) -> tuple[str, ...]:
        return (sys.executable, str(PEER), f"log={self.log}", f"listing={self.listing}")

    def server(self, **more: Any) -> ServerSetting:
        return ServerSetting("x", self.argv, **{"sandbox": False, "effects": (("echo", "read"),), **more})

    def write_config(self) -> None:
        """The same server, as a person's file of settings has it."""
        program, *arguments = self.argv
        self.place.home.mkdir(parents=True, exist_ok=True)
        self.config.write_text(
            f"[servers.x]\ncommand = {json.dumps(program)}\nargs = {json.dumps(arguments)}\nsandbox = false\n"
            '[servers.x.effects]\necho = "read"\n'
        )

    def log_lines(self, word: str) -> list[str]:
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [line for line in lines if line.startswith(word)]

    @property
    def environ(self) -> dict[str, str]:
        homes = {"HOME": str(self.place.root / "user"), "KAIROS_HOME": str(self.place.home)}
        return {**plain_environ("XDG_"), **homes, "NO_COLOR": "1"}

    def __call__(self, *words: str, cwd: Path | None = None) -> Said:
        return command(*words, folder=cwd or self.place.workspace, environ=self.environ)

    def terminal(self, *words: str, **more: str) -> Terminal:
        return Terminal(*words, folder=self.place.workspace, environ=self.environ | more, columns=400)
