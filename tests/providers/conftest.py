"""A provider on loopback, and a place with an app that asks it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.app import Place, place_in
from support.provider_server import Standin, standin


@pytest.fixture
async def server() -> AsyncIterator[Standin]:
    async with standin() as provider:
        yield provider


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return place_in(tmp_path)
