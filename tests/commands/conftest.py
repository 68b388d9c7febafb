"""The real command in a process of its own, with a home, a state folder and a folder to stand in."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support import postgres
from support.app import Place
from support.commands import Said, command
from support.environment import plain_environ


def _turn(text: str, *calls: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    made = [{"id": str(n), "name": name, "arguments": arguments} for n, (name, arguments) in enumerate(calls)]
    return {"content": text, **({"tool_calls": made} if made else {"finish": "stop"})}


LOOKS = (
    _turn("What is there?", ("list_files", {"path": "."}), ("file_tree", {"path": "."})),
    _turn("I read the beginning of a file.", ("read_file", {"path": "README.md"})),
    _turn("And I search.", ("search_files", {"pattern": "TODO"})),
    _turn("There are two files."),
)


class _StateAlone(Place):
    """The place of a state folder by the name of these tests."""

    @property
    def home(self) -> Path:
        return self.root / "state"


@dataclass(frozen=True)
class Shell:
    """`home` is the user's, `state` ours; `folder` is where the commands are started."""

    home: Path
    state: Path
    folder: Path

    def environ(self, **more: str) -> dict[str, str]:
        kept = plain_environ("XDG_") | postgres.environ_of(self.state.parent)
        return {
            **kept,
            "HOME": str(self.home),
            "KAIROS_HOME": str(self.state),
            "COLUMNS": "100",
            "NO_COLOR": "1",
            "TERM": "dumb",
            **more,
        }

    def rows(self, statement: str, *bindings: Any) -> list[tuple[Any, ...]]:
        """What is in the store; nothing before it has tables."""
        place = _StateAlone(self.state.parent)
        return place.rows(statement, *bindings) if place.has_tables() else []

    def words(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "kairos_mcp", *words]

    def __call__(self, *words: str, typed: str = "", cwd: Path | None = None, **more: str) -> Said:
        environ = self.environ(**more)
        return command(*words, folder=cwd or self.folder, environ=environ, typed=typed.encode())

    def look_around(self) -> str:
        """Make a run of four rounds and four calls that only read, and return its id."""
        file = self.home / "looks.jsonl"
        file.write_text("".join(json.dumps(turn) + "\n" for turn in LOOKS), encoding="utf-8")
        run_id: str = self("run", "Look around.", "--limit", "rounds=6", "--json", KAIROS_SCRIPT=str(file)).json[
            "run_id"
        ]
        return run_id


@pytest.fixture
def kairos(tmp_path: Path) -> Shell:
    shell = Shell(tmp_path / "user", tmp_path / "state", tmp_path / "user" / "project")
    shell.folder.mkdir(parents=True)
    (shell.folder / "README.md").write_text("# A project\n\nTODO: everything\n", encoding="utf-8")
    (shell.folder / "main.py").write_text("print('hello')  # TODO: more\n", encoding="utf-8")
    return shell
