"""A place with a page whose link is broken, and the protocol eras."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.app import Place, place_in
from support.cycles import ERAS, PAGE


@pytest.fixture
def place(tmp_path: Path) -> Place:
    place = place_in(tmp_path)
    (place.workspace / "docs").mkdir()
    (place.workspace / "docs" / "index.md").write_text(PAGE)
    return place


@pytest.fixture(params=ERAS)
def era(request: pytest.FixtureRequest) -> str:
    return str(request.param)
