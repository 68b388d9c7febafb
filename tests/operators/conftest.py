"""Commands in the process of the test."""

from __future__ import annotations

import pytest
from support.app import Place
from support.operators import Command


@pytest.fixture
def command(place: Place, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    monkeypatch.chdir(place.workspace)
    monkeypatch.setenv("COLUMNS", "200")
    return Command(place, capsys)
