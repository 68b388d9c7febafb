"""A place for each test of teams."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.app import Place, place_in
from support.provider_server import Standin, standin


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return place_in(tmp_path / "place")


@pytest.fixture
async def provider() -> AsyncIterator[Standin]:
    async with standin() as each:
        yield each
