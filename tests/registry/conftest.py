"""A desk for each test."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.app import place_in
from support.registry import Desk, listed


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    made = Desk(place_in(tmp_path / "place"))
    made.lists(listed("echo"), listed("write"))
    return made
