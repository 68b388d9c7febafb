"""A place for each test of agents."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.app import Place, place_in


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return place_in(tmp_path / "place")
