"""A place with a workspace, and the protocol eras."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.app import Place, place_in
from support.sampling_clients import ERAS, LEGACY, MODERN
from support.sampling_lines import Lines


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return place_in(tmp_path)


@pytest.fixture(params=ERAS)
def era(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["native", "text"])
def native(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "native")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lines]:
    """One process for all that is sent to it: each case shows that it still answers."""
    lines = Lines.start(place_in(tmp_path_factory.mktemp("legacy")), LEGACY)
    yield lines
    lines.stop()


@pytest.fixture
def modern_server(place: Place) -> Iterator[Lines]:
    lines = Lines.start(place, MODERN)
    yield lines
    lines.stop()
