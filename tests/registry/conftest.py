"""An installation for each test."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.app import place_in
from support.registry import Installation, tool_listing


@pytest.fixture
def installation(tmp_path: Path) -> Installation:
    made = Installation(place_in(tmp_path / "place"))
    made.lists(tool_listing("echo"), tool_listing("write"))
    return made
