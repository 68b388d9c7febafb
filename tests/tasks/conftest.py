"""A folder of each test's own, and what a script or a person says in it."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.app import Place, place_in


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return place_in(tmp_path)
