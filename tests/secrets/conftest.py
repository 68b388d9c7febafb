"""The folders of the tests that these share things with."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from house import Place, place_in

sys.path.insert(0, str(Path(__file__).parent.parent / "crash"))  # the talker of real servers


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return place_in(tmp_path / "place")
