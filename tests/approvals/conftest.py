"""A place with a workspace, and the protocol eras."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.app import Place, place_in
from support.reviewers import ERAS


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return place_in(tmp_path)


@pytest.fixture(params=ERAS)
def era(request: pytest.FixtureRequest) -> str:
    return str(request.param)
