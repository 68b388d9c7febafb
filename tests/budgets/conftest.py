"""A provider on loopback for tests of budgets."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from support.provider_server import Standin, standin


@pytest.fixture
async def server() -> AsyncIterator[Standin]:
    async with standin() as provider:
        yield provider
