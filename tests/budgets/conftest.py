"""A provider on loopback, and an empty store, for tests of budgets."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
from support.empty_store import open_empty_store
from support.provider_server import Standin, standin

from kairos_mcp.store.rows import Session


@pytest.fixture
async def server() -> AsyncIterator[Standin]:
    async with standin() as provider:
        yield provider


@pytest.fixture
def session() -> Iterator[Session]:
    """A session on a store without rows."""
    with open_empty_store() as session:
        yield session
