"""Commands in the process of the test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.app import Place
from support.operators import Command

if TYPE_CHECKING:
    from support.telemetry import Telemetry


@pytest.fixture
def telemetry() -> Telemetry:
    from support.telemetry import Telemetry

    return Telemetry()


@pytest.fixture
def command(place: Place, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    monkeypatch.chdir(place.workspace)
    monkeypatch.setenv("COLUMNS", "200")
    return Command(place, capsys)
