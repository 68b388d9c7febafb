"""A provider on loopback for tests of teams."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from support.provider_server import Standin, standin


@pytest.fixture
async def provider() -> AsyncIterator[Standin]:
    async with standin() as each:
        yield each
