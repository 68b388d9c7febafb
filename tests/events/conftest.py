from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.app import Place
from support.operators import Command

from events.receivers import Endpoint, open_endpoint
from kairos_mcp.app.notifier import Notifier


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with open_endpoint() as made:
        yield made


@pytest.fixture
def by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """The notifier looks when the test says so."""
    monkeypatch.setattr(Notifier, "begin", lambda self: None)


@pytest.fixture
def command(place: Place, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(place, capsys)
