"""Commands of an operator, in this process: what they print, and what they raise."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from kairos_mcp.cli.command_table import run_app
from support.app import Place


@dataclass
class Command:
    """Carries out a command on the state folder of a place. Raises what the command raises."""

    place: Place
    captured: pytest.CaptureFixture[str]
    code: int = 0

    def __call__(self, *words: str) -> str:
        """What it wrote to stdout."""
        self.captured.readouterr()
        self.code = run_app([*words, "--home", str(self.place.home)])
        return self.captured.readouterr().out

    def json(self, *words: str) -> Any:
        return json.loads(self(*words, "--json"))
